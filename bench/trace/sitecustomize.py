"""Timestamps from inside hpcml's own processes, without touching hpcml: `bringup.py --explain` puts this on PYTHONPATH.

Python's audit events tell when a module's import begins, a file is moved into place, a port is opened. Each mark is one
line: wall-clock time, processor seconds of this process so far, process id, role, what. explain.py reads them.
"""

import os
import sys
import time

_PLACE = os.environ.get("BRINGUP_TRACE", "")
_IMPORTS = {
    "hpcml.kinds": "hpcml",
    "dask": "dask",
    "distributed": "distributed",
    "hpcml.kinds.dask.node.security.tls": "imported",
    "cryptography": "cryptography",
}
_seen: set[str] = set()


def _birth() -> float:
    """When the kernel made this process, to the hundredth of a second."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _note(what: str, when: float | None = None) -> None:
    cpu = sum(os.times()[:2]) if when is None else 0.0
    line = f"{time.time() if when is None else when:.4f}\t{cpu:.2f}\t{os.getpid()}\t{_ROLE}\t{what}\n"
    os.write(_FILE, line.encode())


def _hear(event: str, details: tuple[object, ...]) -> None:
    what: str | None = None
    if event == "import":
        what = _IMPORTS.get(str(details[0]))
        if what in _seen:
            return
        _seen.add(what or "")
    elif event == "os.rename":
        name = os.path.basename(str(details[1]))
        what = {"tls-cert.pem": "keys", "scheduler.json": "listening"}.get(name)
    elif event == "os.fork":
        what = "forked"
    elif event == "socket.connect" and isinstance(details[1], tuple):
        what = "connecting"
    if what:
        _note(what)


_ROLE = sys.orig_argv[-1] if "hpcml.kinds" in sys.orig_argv else ""
if _PLACE and _ROLE:
    _FILE = os.open(f"{_PLACE}/{_ROLE}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _note("made", _birth())
    sys.addaudithook(_hear)
