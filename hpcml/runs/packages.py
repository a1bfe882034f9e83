"""Which packages the Python of a run has, as far as the files of its environment tell: nothing is started."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import ScriptError
from hpcml.sites import layers

PROVIDED = ("hpcml", "dask_jobqueue", "dask_mpi")  # by the run itself (hpcml.kinds.dask.node.script.replacements)


class Environment:
    """Where an interpreter finds modules, as far as its files tell; ``certain`` if nothing else can add to it."""

    def __init__(self, python: str) -> None:
        self.python, self.same = python, python == sys.executable
        prefix = Path(python).parent.parent
        self.certain = self.readable = False
        self.folders: list[str] = []
        settings = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            settings = (prefix / "pyvenv.cfg").read_text()
        closed = bool(settings) and "include-system-site-packages = true" not in settings.lower()
        self.folders = [str(path) for path in prefix.glob("lib*/python3.*/site-packages")]
        if self.same:
            self.readable, self.certain = True, closed
        elif self.folders and (closed or (prefix / "conda-meta").is_dir()):
            self.readable = True
            paths = layers.process_environment().get("PYTHONPATH", "").split(":")
            self.folders += [*_named_by_pth(self.folders), *filter(None, paths)]

    def has(self, name: str) -> bool:
        """Whether a top-level module is there."""
        if name in sys.stdlib_module_names or name in PROVIDED:
            return True
        from importlib.machinery import PathFinder
        from importlib.util import find_spec

        if not self.same:
            return PathFinder.find_spec(name, self.folders) is not None
        try:
            return name in sys.modules or find_spec(name) is not None
        except (ImportError, ValueError):
            return True  # a finder of the environment's own is broken: this is not the place to say so

    def place(self, name: str) -> Path | None:
        """Return the file of a top-level module, or the folder of a package; None if its place is not known."""
        from importlib.machinery import PathFinder
        from importlib.util import find_spec

        try:
            spec = find_spec(name) if self.same else PathFinder.find_spec(name, self.folders)
        except (ImportError, ValueError, AttributeError):
            return None
        folders = list(spec.submodule_search_locations or ()) if spec else []
        return (
            Path(folders[0]) if folders else Path(spec.origin) if spec and spec.has_location and spec.origin else None
        )


def check_packages(names: Sequence[str], python: str, option: str, *, sure: bool = False) -> None:
    """Refuse an option that needs packages, if it is certain that the interpreter does not have one.

    Parameters
    ----------
    sure
        Whether it is certain if the interpreter's own folders do not have it: nobody adds such a package elsewhere.

    Raises
    ------
    ScriptError
        The package, and how it is added.
    """
    environment = Environment(python)
    for name in names if environment.readable and (environment.certain or sure) else ():
        if not environment.has(name):
            hint = f"Nothing was submitted. Install the package, usually with: {python} -m pip install {name}"
            raise ScriptError(f"The run's environment lacks the package {name}", place=option, hint=hint)


def installed(python: str) -> tuple[str, ...]:
    """Return the top-level modules in an interpreter's folder for packages, as seen from here; none if not known."""
    names: set[str] = set()
    for folder in Environment(python).folders[:1]:
        with contextlib.suppress(OSError):
            names |= {
                name.partition(".")[0] for name in os.listdir(folder) if not name.endswith((".dist-info", ".pth"))
            }
    return tuple(sorted(name for name in names if name.isidentifier()))


def _named_by_pth(folders: list[str]) -> list[str]:
    """Return the folders that .pth files add; a line with code may add others."""
    added: list[Path] = []
    for path in (path for folder in folders for path in Path(folder).glob("*.pth")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            added += [path.parent / line.strip() for line in path.read_text().splitlines() if line.strip()]
    return [str(folder) for folder in added if folder.is_dir()]
