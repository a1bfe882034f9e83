"""Which packages the Python of a run has, as far as the files of its environment tell: nothing is started."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcml import installed_packages, safe_files
from hpcml.errors import ScriptError
from hpcml.sites import settings_layers

PROVIDED = ("hpcml", "dask_jobqueue", "dask_mpi")  # by the run itself (hpcml.kinds.dask.node.script.replacements)
OLDEST = (3, 11)  # Python that hpcml's modules need
_VERSION = re.compile(r"python(\d+)\.(\d+)t?")
_SETTING = re.compile(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", re.MULTILINE)
_OF_DEBIAN = "/usr"  # the prefix whose packages are in folders of Debian's own
# Lines with code in .pth files that add no modules: of virtualenv, setuptools, coverage and matplotlib.
_HARMLESS = re.compile(r"_virtualenv|distutils-precedence|coverage|matplotlib")


class Environment:
    """Where an interpreter finds modules, as far as its files tell.

    ``readable`` if these folders are known; ``certain`` if nothing else can add to them. ``version`` is None where the
    files do not tell it.
    """

    def __init__(self, python: str) -> None:
        self.python, self.same = python, python == sys.executable
        self.prefix = prefix_of(Path(python))
        settings = safe_files.text(self.prefix / installed_packages.SETTINGS)
        virtual = os.path.lexists(self.prefix / installed_packages.SETTINGS)  # also if it cannot be read
        closed = bool(settings) and "include-system-site-packages = true" not in settings.lower()
        self.version = _version(python, self.prefix, settings)
        self.folders = list(_folders(self.prefix, self.version))
        if self.same:
            self.readable, self.certain = True, closed
            return
        self.readable = bool(self.folders) and (closed or not virtual)
        self.certain = False
        if self.readable:
            environment = settings_layers.process_environment()
            added, code = _named_by_pth(self.folders)
            self.certain = closed and not code
            before = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder]
            of_user = [] if closed or not self.version else _of_user(environment, self.version)
            self.folders += [*added, *before, *of_user]

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

    def lacking(self, names: Sequence[str]) -> list[str]:
        """Return those of some top-level modules that are not there."""
        return [name for name in names if not self.has(name)]

    def hidden(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return those of some modules that folders of PYTHONPATH have in their place, with these folders."""
        from importlib.machinery import PathFinder

        def has(name: str, folder: str) -> bool:
            return PathFinder.find_spec(name, [folder]) is not None

        entries = [
            folder for folder in settings_layers.process_environment().get("PYTHONPATH", "").split(":") if folder
        ]
        own = [folder for folder in self.folders if folder not in entries]
        pairs = [(name, next((folder for folder in entries if has(name, folder)), "")) for name in names]
        return [(name, folder) for name, folder in pairs if folder and any(has(name, place) for place in own)]

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


def prefix_of(python: Path) -> Path:
    """Return the folder of the environment that an interpreter is of; Python itself looks in the same places."""
    prefix = python.parent.parent
    if os.path.exists(prefix / installed_packages.SETTINGS) or os.path.exists(prefix / "conda-meta"):
        return prefix
    return Path(os.path.realpath(python)).parent.parent


def check_packages(names: Sequence[str], python: str, option: str, *, sure: bool = False) -> None:
    """Refuse an option that needs packages, if it is certain that the interpreter does not have one.

    Parameters
    ----------
    sure
        Whether it is certain if the interpreter's own folders do not have it: nobody adds such a package elsewhere.

    Raises
    ------
    ScriptError
        The packages, and how they are added.
    """
    environment = Environment(python)
    missing = environment.lacking(names) if environment.readable and (environment.certain or sure) else []
    if missing:
        message, hint = installed_packages.lacking(python, missing)
        raise ScriptError(f"{message[:1].upper()}{message[1:]}", place=option, hint=f"Nothing was submitted. {hint}")


def modules(python: str) -> tuple[str, ...]:
    """Return the top-level modules in an interpreter's folder for packages, as seen from here; none if not known."""
    names: set[str] = set()
    for folder in Environment(python).folders[:1]:
        with contextlib.suppress(OSError):
            names |= {
                name.partition(".")[0] for name in os.listdir(folder) if not name.endswith((".dist-info", ".pth"))
            }
    return tuple(sorted(name for name in names if name.isidentifier()))


def _version(python: str, prefix: Path, settings: str) -> tuple[int, int] | None:
    """Return the version of an interpreter, from the name of its file, its settings or its folder of modules."""
    match = _VERSION.fullmatch(os.path.basename(os.path.realpath(python))) or _SETTING.search(settings)
    libraries = list(prefix.glob("lib/python3.*")) if match is None else []
    match = match or (_VERSION.fullmatch(libraries[0].name) if len(libraries) == 1 else None)
    return (int(match[1]), int(match[2])) if match else None


def _folders(prefix: Path, version: tuple[int, int] | None) -> Iterator[str]:
    """Yield the folders for packages of a prefix."""
    name = "python3.*" if version is None else f"python{version[0]}.{version[1]}"
    yield from (str(path) for path in prefix.glob(f"lib*/{name}/site-packages"))
    if str(prefix) == _OF_DEBIAN:
        places = [*Path("/usr/local/lib").glob(f"{name}/dist-packages"), Path("/usr/lib/python3/dist-packages")]
        yield from (str(path) for path in places if path.is_dir())


def _of_user(environment: Mapping[str, str], version: tuple[int, int]) -> list[str]:
    """Return the user's own folder for packages, which Pythons outside virtual environments have."""
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    folder = f"{base}/lib/python{version[0]}.{version[1]}/site-packages"
    return [folder] if not environment.get("PYTHONNOUSERSITE") and os.path.isdir(folder) else []  # noqa: PTH112


def _named_by_pth(folders: list[str]) -> tuple[list[str], bool]:
    """Return the folders that .pth files add, and whether a line with code may add others."""
    added: list[Path] = []
    code = False
    for path in (path for folder in folders for path in Path(folder).glob("*.pth")):
        lines = [line.strip() for line in safe_files.text(path).splitlines() if line.strip()]
        added += [path.parent / line for line in lines if not line.startswith("import ")]
        code = code or any(line.startswith("import ") and not _HARMLESS.search(path.name) for line in lines)
    return [str(folder) for folder in added if os.path.exists(folder)], code
