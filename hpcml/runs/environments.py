"""Environments of Python by path and name, also of conda, and who may change one; nothing of them is started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hpcml import installed_packages, safe_files, schedulers
from hpcml.errors import NotFoundError, UsageError, did_you_mean, nearest
from hpcml.runs import directories, packages
from hpcml.runs.packages import Environment
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.settings_layers import user_path

OPTION = "--python"
_OF_A_MACHINE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # folders that each machine has of its own


def find(text: str, here: Path, environment: Mapping[str, str], path_of_job: Callable[[], str] | None = None) -> Path:
    """Return the interpreter that ``--python`` means.

    Parameters
    ----------
    path_of_job
        Returns the PATH on which a program's name is looked for; without it, the environment's.

    Raises
    ------
    NotFoundError
        If there is none.
    UsageError
        If there are several, or it cannot be executed or is too old.
    """
    path = here / user_path(text)
    by_path = [path] if exists(path) else []
    is_name = "/" not in text and not text.startswith((".", "~"))
    by_name = [*_by_name(text, environment)] if is_name else []
    if not (by_path or by_name) and is_name:
        programs = path_of_job() if path_of_job else environment.get("PATH", "")
        by_path = [Path(program)] if (program := shutil.which(text, path=programs)) else []
    candidates = [*by_path, *by_name]
    if len(candidates) > 1:
        hint = f"Write one of these paths: {', '.join(map(str, candidates))}."
        raise UsageError(f"'{text}' means several environments", place=OPTION, hint=hint)
    if not candidates:
        raise _unknown(text, path, is_name, environment)
    return _checked(_interpreter(candidates[0], text), text)


def exists(path: Path) -> bool:
    """Whether a path exists; UsageError if the user may not know."""
    try:
        path.stat()
    except PermissionError as error:
        what, hint = safe_files.denied(path)
        raise UsageError(f"{error.strerror}: {what}", place=OPTION, hint=hint) from error
    except (OSError, ValueError):
        return False
    return True


def _interpreter(path: Path, text: str) -> Path:
    """Return the interpreter of an environment, or the file itself."""
    if not path.is_dir():
        return path
    for folder in (path, path / ".venv"):
        for name in ("python", "python3"):
            if exists(folder / "bin" / name):
                return folder / "bin" / name
    hint = f"Type python3 -m venv {shlex.quote(text)} to create one, or name a folder with bin/python."
    raise NotFoundError("This folder is not a Python environment", place=str(path), hint=hint)


def _checked(python: Path, text: str) -> Path:
    """Refuse an interpreter that certainly cannot run the run's processes."""
    if not stat.S_ISREG(python.stat().st_mode) or not os.access(python, os.X_OK):
        hint = "Name a Python environment's folder, or its bin/python."
        raise UsageError("This file cannot be executed", place=f"{OPTION} {text}: {python}", hint=hint)
    if why := too_old(Environment(str(python))):
        hint = "Create the environment with a newer Python."
        raise UsageError(f"{python} {why}", place=f"{OPTION} {text}", hint=hint)
    return python


def too_old(environment: Environment) -> str:
    """Return a clause if an environment's Python is too old for hpcml, else nothing."""
    if environment.version is None or environment.version >= packages.OLDEST:
        return ""
    has, least = (".".join(map(str, version)) for version in (environment.version, packages.OLDEST))
    return f"is Python {has}, but hpcml needs Python {least} or newer"


def _unknown(text: str, path: Path, is_name: bool, environment: Mapping[str, str]) -> NotFoundError:
    """Return the error that there is no such environment, with the nearest name."""
    names = sorted({path.name for folder in _conda_folders(environment) for path in _listed(folder)})
    hint = did_you_mean(nearest(text, names), "Name a folder with bin/python, or a conda environment.")
    if is_name:
        hint += f" hpcml looked for the folder {path}, a conda environment, and a program on PATH."
    if is_name and names:
        hint += f" Conda environments: {', '.join(names[:8])}."
    return NotFoundError(f"There is no Python environment '{text}'", place=f"{OPTION} {path}", hint=hint)


def _by_name(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the conda environments of a name, each once."""
    roots = [root for root in _conda_roots(environment) if name in ("base", "root")]
    found = [*roots, *(path for folder in _conda_folders(environment) for path in _listed(folder) if path.name == name)]
    yield from dict.fromkeys(Path(os.path.realpath(path)) for path in found)


def _listed(folder: Path) -> list[Path]:
    """Return the conda environments in a folder."""
    try:
        return [path for path in sorted(folder.iterdir()) if os.path.exists(path / "conda-meta")]
    except OSError:
        return []


def _conda_roots(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders where conda itself is installed."""
    path = environment.get("PATH", "")
    programs = [environment.get("CONDA_EXE", ""), *(shutil.which(name, path=path) for name in ("conda", "mamba"))]
    roots = [Path(os.path.realpath(program)).parent.parent for program in programs if program]
    roots += [Path(environment[name]) for name in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environment.get(name)]
    marks = ("conda-meta", "envs")
    return list(dict.fromkeys(root for root in roots if any(os.path.exists(root / mark) for mark in marks)))


def _conda_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which conda keeps environments, also those of its settings."""
    home = Path(environment.get("HOME", "/"))
    folders = [root / "envs" for root in _conda_roots(environment)]
    words = [*environment.get("CONDA_ENVS_PATH", "").split(":"), *environment.get("CONDA_ENVS_DIRS", "").split(":")]
    own = safe_files.text(home / ".condarc")
    listed = re.search(r"^envs_dirs:\s*\n((?:\s*-\s*.+\n?)+)", own, re.MULTILINE)
    words += [line.strip(" -'\"\t") for line in listed[1].splitlines()] if listed else []
    folders += [user_path(os.path.expandvars(word)) for word in words if word]
    named = safe_files.text(home / ".conda" / "environments.txt").splitlines()
    folders += [Path(line.strip()).parent for line in named if line.strip()]
    return list(dict.fromkeys([*folders, home / ".conda" / "envs"]))


def who_may_change(python: Path) -> str:
    """Return the other account that may change an interpreter, a clause; empty if only this user, root or hpcml's."""
    try:
        real, settings = Path(os.path.realpath(python)), python.parent.parent / installed_packages.SETTINGS
        own = [settings] if os.path.lexists(settings) else []  # else a link may lead to the Python of another folder
        folders = [*(settings if own else real.parent).parent.glob("lib*/python3*/site-packages")]  # files there run
        for path in (real, *own, *folders):
            status = path.stat()
            if not safe_files.is_obeyed(status):
                return f"{path} belongs to {safe_files.account(status.st_uid)}"
            if who := safe_files.written_by_others(status, path):
                return f"{who} can write to {path}"
        for place in (place for path in (python, *folders) for place in safe_files.replaceable(path)):
            if not place.meant and not place.unknown:
                return f"{place.who} can replace files in {place.path}"
    except OSError as error:
        return f"{error.filename or python} cannot be read ({error.strerror})"
    return ""


def away_from_nodes(python: Path, loaded: LoadedSite) -> str:
    """Return a clause if the nodes do not have an interpreter; empty if they may have it."""
    if schedulers.get(loaded.site.scheduler).ONE_MACHINE:
        return ""
    runs = directories.runs_folder(
        loaded.site.paths.runs, settings_layers.process_environment()
    )  # which the nodes have
    for path in dict.fromkeys((python.parent.parent, Path(os.path.realpath(python)))):
        for folder in _OF_A_MACHINE:
            if path.is_relative_to(folder) and not runs.is_relative_to(folder):
                return f"{path} is in {folder}, which every node has of its own"
    return ""
