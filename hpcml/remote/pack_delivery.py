"""A file that a laptop puts on the login node, where no hpcml need be; receiver.py takes it in there."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpcml import subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import (
    ConfigError,
    HpcmlError,
    LinkError,
    NotFoundError,
    StorageError,
    UsageError,
)
from hpcml.remote import answers, receiver
from hpcml.remote.login_call import marked_line, patience
from hpcml.remote.ssh import Connection
from hpcml.remote.transfer import Entry, listing, send
from hpcml.units import format_bytes

# Constant, and on one line: the login shell there may be any. What runs is read from standard input.
_READ = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"


class Delivery:
    """What is put somewhere on the login node.

    Parameters
    ----------
    command
        The command that sends it, for errors.
    path
        Where; a relative path begins at the user's home there.
    replace
        Whether an existing file is replaced.
    """

    def __init__(self, connection: Connection, command: str, path: str, *, replace: bool = False) -> None:
        self.connection, self.host, self.command = connection, connection.host, command
        self.path, self.replace = str(PurePosixPath(path)), replace

    def send(self, folder: Path, sent: Callable[[int], None]) -> None:
        """Send the files of a folder, which holds nothing else: they come whole or not at all, for the user alone.

        ``sent`` is called with the number of bytes of each piece.

        Raises
        ------
        UsageError, StorageError
            If they cannot be put there.
        NotFoundError
            If there is no Python 3; LinkError if the link breaks.
        """
        entries = listing(folder)[0]
        with self._asked(entries) as (child, mark), patience(child, self.host) as heard:
            self._answer(child, mark)

            def write(piece: bytes) -> None:
                child.write(piece)
                sent(len(piece))
                heard()

            with contextlib.suppress(OSError):  # the other side has ended: its answer follows
                send(folder, entries, write)
                child.write(receiver.GO)
            self._answer(child, mark)

    @contextlib.contextmanager
    def _asked(self, entries: Sequence[Entry]) -> Iterator[tuple[subprocesses.Child, bytes]]:
        """Start what takes it in, and ask; with the block it ends, and removes what is not in its place."""
        mark, program = secrets.token_hex(8), Path(receiver.__file__).read_bytes()
        files = [(entry.name, entry.size, entry.mode) for entry in entries]
        ask = {"mark": mark, "path": self.path, "replace": self.replace}
        command = ("-IS", "-c", _READ, str(len(program)))
        self.connection.check_shell()  # which would else run the lines of the program
        child = subprocesses.Child(self.connection.python(*command), out=subprocesses.PIPE, program=HPCML)
        try:
            with contextlib.suppress(OSError), patience(child, self.host):
                child.write(program + json.dumps({**ask, "files": files}).encode() + b"\n")
            yield child, mark.encode() + b" "
        finally:
            child.stop()

    def _answer(self, child: subprocesses.Child, mark: bytes) -> dict[str, Any]:
        """Return the next answer; what a shell says as it starts is skipped."""
        assert child.out is not None
        line = marked_line(child.out, mark, answers.LONGEST, self.host)
        if line is None:
            raise self._why(child)
        delivery = answers.of_delivery(line, self.host)
        if "refused" in delivery:
            raise self._refusal(delivery)
        return delivery

    def _refusal(self, answer: dict[str, Any]) -> HpcmlError:
        path, host = self.path, self.host
        if answer["refused"] == "there":
            hint = "Choose another path with -o, or replace the file with --force."
            return UsageError(f"{path} already exists on {host}", place=self.command, hint=hint)
        if answer["refused"] == "folder":
            hint = "Create the folder, or choose another folder with -o."
            hint += f" Relative paths start in your home folder on {host}."
            return StorageError(f"The folder for {path} does not exist on {host}", place=self.command, hint=hint)
        if answer["refused"] == "open":
            hint = "Choose your own folder with -o. "
            hint += "Its parent folders must belong to you or root, and not be group-writable."
            problem = f"Other users may replace files in the folder of {path} on {host}"
            return StorageError(problem, place=self.command, hint=hint)
        hint = f"Free space on {host}, or choose another folder with -o."
        if answer["refused"] == "room":
            why = f"only {format_bytes(answer.get('free', 0))} are free"
            return StorageError(f"There is not enough space for {path} on {host}: {why}", place=self.command, hint=hint)
        why = answer.get("why") or answer["refused"]
        return StorageError(f"{path} cannot be written on {host}: {why}", place=self.command, hint=hint)

    def _why(self, child: subprocesses.Child) -> HpcmlError:
        """Return the error for its end without an answer."""
        code, quote = child.wait(10.0), tuple(child.errors.strip().splitlines()[-3:])
        if not self.connection.alive():
            hint = f"Try again. If hpcml then reports that {self.path} already exists, the file is complete."
            return LinkError(f"The connection to {self.host} was lost", place=self.host, hint=hint, quote=quote)
        if code in (126, 127):
            hint = f"Add python3 to the PATH of your login shell on {self.host}."
            return NotFoundError(f"python3 is not on PATH on {self.host}", place=self.host, hint=hint, quote=quote)
        message = f"{self.host} did not accept the data: python3 exited with status {code}"
        return ConfigError(message, place=self.host, hint=f"Try: ssh {self.host} python3 --version", quote=quote)
