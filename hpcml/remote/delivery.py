"""A file sent to the login node over the shared ssh connection; it needs a Python 3 there, and no hpcml."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpcml import subprocesses
from hpcml.errors import ConfigError, HpcmlError, LinkError, NotFoundError, StorageError, UsageError
from hpcml.remote import answers, channel, receiver, transfer
from hpcml.remote.ssh import Connection
from hpcml.remote.transfer import Entry
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
        Whether a file that is there is replaced.
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
        entries = transfer.listing(folder)[0]
        with self._asked(entries) as (child, mark), channel.patience(child, self.host) as heard:
            self._answer(child, mark)

            def write(piece: bytes) -> None:
                child.write(piece)
                sent(len(piece))
                heard()

            with contextlib.suppress(OSError):  # the other side has ended: its answer follows
                transfer.send(folder, entries, write)
                child.write(receiver.GO)
            self._answer(child, mark)

    @contextlib.contextmanager
    def _asked(self, entries: Sequence[Entry]) -> Iterator[tuple[subprocesses.Child, bytes]]:
        """Start what takes it in, and ask; with the block it ends, and removes what is not in its place."""
        mark, program = secrets.token_hex(8), Path(receiver.__file__).read_bytes()
        files = [(entry.name, entry.size, entry.mode) for entry in entries]
        ask = {"mark": mark, "path": self.path, "replace": self.replace}
        words = ("-IS", "-c", _READ, str(len(program)))
        child = subprocesses.Child(self.connection.python(*words), out=subprocesses.PIPE)
        try:
            with contextlib.suppress(OSError), channel.patience(child, self.host):
                child.write(program + json.dumps({**ask, "files": files}).encode() + b"\n")
            yield child, mark.encode() + b" "
        finally:
            child.stop()

    def _answer(self, child: subprocesses.Child, mark: bytes) -> dict[str, Any]:
        """Return the next answer; what a shell says as it starts is skipped."""
        assert child.out is not None
        line = channel.marked_line(child.out, mark, answers.LONGEST, self.host)
        if line is None:
            raise self._why(child)
        facts = answers.of_delivery(line, self.host)
        if "refused" in facts:
            raise self._refusal(facts)
        return facts

    def _refusal(self, facts: dict[str, Any]) -> HpcmlError:
        path, host = self.path, self.host
        if facts["refused"] == "there":
            hint = "Name another with -o, or give --force."
            return UsageError(f"{path} is there already on {host}", place=self.command, hint=hint)
        if facts["refused"] == "folder":
            hint = "Make it there, or name another place with -o: a relative one begins at your home there."
            return StorageError(f"There is no folder for {path} on {host}", place=self.command, hint=hint)
        if facts["refused"] == "open":
            hint = "Name a folder of yours with -o, below folders of yours or root's that no group may write to."
            what = f"Others may replace what is in the folder of {path} on {host}"
            return StorageError(what, place=self.command, hint=hint)
        hint = "Make room there, or name another place with -o."
        if facts["refused"] == "room":
            why = f"{format_bytes(facts.get('free', 0))} are free"
            return StorageError(f"There is no room for {path} on {host}: {why}", place=self.command, hint=hint)
        why = facts.get("why") or facts["refused"]
        return StorageError(f"{path} cannot be written on {host}: {why}", place=self.command, hint=hint)

    def _why(self, child: subprocesses.Child) -> HpcmlError:
        """Return why it ended without an answer."""
        code, quote = child.wait(10.0), tuple(child.errors.strip().splitlines()[-3:])
        if not self.connection.alive():
            hint = f"Try again. If {self.path} is said to be there already, it is whole."
            return LinkError(f"The connection to {self.host} is gone", place=self.host, hint=hint, quote=quote)
        if code in (126, 127):
            hint = "Have it on the PATH of a login shell there."
            return NotFoundError(f"There is no python3 on {self.host}", place=self.host, hint=hint, quote=quote)
        message = f"What is sent was not taken in on {self.host}: python3 ended with status {code}"
        return ConfigError(message, place=self.host, hint=f"Try: ssh {self.host} python3 --version", quote=quote)
