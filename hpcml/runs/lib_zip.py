"""One file of hpcml's modules for the nodes for all runs of a folder that have the same: each has a hard link to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml import node_archive, safe_files
from hpcml.paths import RunPaths

_MODE = 0o400  # a script that writes into its run's file would change those of the other runs


def put(library: Path, folder: Path, like: RunPaths | None = None) -> None:
    """Give a run its modules for the nodes: a link to the file that the runs of a folder share, else a file of its own.

    The shared file's name has its digest, so another version, or a changed checkout, has another file. It is made if
    there is none, and again if it is damaged, somebody else's, or has as many links as there may be. ``like``: a run
    that this process has just made, if there is one; its file needs no second look.
    """
    if like:
        with contextlib.suppress(OSError):
            library.hardlink_to(like.library)
            return
    archive = node_archive.node_archive()
    shared = folder / f".lib-{os.geteuid()}-{node_archive.seal(archive)}.zip"
    if _link(library, shared, archive):
        return
    safe_files.write(library, archive, _MODE)
    with contextlib.suppress(OSError):  # a file system without hard links, or a folder is in the way
        try:
            shared.hardlink_to(library)
        except FileExistsError:
            if not _link(library, shared, archive):  # else another submission was first
                shared.unlink()
                shared.hardlink_to(library)
        drop_unused(folder)  # of versions that no run has


def _link(library: Path, shared: Path, archive: bytes) -> bool:
    """Put a link to the shared file in a run's place, and return True if that was possible and right.

    The file must be this user's or of the account that installed hpcml, nobody else may write to it, and it must have
    the archive's bytes. It is looked at again after the link, because another file may have its name by then.
    """
    new = safe_files.beside(library)
    with contextlib.suppress(OSError):
        if safe_files.read(shared, len(archive), obeyed=True) != archive:
            return False
        new.hardlink_to(shared)
        if safe_files.read(new, len(archive), obeyed=True) == archive:
            new.rename(library)
            return True
    with contextlib.suppress(OSError):
        new.unlink()
    return False


def unused_without(folder: Path, directories: Sequence[Path] = ()) -> Iterator[tuple[Path, int]]:
    """Yield this user's shared files that no run has but those in some directories, with the bytes that each takes."""
    links: dict[tuple[int, int], int] = {}
    for directory in directories:
        with contextlib.suppress(OSError):
            status = os.lstat(RunPaths(directory).library)
            links[status.st_dev, status.st_ino] = links.get((status.st_dev, status.st_ino), 0) + 1
    for shared in folder.glob(".lib-*.zip"):
        with contextlib.suppress(OSError):
            status = os.lstat(shared)
            if status.st_uid == os.geteuid() and status.st_nlink - links.get((status.st_dev, status.st_ino), 0) == 1:
                yield shared, status.st_blocks * 512


def drop_unused(folder: Path) -> None:
    """Remove this user's shared files that no run has any more; a submission that wants one again makes it again."""
    for shared, _ in unused_without(folder):
        with contextlib.suppress(OSError):
            shared.unlink()
