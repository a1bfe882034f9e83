"""Remove runs: which of them have ended for good, what each takes, and its directory without following a link."""

from __future__ import annotations

import os
import shutil
import stat

from hpcml import files
from hpcml.errors import StorageError
from hpcml.runs import directories


def size(run: directories.Run) -> int:
    """Return the bytes that a run's directory takes; links are not followed, and what cannot be read is left out."""
    total = 0
    for _, _, names, folder in os.fwalk(run.paths.directory):
        for name in names:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            total += facts.st_blocks * 512
    return total


def remove(run: directories.Run) -> None:
    """Remove a run's directory and all that is in it; what links in it lead to stays.

    It is renamed first, so that no other command sees half of a run.

    Raises
    ------
    StorageError
        If it is not this user's folder, or something in it cannot be removed.
    """
    directory = run.paths.directory
    going = directory.with_name(f".{directory.name}.{os.urandom(8).hex()}.removed")
    with directories.storage(directory):
        if not files.is_own_folder(directory):
            hint = "Look at it, and remove it yourself."
            raise StorageError("The run's folder is not yours, or is a link", place=str(directory), hint=hint)
        directory.rename(going)
        try:
            _open_to_us(going)
            shutil.rmtree(going)
        except OSError as error:
            hint = f"Remove the rest yourself: {going}."
            message = f"Not all of the run could be removed: {error.strerror}"
            raise StorageError(message, place=str(error.filename), hint=hint) from error


def _open_to_us(directory: os.PathLike[str]) -> None:
    """Let this user write to the folders below one, as a script may have forbidden."""
    for _, _, _, folder in os.fwalk(directory):
        facts = os.fstat(folder)
        if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(folder, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU)
