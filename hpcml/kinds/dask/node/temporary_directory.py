"""Where Dask has its temporary files: the place that the user chose, and the folder of a cluster in this program."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from hpcml.node import scratch
from hpcml.node.context import Context

_REMOVE_AFTERWARDS = """
read -r nothing
for attempt in 1 2 3 4 5; do rm -rf -- "$1" 2>/dev/null && exit; sleep 1; done
"""


def chosen(otherwise: str) -> str:
    """Return the folder that the user set in Dask for temporary files, another if it is no good or there is none.

    A wrong one is said, and does not end a run: it may be meant for another machine.
    """
    import dask.config

    if not (folder := str(dask.config.get("temporary-directory", None) or "")):
        return otherwise
    reason = scratch.why_not(folder)
    if not reason and os.access(folder, os.W_OK | os.X_OK):
        return folder
    reason = reason or f"you have no permission to write to {folder}"
    print(f"hpcml: Dask's temporary-directory (DASK_TEMPORARY_DIRECTORY) is not used: {reason}.", file=sys.stderr)
    return otherwise


def of_role(context: Context) -> str:
    """Return the place of a role's folder for Dask's files: the profile's place, Dask's own, or the system's."""
    otherwise = context.scratch()
    return otherwise if context.settings.job.scratch else chosen(otherwise)


class _Remover:
    """A shell that waits for the end of this process, in whatever way it ends, and removes a folder then."""

    def __init__(self, folder: Path) -> None:
        self._owner = os.getpid()
        self._shell = subprocess.Popen(
            ["sh", "-c", _REMOVE_AFTERWARDS, "sh", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the shell: the folder is gone."""
        if os.getpid() == self._owner:  # a fork of the owner's has no say
            self._shell.kill()
            self._shell.communicate()


def of_cluster(cluster: object, place: str = "") -> tuple[Path, Callable[[], object]]:
    """Make the folder of a Dask cluster in this program, and sweep its place; return it and what removes it.

    It is removed with the cluster at the latest, or with this process, in whatever way that ends. An UnsafePlaceError
    as :class:`hpcml.node.scratch.Folder`.
    """
    place = place or chosen(tempfile.gettempdir())
    folder = scratch.Folder(place)
    threading.Thread(target=scratch.sweep, args=(place,), name="hpcml-sweep", daemon=True).start()
    remover = _Remover(folder.path)

    def remove() -> None:
        folder.remove()
        remover.close()

    return folder.path, weakref.finalize(cluster, remove)  # at the interpreter's exit too
