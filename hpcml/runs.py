"""Run records: make a run's directory whole or not at all, list the runs, find one by what the user calls it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import contextmanager
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml import assets, units
from hpcml.errors import NotFoundError, StorageError
from hpcml.layout import RunPaths
from hpcml.sites import Code

_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk: its id, its files and what submission.json says of how it was handed over."""

    id: str
    paths: RunPaths
    submission: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name: its id without date, time and number."""
        return self.id.rsplit("-", 3)[0]

    @property
    def job(self) -> str:
        """Slurm's job id, empty on the local site and before the submission."""
        return str(self.submission.get("job", ""))


def runs_folder(setting: str, environment: Mapping[str, str]) -> Path:
    """Return the folder that holds all runs, with ``~`` and ``$VARIABLES`` of the setting replaced.

    Raises
    ------
    StorageError
        If a variable in it is not set, or the path is not absolute.
    """
    text = setting
    for name, value in sorted(environment.items(), key=lambda item: -len(item[0])):
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    if text.startswith("~/"):
        text = f"{environment.get('HOME', '')}/{text[2:]}"
    folder = Path(text)
    if "$" in text or not folder.is_absolute():
        hint = "Set it to an absolute path that all nodes share."
        raise StorageError(f"The folder for runs is not an absolute path: '{text}'", place="paths.runs", hint=hint)
    return folder


def new_id(name: str) -> str:
    """Return a new run id: name, UTC date and time, four hexadecimal digits."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn what can go wrong with files below a path into a StorageError that names it."""
    try:
        yield
    except OSError as error:
        place = str(error.filename or path)
        hints = {
            28: "The file system is full: free some space, or keep runs elsewhere (--set paths.runs=…).",
            122: "Your quota is used up: free some space, or keep runs elsewhere (--set paths.runs=…).",
        }
        hint = hints.get(error.errno or 0, "Choose another folder for runs with --set paths.runs=….")
        raise StorageError(f"The run's directory cannot be used: {error.strerror}", place=place, hint=hint) from error


def create(directory: Path, files: Mapping[str, str]) -> RunPaths:
    """Make a run's directory (0700) with the given files; on failure nothing of it is left.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    paths = RunPaths(directory)
    with storage(directory):
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        try:
            for folder in (paths.logs, paths.out, paths.library, paths.code):
                folder.mkdir(mode=0o700)
            for name, text in files.items():
                write(directory / name, text)
            _copy_library(paths.library)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return paths


def _copy_library(target: Path) -> None:
    """Copy the modules that run on the nodes, with their compiled forms where this interpreter has them."""
    root = assets.package_root()
    made: set[Path] = set()
    for file in assets.node_side():
        compiled = file.parent / "__pycache__"
        for folder in (file.parent, compiled):
            if folder not in made:
                (target / folder).mkdir(parents=True, exist_ok=True)
                made.add(folder)
        shutil.copy2(root / file, target / file)
        for cache in (root / compiled).glob(f"{file.stem}.*.pyc"):
            shutil.copy2(cache, target / compiled / cache.name)


def write(path: Path, text: str) -> None:
    """Write a file of the run in one rename, for the user alone."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.rename(path)


def write_json(path: Path, facts: object) -> None:
    """Write a JSON file of the run."""
    write(path, json.dumps(facts, indent=1, default=str) + "\n")


def snapshot(script: Path, target: Path, code: Code) -> str:
    """Copy the script, and the small files around it, so that an edit after submission does not change the run.

    Returns
    -------
    str
        What was left out, in words; empty if everything was copied.

    Raises
    ------
    StorageError
        If a file cannot be read or written.
    """
    with storage(script):
        shutil.copy2(script, target / script.name)
        if code.snapshot == "script":
            return ""
        largest, total = units.parse_memory(code.max_file), units.parse_memory(code.max_total)
        chosen, left_out = _small_files(script.parent, largest, code.max_files)
        if chosen is None or sum(size for _, size in chosen) > total:
            chosen = [(path, path.stat().st_size) for path in sorted(script.parent.glob("*.py"))][: code.max_files]
            left_out = f"{script.parent} is large: only its *.py files were copied (code.max_files, code.max_total)"
        for path, _ in chosen:
            copy = target / path.relative_to(script.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        return left_out


def _small_files(folder: Path, largest: int, most: int) -> tuple[list[tuple[Path, int]] | None, str]:
    """Return the regular files below a folder that are small and not hidden; None when there are too many."""
    found: list[tuple[Path, int]] = []
    big = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS
            and not (Path(place) / name / "pyvenv.cfg").exists()
        ]  # fmt: skip
        for name in names:
            path = Path(place) / name
            if name.startswith(".") or not path.is_file() or path.is_symlink():
                continue
            size = path.stat().st_size
            if size > largest:
                big += 1
            else:
                found.append((path, size))
        if len(found) > most:
            return None, ""
    return found, f"{big} files beside the script are larger than code.max_file and were not copied" if big else ""


def load(directory: Path) -> Run:
    """Return the run in a directory.

    Raises
    ------
    StorageError
        If its record cannot be read.
    """
    paths = RunPaths(directory)
    return Run(directory.name, paths, read_json(paths.submission) or {})


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON file of a run, None if it is not there.

    Raises
    ------
    StorageError
        If it cannot be read or is not JSON.
    """
    with storage(path):
        try:
            facts: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StorageError(f"The file is not valid JSON: {error}", place=str(path)) from error
    return facts


def every(folder: Path) -> list[Run]:
    """Return all runs, oldest first."""
    if not folder.is_dir():
        return []
    with storage(folder):
        found = [path for path in folder.iterdir() if (path / "plan.json").exists()]
        return [load(path) for path in sorted(found, key=lambda path: path.name.rsplit("-", 3)[1:])]


def find(folder: Path, word: str) -> Run:
    """Return the run that the user means: a run id, its beginning, a name (the newest), a job id, or ``last``.

    Raises
    ------
    NotFoundError
        If there is none, or several begin so.
    """
    runs = every(folder)
    if not runs:
        hint = "Submit one: hpcml submit SCRIPT."
        raise NotFoundError("There are no runs", place=str(folder), hint=hint)
    if word == "last":
        return runs[-1]
    for matches in (
        [run for run in runs if run.id == word],
        [run for run in runs if word.isdigit() and run.job == word],
        [run for run in runs if run.name == word][-1:],
        [run for run in runs if run.id.startswith(word)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(run.id for run in matches[-4:])
            raise NotFoundError(f"Several runs begin with '{word}'", place=str(folder), hint=f"One of: {names}.")
    raise NotFoundError(f"There is no run '{word}'", place=str(folder), hint="List them with: hpcml ls.")
