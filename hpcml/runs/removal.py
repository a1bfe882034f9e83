"""Remove runs: which of them have ended for good, what each takes, and its directory without following a link."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path

from hpcml import files
from hpcml.errors import StorageError
from hpcml.runs import directories

_LEFT = re.compile(r"\.(?P<run>.+)\.[0-9a-f]{16}\.(?P<end>removed|new)")
_NEW_FOR = 86400  # seconds for which a directory that was not finished may be a submission's that goes on
_OTHERS = 1000  # times that another command may be the first to remove something


def size(directory: Path) -> int:
    """Return the bytes that a run's directory takes; links are not followed, and what cannot be read is left out."""
    total = 0
    for _, _, names, folder in os.fwalk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another command removes it
                total += os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
    return total


def leftovers(folder: Path) -> list[tuple[str, Path]]:
    """Return what is left of runs of this user's, by their ids: a removal or a submission was killed half-way."""
    with directories.storage(folder):
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
    found = []
    for name in names:
        match, path = _LEFT.fullmatch(name), folder / name
        if not match or directories.submitted_at(match["run"]) is None or not files.is_own_folder(path):
            continue
        with contextlib.suppress(FileNotFoundError):  # it is gone by now
            if match["end"] == "removed" or path.stat().st_ctime < time.time() - _NEW_FOR:
                found.append((match["run"], path))
    return found


def remove_folder(directory: Path) -> None:
    """Remove the directory of a run, and all that is in it; what links in it lead to stays.

    It is renamed first, so that no other command sees half of a run.

    Raises
    ------
    StorageError
        If it is not this user's folder, or something in it cannot be removed.
    """
    going = directory.with_name(f".{directory.name}.{os.urandom(8).hex()}.removed")
    with directories.storage(directory):
        if not files.is_own_folder(directory):
            hint = "Look at it, and remove it yourself."
            raise StorageError("The run's folder is not yours, or is a link", place=str(directory), hint=hint)
        directory.rename(going)
    remove_leftover(going)


def remove_leftover(directory: Path) -> None:
    """Remove what is left of a run; StorageError if something in it cannot be removed."""
    for _ in range(_OTHERS):
        try:
            _open_to_us(directory)
            shutil.rmtree(directory)
        except FileNotFoundError:  # another command removes it too
            pass
        except OSError as error:
            hint = f"Remove the rest yourself: {directory}."
            message = f"Not all of the run could be removed: {error.strerror}"
            raise StorageError(message, place=str(error.filename), hint=hint) from error
        if not os.path.lexists(directory):
            return


def _open_to_us(directory: os.PathLike[str]) -> None:
    """Let this user write to the folders below one, as a script may have forbidden."""
    for _, _, _, folder in os.fwalk(directory):
        facts = os.fstat(folder)
        if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(folder, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU)
