"""Where rapidsmpf's ranks meet: the server of its socket protocol (RRUN_SOCKET_ADDR), which `rrun` has for one node."""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
from collections import Counter
from typing import Self

from hpcml import listeners
from hpcml.node.link.connections import LONGEST_HELLO, Connection, Entrance, Stranger

_VALUE = 1 << 20  # bytes of a value
_TICK = 0.2  # seconds between looks at ranks whose time to wait is over
_AUTH = re.compile(rb"AUTH rank=(\d{1,9}) nranks=(\d{1,9}) token=(\w+)")
_COMMAND = re.compile(rb"(PUT|GET|BARRIER|SYNC)(?: key=(\S+) (?:valuelen|timeout)=(\d{1,9}))?")
_DONE, _LATE, _REFUSED = b"OK\n", b"TIMEOUT\n", b"ERROR only rank 0 may put, and no more than 1 MiB\n"


def token_of(key: bytes) -> str:
    """Return the token of a run by the key that its agents have."""
    return hmac.new(key, b"rapidsmpf", hashlib.sha256).hexdigest()


class _Rank:
    """A rank that has shown the token, and the command that waits for its answer."""

    def __init__(self, connection: Connection, number: int, said: bytes) -> None:
        self.connection, self.number, self.said = connection, number, said
        self.command, self.key, self.size = b"", b"", 0
        self.goal, self.until = 0, 0.0  # of a barrier, how many must have come; of another, when its time is over


class Server:
    """Serve ``size`` ranks at a port of ``address``, in a thread, until the end of the context."""

    def __init__(self, address: str, size: int, token: str) -> None:
        listener = listeners.listen_tcp(listeners.RAPIDSMPF, address, backlog=1024)
        self.size, self.token, self.port = size, token.encode(), int(listener.getsockname()[1])
        self.entrance = Entrance([listener], self._admit, 2 * _VALUE)
        self.ranks: dict[_Rank, None] = {}
        self.values, self.came = dict[bytes, bytes](), Counter[bytes]()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.entrance.stop_accepting()
        self.thread.join()

    def _admit(self, stranger: Stranger, hello: bytes) -> _Rank | None:
        auth = _AUTH.fullmatch(hello)
        if not (auth and hmac.compare_digest(auth[3], self.token) and int(auth[1]) < int(auth[2]) == self.size):
            return None
        rank = _Rank(stranger.connection, int(auth[1]), stranger.said)
        rank.connection.send(_DONE)
        self.ranks[rank] = None
        return rank

    def _serve(self) -> None:
        while not self.over.is_set():
            for rank in self.entrance.wait(_TICK):
                rank.said += rank.connection.receive(_VALUE)
                if len(rank.said) > 2 * _VALUE:
                    rank.connection.end("it did not wait for an answer")
            while sum(map(self._advance, self.ranks)):
                pass  # what one rank has put may be what another waits for
            for rank in [row for row in self.ranks if row.connection.why]:
                del self.ranks[rank]
                self.entrance.drop(rank)
        self.entrance.close()

    def _advance(self, rank: _Rank) -> bool:
        """Begin a rank's next command, and answer it if that is possible; return True if it was answered."""
        if not rank.command and not self._begin(rank):
            return False
        if not (answer := self._answer(rank)):
            return False
        rank.command = b""
        rank.connection.send(answer)
        return True

    def _begin(self, rank: _Rank) -> bool:
        line, newline, rest = rank.said.partition(b"\n")
        if rank.connection.why or not (newline or len(line) >= LONGEST_HELLO):
            return False
        if not (newline and (command := _COMMAND.fullmatch(line))):
            rank.connection.end("it sent a line that is not a command")
            return False
        rank.said, rank.command, rank.key, rank.size = rest, command[1], command[2] or b"", int(command[3] or 0)
        self.came[rank.command] += 1
        rank.goal = -(-self.came[rank.command] // self.size) * self.size
        rank.until = time.monotonic() + rank.size / 1000
        return True

    def _answer(self, rank: _Rank) -> bytes:
        """Return the answer to a rank's command, empty while it has to wait."""
        if rank.command in (b"BARRIER", b"SYNC"):
            return _DONE if self.came[rank.command] >= rank.goal else b""
        if rank.command == b"GET" and rank.key:
            if (value := self.values.get(rank.key)) is not None:
                return b"VALUE valuelen=%d\n%b" % (len(value), value)
            return _LATE if time.monotonic() >= rank.until else b""
        if rank.size > _VALUE:
            return _REFUSED
        if len(rank.said) < rank.size:
            return b""
        value, rank.said = rank.said[: rank.size], rank.said[rank.size :]
        if rank.command != b"PUT" or not rank.key or rank.number:
            return _REFUSED
        self.values[rank.key] = value
        return _DONE
