"""Copy the script and the small files around it, so that an edit after the submission does not change the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpcml import units
from hpcml.runs import storage
from hpcml.schema import Code

_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
_LOOKED_AT = 10  # times code.max_files: a folder with more than that is not walked to its end


class _TooMuchError(Exception):
    """The folder holds more than a snapshot may."""


def take(script: Path, target: Path, code: Code) -> str:
    """Copy the script, and the small files around it, into the run's folder for code.

    Hidden files and folders, virtual environments and what Python compiled are no code; links to files become
    files, links to folders are not followed.

    Returns
    -------
    str
        What was left out, in words; empty if everything was copied.

    Raises
    ------
    StorageError
        If the script cannot be read, or the run's directory not be written.
    """
    with storage(target):
        shutil.copy2(script, target / script.name)
        if code.snapshot == "script":
            return ""
        folder = script.parent
        left_out: dict[str, int] = {}
        try:
            chosen = list(_small_files(folder, code, left_out))
        except _TooMuchError:
            left_out = {
                f"all of {folder} but its *.py files, which holds more than code.max_files or code.max_total": 0
            }
            chosen = [path for path in sorted(folder.glob("*.py")) if path.is_file()][: code.max_files]
        for path in chosen:
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(path, copy)
            except PermissionError:
                _count(left_out, "that cannot be read")
        return "; ".join(f"{count} files {why}" if count else why for why, count in left_out.items())


def _count(left_out: dict[str, int], why: str) -> None:
    left_out[why] = left_out.get(why, 0) + 1


def _small_files(folder: Path, code: Code, left_out: dict[str, int]) -> Iterator[Path]:
    """Yield the files below a folder that belong to a snapshot.

    Raises
    ------
    _TooMuchError
        If they are too many or too large together.
    """
    largest, room = units.parse_memory(code.max_file), units.parse_memory(code.max_total)
    found = 0
    for looked_at, entry in enumerate(_visible_files(folder, left_out)):
        size = entry.stat().st_size
        if size > largest:
            _count(left_out, "larger than code.max_file")
        else:
            found, room = found + 1, room - size
            yield Path(entry.path)
        if found > code.max_files or looked_at > _LOOKED_AT * code.max_files or room < 0:
            raise _TooMuchError


def _visible_files(folder: Path, left_out: dict[str, int]) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a folder, walking neither into what is no code nor through links."""
    waiting = [str(folder)]
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        except PermissionError:
            _count(left_out, "or folders that cannot be read")
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_file():
                yield entry
            elif entry.is_dir() and entry.is_symlink():
                _count(left_out, "that are links to folders")
            elif entry.is_dir() and not _is_no_code(entry):
                waiting.append(entry.path)


def _is_no_code(folder: os.DirEntry[str]) -> bool:
    return folder.name in _SKIPPED_FOLDERS or os.path.exists(f"{folder.path}/pyvenv.cfg")
