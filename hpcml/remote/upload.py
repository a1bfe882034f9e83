"""What a laptop sends with a call of the login node's hpcml: a copy of the script and the files around it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from hpcml.remote import fetched
from hpcml.remote.transfer import Entry, listing
from hpcml.runs.snapshot import take
from hpcml.sites.schema import Code


class Upload:
    """The script and the small files around it, copied as a run's snapshot is, ready to be sent.

    Parameters
    ----------
    folder
        An empty folder of the laptop's, for the copy.
    module
        Whether ``script`` is a folder and the name of a module in it.
    root
        The folder of the project that is sent instead of the script's own; empty: the script's.

    Raises
    ------
    NotFoundError, UsageError
        If the script cannot run; StorageError if it cannot be read or copied.
    """

    def __init__(self, script: Path, folder: Path, code: Code, *, module: bool = False, root: str = "") -> None:
        self.script, self.folder = script.name, folder
        self.place = {"script": script.name}  # what the other end is told
        if root:
            here, own = Path.cwd().resolve(), script.relative_to(root)
            cwd = here.relative_to(root) if here.is_relative_to(root) else own.parent
            self.place = {"script": str(own), "cwd": str(cwd)}
        self.source = f"{socket.gethostname()}:{script.parent}"  # by which the other end knows a folder again
        self.taken = take(script, folder, code, linked=False, module=module, root=root, without=fetched.folders())
        self.entries: list[Entry] = listing(folder)[0]
        tree = list(os.walk(folder))  # an empty folder may be where a script writes
        self.folders = [os.path.relpath(top, folder) for top, folders, names in tree[1:] if not (folders or names)]
        self.size = sum(entry.size for entry in self.entries)


def unsent(arguments: Sequence[str], here: Path, sent: Sequence[Entry]) -> list[str]:
    """Return the script's arguments that name something on this laptop which the run will not find by that name.

    The run begins in its copy of the script's folder, so a file that was sent is found there by its relative name.
    """
    names = {entry.name for entry in sent}
    names |= {"/".join(name.split("/")[:end]) for name in names for end in range(1, name.count("/") + 1)}
    missing = []
    for argument in arguments:
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        if not name or name in (".", "..", "/"):
            continue
        with contextlib.suppress(OSError, ValueError):  # too long for a name, or with a zero byte: it names no file
            path = here / name
            if path.exists() and (Path(name).is_absolute() or str(Path(name)) not in names):
                missing.append(argument)
    return missing
