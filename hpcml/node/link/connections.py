"""Connections at a listener: strangers, who have little room and little time, and peers, who have shown a secret.

Nothing that a stranger sends raises an error here. Neither a stranger nor a peer that does not read blocks anything.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from hpcml.node.process_helpers import raise_file_limit, readable

HELLO = 5.0  # seconds that a new connection has to show the secret, for the whole of its hello
MOST_STRANGERS = 1024  # connections that have not shown it; the oldest gives way
SHARE_OF_FILES = 4  # the part of the process's open files that they may be
LONGEST_HELLO = 512  # bytes
UNREAD = 30.0  # seconds that a peer may read nothing of what waits for it
_AT_ONCE = 64  # connections that are accepted between two looks at the others
_PAUSE = 0.5  # seconds for which a listener rests where this machine has no room for a connection
_CHECKED = 1.0  # seconds between two looks for peers that do not read
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Connection:
    """A connection that never blocks: what the other end does not read waits, up to ``most`` bytes.

    ``why`` is the reason for which it was ended, a clause about the other end; empty while it is open.
    """

    def __init__(self, connection: socket.socket, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.socket, self.most, self.now = connection, most, now
        self.unsent, self.unread_since, self.why = b"", 0.0, ""
        self.selector: selectors.BaseSelector | None = None  # that is to say when the other end reads again
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it has gone already, as the first look shows
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, data: bytes) -> None:
        """Send bytes behind those that wait; the connection ends if too many do."""
        if self.why:
            return
        if len(self.unsent) + len(data) > self.most:
            self.end("it does not read what is sent to it")
            return
        if not self.unsent:
            self.unread_since = self.now()
        self.unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as that is possible now."""
        if not self.unsent or self.why:
            return
        try:
            sent = self.socket.send(self.unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        if sent:
            self.unsent, self.unread_since = self.unsent[sent:], self.now()
        elif self.now() - self.unread_since > UNREAD:
            self.end(f"it has read nothing for {UNREAD:g} s")
        if self.selector:
            data = self.selector.get_key(self.socket).data
            self.selector.modify(self.socket, _READ | _WRITE if self.unsent else _READ, data)

    def receive(self, most: int) -> bytes:
        """Return the bytes that have arrived, at most so many; if there can be no more, ``why`` says so."""
        try:
            data = self.socket.recv(most)
        except BlockingIOError:
            return b""
        except OSError as error:
            self.end(error.strerror or str(error))
            return b""
        if not data:
            self.end("it closed the connection")
        return data

    def end(self, why: str) -> None:
        """End the connection for a reason, of which the first counts; a selector shows it as readable then."""
        self.why = self.why or why
        with contextlib.suppress(OSError):  # the other end has gone
            self.socket.shutdown(socket.SHUT_RDWR)


class Stranger:
    """A connection that has not shown the secret."""

    def __init__(self, connection: Connection, greeting: bytes) -> None:
        self.connection, self.greeting, self.said = connection, greeting, b""
        self.since, self.began = time.monotonic(), time.time()
        connection.send(greeting)


class Peer(Protocol):
    """Who has shown the secret."""

    connection: Connection


P = TypeVar("P", bound=Peer)


class Entrance(Generic[P]):
    """Some listeners with all of their connections, in one selector.

    A stranger gets :data:`HELLO` seconds for one line. Of too many the oldest goes, not the newest: who has the secret
    needs milliseconds. What has arrived of it is read before.

    Parameters
    ----------
    admit
        Returns the peer that a stranger is by its line (bytes that came behind it are in ``said``), None if it is none.
    most
        How many bytes may wait for a peer.
    greet
        Returns the first bytes that a stranger gets.

    One thread calls :meth:`wait`. Others may use the connections while they hold ``lock``.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        admit: Callable[[Stranger, bytes], P | None],
        most: int,
        greet: Callable[[], bytes] = bytes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.listeners, self.admit, self.most, self.greet, self.now = listeners, admit, most, greet, now
        self.lock = threading.RLock()
        raise_file_limit()
        self.room = min(MOST_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE_OF_FILES)
        self.selector = selectors.DefaultSelector()
        self.strangers: dict[Stranger, None] = {}  # the oldest first
        self.resting: dict[socket.socket, float] = {}  # until when, in seconds of time.monotonic
        self.next_check = 0.0
        for listener in listeners:
            listener.setblocking(False)
            self.selector.register(listener, _READ)

    def close(self) -> None:
        """Close all."""
        with self.lock:
            for key in list(self.selector.get_map().values()):
                if key.data is not None:
                    self._close(key.data.connection)
            for listener in self.listeners:
                listener.close()
            self.selector.close()

    def stop_accepting(self) -> None:
        """From another thread, which may be too late: refuse new connections, and end :meth:`wait`."""
        with self.lock:
            for listener in self.listeners:
                if listener.fileno() >= 0:
                    listener.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float, others: Sequence[int] = ()) -> list[P]:
        """Return the peers that are new, that have sent something or whose connection ended; wait for the first.

        Open files of ``others`` end the wait too, when they can be read.
        """
        if others:
            readable([self.selector.fileno(), *others], timeout)
            timeout = 0.0
        events = self.selector.select(timeout)
        with self.lock:
            return self._handle(events)

    def _handle(self, selected: list[tuple[selectors.SelectorKey, int]]) -> list[P]:
        ready: dict[P, None] = {}
        busy: list[socket.socket] = []
        for key, events in selected:
            if key.data is None:
                busy.append(key.fileobj)  # type: ignore[arg-type]
            elif isinstance(key.data, Stranger):
                self._hear(key.data, ready)
            else:
                if events & _WRITE:
                    key.data.connection.flush()
                if events & _READ or key.data.connection.why:
                    ready[key.data] = None
        for listener in busy:
            self._accept(listener, ready)
        self._check(ready)
        return list(ready)

    def drop(self, peer: P) -> None:
        """Forget a peer, and close its connection."""
        self._close(peer.connection)

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):  # closed before
            self.selector.unregister(connection.socket)
        connection.selector = None
        connection.why = connection.why or "this end was closed"
        connection.socket.close()

    def _accept(self, listener: socket.socket, ready: dict[P, None]) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted = listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # who called has gone already
                if not self.strangers:
                    self.selector.unregister(listener)
                    self.resting[listener] = time.monotonic() + _PAUSE
                    return
                self._turn_away(next(iter(self.strangers)), ready)
            else:
                stranger = Stranger(Connection(accepted, self.most, self.now), self.greet())
                self.strangers[stranger] = None
                self.selector.register(accepted, _READ, stranger)
                if len(self.strangers) > self.room:
                    self._turn_away(next(iter(self.strangers)), ready)

    def _hear(self, stranger: Stranger, ready: dict[P, None]) -> None:
        """Take in what a stranger says; with its whole line it becomes a peer, or is turned away."""
        connection = stranger.connection
        stranger.said += connection.receive(LONGEST_HELLO - len(stranger.said))
        hello, newline, rest = stranger.said.partition(b"\n")
        if not newline and not connection.why and len(stranger.said) < LONGEST_HELLO:
            return
        del self.strangers[stranger]
        stranger.said = rest
        if not newline or (peer := self.admit(stranger, hello)) is None:
            self._close(connection)
            return
        connection.selector = self.selector
        self.selector.modify(connection.socket, _READ | _WRITE if connection.unsent else _READ, peer)
        ready[peer] = None

    def _turn_away(self, stranger: Stranger, ready: dict[P, None]) -> None:
        """Close a stranger's connection, unless its hello has arrived whole."""
        self._hear(stranger, ready)
        if stranger in self.strangers:
            del self.strangers[stranger]
            self._close(stranger.connection)

    def _check(self, ready: dict[P, None]) -> None:
        """Turn away strangers that are late, and end the connections of peers that do not read."""
        now = time.monotonic()
        while (oldest := next(iter(self.strangers), None)) and now - oldest.since > HELLO:
            self._turn_away(oldest, ready)
        for listener in [one for one, until in self.resting.items() if now > until]:
            del self.resting[listener]
            self.selector.register(listener, _READ)
        if now >= self.next_check:
            self.next_check = now + _CHECKED
            for key in list(self.selector.get_map().values()):
                if key.data is not None and not isinstance(key.data, Stranger) and key.data.connection.unsent:
                    key.data.connection.flush()
                    if key.data.connection.why:
                        ready[key.data] = None
