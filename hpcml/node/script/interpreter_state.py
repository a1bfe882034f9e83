"""The interpreter of the user's script: its state before the first line, and what hpcml changes in it.

This module imports nothing that a script could hide by a module of its own.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RESETS = "HPCML_RESETS"  # the module that resets the kind's processes between two points of a sweep
IN_SCRIPT = "HPCML_IN_SCRIPT"  # the module of the run's kind whose install() changes the interpreter
BEFORE: dict[str, Any] = {}  # empty in a process that the run did not start
GIVEN = "HPCML_GIVEN"  # names the variables that a script got after its interpreter had started ahead of the run


def take() -> None:
    """Keep the state of this process as the one before the script. Nothing is imported for it."""
    BEFORE.clear()
    BEFORE.update(current())


def take_of_script(path: list[str], folder: str, umask: int) -> None:
    """In a process that the script started: keep what the script had, as what was changed since is for workers too."""
    BEFORE.update(path=path, folder=folder, umask=umask, environment=_environment_of_script() or BEFORE["environment"])


def _environment_of_script() -> dict[str, str]:
    """Return the variables with which the supervisor started the script: those of the oldest process below it."""
    result: dict[str, str] = {}
    pid = "self"
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
        except OSError:  # of another user, or ended
            return result
        variables = {name: value for name, _, value in entries}
        if "HPCML_RUN_DIR" not in variables or "HPCML_PYTHONPATH" in variables:  # the supervisor, or beyond
            return result
        if GIVEN in os.environ and "HPCML_AHEAD" in variables:
            variables = _since_ahead(variables)
        result, pid = variables, _lines(f"../{pid}/status", 6).get("PPid:", "0")


def _since_ahead(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables of a script whose interpreter started with others, ahead of the run."""
    del variables["HPCML_AHEAD"]
    given = {name: os.environ[name] for name in os.environ[GIVEN].split() if name in os.environ}
    before, run = variables["HPCML_RUN_DIR"], os.environ["HPCML_RUN_DIR"]
    return {name: value.replace(before, run) for name, value in variables.items()} | given


def current() -> dict[str, Any]:
    """Return the settings that a child of this process inherits, and those that multiprocessing gives to one."""
    try:
        folder = os.getcwd()  # noqa: PTH109 - pathlib is not loaded before a script
    except FileNotFoundError:
        folder = ""
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "folder": folder,
        "argv": list(sys.argv),
        "umask": int(_lines("status", 6).get("Umask:", "77"), 8),
        "nice": os.nice(0),
        "limits": _lines("limits", 26),
    }


def _lines(name: str, width: int) -> dict[str, str]:
    """Return lines of what Linux tells of this process, by their first characters."""
    try:
        with open(f"/proc/self/{name}") as file:
            return {line[:width].strip(): line[width:].strip() for line in file}
    except OSError:
        return {}


def install_kind() -> Any:
    """Have the run's kind change this process, and return its module for that; None if it has none.

    Processes that the script starts do not find the variable.
    """
    if not (name := os.environ.pop(IN_SCRIPT, "")):
        return None
    import importlib

    module = importlib.import_module(name)
    module.install()
    return module


def name_originals(folder: str) -> None:
    """Have warnings, tracebacks and joblib's caches name the files in the folder of whose copy the script is, if any.

    The lines that they show are still the copy's, as the original may have changed.
    """
    if not folder:
        return
    from hpcml.node.script.after_import import AfterImport

    copy, original = f"{os.environ.get('HPCML_RUN_DIR')}/code/", f"{folder}/"

    def named(text: Any, begin: str) -> Any:
        is_of_copy = isinstance(text, str) and text.startswith(begin + copy)
        return begin + original + text[len(begin + copy) :] if is_of_copy else text

    def named_in_cache(found: tuple[list[str], str]) -> tuple[list[str], str]:
        return ".".join(found[0]).replace(copy.replace("/", "-"), original.replace("/", "-")).split("."), found[1]

    def follow(name: str, module: Any) -> None:
        if name == "traceback":
            _rename(getattr(module, "StackSummary", None), "format_frame_summary", lambda text: named(text, '  File "'))
        elif name == "warnings":  # formatwarning, which is public, gets no source
            _rename(module, "_formatwarnmsg_impl", lambda text: named(text, ""))
        else:
            _rename(module, "get_func_name", named_in_cache)

    names = ("traceback", "warnings", "joblib.func_inspect", "joblib.memory")  # which has the function under its name
    for name in sys.modules.keys() & names:
        follow(name, sys.modules[name])
    sys.meta_path.insert(0, AfterImport(names, follow))


def _rename(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Change what a function returns; nothing where a module beside the script is the owner."""
    function = getattr(owner, name, None)
    if function is None or hasattr(function, "__wrapped__"):
        return

    def renamed(*arguments: Any, **options: Any) -> Any:
        return change(function(*arguments, **options))

    renamed.__wrapped__ = function  # type: ignore[attr-defined]
    setattr(owner, name, renamed)
