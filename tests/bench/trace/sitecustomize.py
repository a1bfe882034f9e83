"""Timestamps from inside hpcml's own processes, without touching hpcml: `bringup.py --explain` puts this on PYTHONPATH.

Python's audit events tell when a module's import begins, a file is moved into place, a port is opened. Each is written
as one line: wall-clock time, processor seconds of this process so far, process id, role, what.
"""

import os
import sys
import time

_PLACE = os.environ.get("BRINGUP_TRACE", "")
_IMPORTS = {
    "hpcml.inside": "interpreter ready",
    "distributed": "import of distributed begins",
    "hpcml.inside.secure": "imports of the role done",
    "cryptography": "import of cryptography begins",
}
_seen: set[str] = set()


def _role() -> str:
    words = getattr(sys, "orig_argv", [])
    return words[-1] if "hpcml.inside" in words else ""


def _birth() -> float:
    """When the kernel made this process, to the hundredth of a second."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is not imported yet, and costs time
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _note(what: str, when: float | None = None) -> None:
    cpu = sum(os.times()[:2]) if when is None else 0.0
    line = f"{time.time() if when is None else when:.4f}\t{cpu:.2f}\t{os.getpid()}\t{_ROLE}\t{what}\n"
    os.write(_FILE, line.encode())


def _hear(event: str, details: tuple[object, ...]) -> None:
    if event == "import":
        what = _IMPORTS.get(str(details[0]))
        if what and what not in _seen:
            _seen.add(what)
            _note(what)
    elif event == "os.rename":
        _note(f"{os.path.basename(str(details[1]))} in place")  # noqa: PTH119
    elif event == "open" and str(details[0]).endswith("tls-key.pem") and details[1] is None:
        _note("key opened or written")
    elif event == "socket.bind":
        address = details[1]
        if isinstance(address, tuple) and address[1] == 0:
            _note("port being opened")
    elif event == "os.fork":
        _note("worker being forked")
    elif event == "socket.connect" and isinstance(details[1], tuple):
        _note("connecting to the scheduler")


_ROLE = _role()
if _PLACE and _ROLE:
    _FILE = os.open(os.path.join(_PLACE, f"{_ROLE}-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # noqa: PTH118
    _note("process made by step.sh", _birth())
    _note("site ready")
    sys.addaudithook(_hear)
