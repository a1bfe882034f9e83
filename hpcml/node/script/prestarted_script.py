"""The script's interpreter where it starts before its run: it imports what its like needed, and waits for the script.

It has run nothing of the user's but what Python runs at its start. The supervisor sends it the command, variables and
folder of the script through a pipe. Where another state than that of a new interpreter would reach the script, it
becomes a new interpreter. This module imports nothing that a script could hide by a module of its own.
"""

from __future__ import annotations

import marshal
import os
import sys

from hpcml.node import prestarted_role
from hpcml.node.script import interpreter_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

IMPORTS = b"\n"  # in its pipe from the start, until it has imported all
_LENGTH = 8  # bytes of the length before what is sent
_OF_RUN = ("HPCML_", "DASK_")  # variables that each run has of its own


def message(command: list[str], environment: dict[str, str], folder: str, umask: int) -> bytes:
    """Return the message of the supervisor that names a script."""
    data = marshal.dumps((command, environment, folder, umask))
    return len(data).to_bytes(_LENGTH, "little") + data


def wait(begin: str, first: int, tree_of: Callable[[str], Any]) -> Any:
    """Wait for the script, whose arguments and surroundings this process then has; return the kind's module.

    ``begin`` is the variable with the pipe's descriptor, ``first`` the place of the script in the command. If the
    supervisor ends, this process ends. The first byte in the pipe stays there until all is imported.
    """
    pipe, last = int(os.environ[begin]), os.environ[prestarted_role.VARIABLE]
    kind = interpreter_state.install_kind()
    before = dict(os.environ)  # an import may set variables, as that of scikit-learn does
    names = kind.import_early(*_script(last, tree_of)) if last else []
    stamps, place = prestarted_role.stamps(kind.settings_files()), os.stat(".")  # noqa: PTH116
    _received(pipe, len(IMPORTS))
    length = int.from_bytes(_received(pipe, _LENGTH), "little")
    command, environment, folder, umask = marshal.loads(_received(pipe, length))  # noqa: S302 - the supervisor's
    os.chdir(folder)
    moved = os.umask(umask) != umask or not os.path.samestat(os.stat("."), place)  # noqa: PTH116
    changed = {name for name in before.keys() | environment.keys() if before.get(name) != environment.get(name)}
    os.set_inheritable(pipe, begin in environment)
    if (
        _differs(before, environment, changed)
        or moved  # what Python runs as it starts, such as sitecustomize, has seen another folder
        or prestarted_role.stamps(kind.settings_files()) != stamps
        or not {*names} <= sys.modules.keys()  # one has failed
        or not _would_import(command[first:], kind, names, tree_of)
    ):
        os.execve(command[0], command, environment)  # noqa: S606 - this program
    if begin not in environment:
        os.close(pipe)
    run, here = environment["HPCML_RUN_DIR"], before["HPCML_RUN_DIR"]
    for name in before.keys() - environment.keys():
        os.environ.pop(name, None)
    os.environ.update({name: environment[name] for name in changed & environment.keys()})
    new = (name for name in changed & environment.keys() if name.startswith("DASK_") or name not in before)
    os.environ[interpreter_state.GIVEN] = " ".join(sorted(name for name in new if not name.startswith("HPCML_")))
    del os.environ[interpreter_state.IN_SCRIPT]  # as install_kind() does
    sys.path[:] = [entry.replace(here, run) for entry in sys.path]
    sys.orig_argv[:] = command
    sys.argv[:] = command[first - 1 :]
    kind.take_variables({name: environment[name] for name in changed & environment.keys()})
    return kind


def _received(pipe: int, count: int) -> bytes:
    """Return so many bytes of what the supervisor sends; end this process if it sends nothing."""
    data = b""
    while len(data) < count:
        part = os.read(pipe, count - len(data))
        if not part:
            os._exit(1)
        data += part
    return data


def _script(path: str, tree_of: Callable[[str], Any]) -> tuple[Any, str]:
    """Return the syntax tree and the folder of a script; no tree if it has none."""
    stderr, sys.stderr = sys.stderr, None  # Python will warn of its text when it runs the script
    try:
        tree = tree_of(path)
    except (OSError, SyntaxError, ValueError):  # Python will say so, too
        tree = None
    finally:
        sys.stderr = stderr
    return tree, os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - pathlib is not loaded before a script


def _differs(before: dict[str, str], now: dict[str, str], changed: set[str]) -> bool:
    """Return True if a variable has changed that is not the run's own: Python or a library may have read it."""
    here, run = before["HPCML_RUN_DIR"], now["HPCML_RUN_DIR"]
    others = [name for name in changed if not name.startswith(_OF_RUN)]
    return any(before.get(name, "").replace(here, run) != now.get(name, "") for name in others)


def _would_import(words: list[str], kind: Any, names: list[str], tree_of: Callable[[str], Any]) -> bool:
    """Return True if a new interpreter would import the same for the script early, and nothing hides hpcml there."""
    is_module = words[0] == "-m"
    tree, folder = _script(words[is_module], tree_of)
    if os.path.exists(f"{folder}/hpcml.py") or os.path.exists(f"{folder}/hpcml"):
        return False
    return not names or (not is_module and {*names} <= {*kind.early_imports(tree, folder)})
