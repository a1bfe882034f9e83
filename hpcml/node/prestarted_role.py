"""A role that starts before its run, in a hold that keeps processes ready: it imports, and waits for the run's name.

It has run nothing of the user's. The batch script names the run's directory on standard input; until then no file of a
run is read but the plan of the run before, no key is there, and nothing listens. The script's interpreter imports this
module too, before its script: it imports nothing that a script could hide by a module of its own.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

VARIABLE = "HPCML_AHEAD"  # set in such a role until its run begins
_NAMES = ("sitecustomize.py", "usercustomize.py")
_Stamps = dict[str, tuple[int, int]]
_GIVEN = dict(os.environ)
WAITING: list[Any] = []  # the script's interpreter that waits (node/tasks/prestarted_interpreter.py), at most one
before = ""  # the directory that this process was started in, as its environment names it; empty in all others


def wait(settings_files: Iterable[Path] = ()) -> None:
    """Wait for the run, and give this process its environment; SystemExit if there is none.

    What was imported may have changed on the disk meanwhile: then the process starts again.
    """
    global before  # noqa: PLW0603 - a process becomes part of one run
    paths = [*settings_files]
    imported = stamps(paths)
    directory = _line()
    if not directory:
        raise SystemExit(0)
    before = os.environ["HPCML_RUN_DIR"]
    os.environ |= {"HPCML_RUN_DIR": directory, "HPCML_BEGAN": f"{time.time():.0f}"}
    os.environ.pop(VARIABLE, None)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if stamps(paths) != imported:
        print("hpcml: a package or a file of settings has changed: this process imports all modules again.", flush=True)
        environment = _GIVEN | {name: os.environ[name] for name in ("HPCML_RUN_DIR", "HPCML_BEGAN")}
        environment.pop(VARIABLE)
        end_waiting()  # else nobody waits for the end of this child
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this program


def end_waiting() -> None:
    """End the script's interpreter that waits, if there is one: it becomes no script's."""
    while WAITING:
        WAITING.pop().end()


def _line() -> str:
    """Read a line from standard input, and nothing beyond."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return os.fsdecode(line) if byte else ""


def stamps(paths: Iterable[Path]) -> _Stamps:
    """Return the times at which the imported files last changed: each module, and folders of packages."""
    folders = [entry for entry in sys.path if os.path.isabs(entry)]  # noqa: PTH117 - as they are
    modules = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    special = [f"{folder}/{name}" for folder in folders for name in _NAMES]
    found: _Stamps = {}
    for path in {*folders, *filter(os.path.isabs, modules), *special, *map(str, paths)}:
        try:
            status = os.stat(path)  # noqa: PTH116 - there may be thousands
        except OSError:  # some do not exist
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found
