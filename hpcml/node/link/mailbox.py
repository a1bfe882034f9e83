"""The way of an agent that cannot connect: lines of JSON in files, which one end appends and the other reads.

Only the user can enter the run's directory, so what is written there is the run's own.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

_AT_ONCE = 1 << 20  # bytes that are read at a time
_EVENTS, _ORDERS = ".events", ".orders"  # how the names of a node's files end


class Mailbox:
    """A file of messages: this end appends to it, or reads it."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.unwritten = path, 0, b""

    def append(self, *messages: object) -> None:
        """Append messages; what a full disk does not take waits for the next call."""
        self.unwritten += b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        if not self.unwritten:
            return
        with contextlib.suppress(OSError):
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                self.unwritten = self.unwritten[os.write(file, self.unwritten) :]
            finally:
                os.close(file)

    def receive(self) -> list[dict[str, Any]]:
        """Return the whole messages that came since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                text = file.read(_AT_ONCE)
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read += len(whole)
        messages = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # somebody edited the file
                messages.append(dict(json.loads(line)))
        return messages


class Mailboxes(NamedTuple):
    """The two files of a node, as one end has them."""

    out: Mailbox
    into: Mailbox

    @classmethod
    def of_agent(cls, folder: Path, node: str) -> Mailboxes:
        """Return those of a node as its agent has them."""
        return cls(Mailbox(folder / f"{node}{_EVENTS}"), Mailbox(folder / f"{node}{_ORDERS}"))

    @classmethod
    def of_supervisor(cls, folder: Path, node: str) -> Mailboxes:
        """Return those of a node as the supervisor has them."""
        return cls(Mailbox(folder / f"{node}{_ORDERS}"), Mailbox(folder / f"{node}{_EVENTS}"))


def nodes_that_write(names: set[str]) -> set[str]:
    """Return the nodes whose agents write events, by the names in the folder."""
    return {name.removesuffix(_EVENTS) for name in names if name.endswith(_EVENTS)}
