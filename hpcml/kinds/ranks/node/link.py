"""The connection of each node's agent with the supervisor: authenticated lines over TCP, and proof of a common address.

Ends are known at once, on one clock, without the shared file system. A node tries all addresses of the first node: the
ranks meet at one that every node has reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import time
from typing import Any, Self

from hpcml import listening

LONGEST = 1 << 16  # bytes of a line
CONNECT = 5.0  # seconds for one address to accept a connection
HELLO = 5.0  # seconds that a new connection has to show the run's key
_MOST_STRANGERS = 64  # connections that have not shown it; the oldest gives way
_NONCE = 16


class Line:
    """One end of a connection: lines of JSON, each with a code of authentication and in its order."""

    def __init__(self, connection: socket.socket, key: bytes, mine: bytes, theirs: bytes) -> None:
        self.connection, self.buffer, self.closed = connection, b"", False
        self.mine, self.theirs = (hmac.new(key, nonces, hashlib.sha256).digest() for nonces in (mine, theirs))
        self.sent = self.received = 0

    def _code(self, key: bytes, number: int, text: bytes) -> bytes:
        return hmac.new(key, b"%d %b" % (number, text), hashlib.sha256).hexdigest().encode()

    def send(self, **message: object) -> None:
        """Send a message; if the other end has gone, ``closed`` becomes true."""
        text = json.dumps(message).encode()
        try:
            self.connection.sendall(self._code(self.mine, self.sent, text) + b" " + text + b"\n")
        except OSError:
            self.closed = True
        self.sent += 1

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived, without waiting; one that is not authentic closes the connection."""
        data = _arrived(self.connection)
        return [] if data is None else self.take(data)

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete with some more bytes; none are the connection's end."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        self.closed = self.closed or not data or len(self.buffer) > LONGEST
        messages = []
        for line in lines:
            code, _, text = line.partition(b" ")
            if not hmac.compare_digest(code, self._code(self.theirs, self.received, text)):
                self.closed = True
                break
            self.received += 1
            messages.append(dict(json.loads(text)))
        return messages

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self.connection.close()


def _arrived(connection: socket.socket) -> bytes | None:
    """Return what has arrived, None if nothing has; empty at the connection's end."""
    if not select.select([connection], [], [], 0)[0]:
        return None
    try:
        return connection.recv(LONGEST)
    except OSError:
        return b""


def _prepared(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.settimeout(HELLO)  # for a line that the other end does not take
    return connection


class Hub:
    """The supervisor's end: a listener on each address of the first node, and a line for each node's agent."""

    def __init__(self, addresses: list[str], key: bytes) -> None:
        self.key, self.lines = key, dict[str, Line]()
        self.listeners = [listening.listen_tcp(listening.AGENTS, address, backlog=1024) for address in addresses]
        self.strangers: list[_Stranger] = []
        self.began: dict[str, float] = {}  # by node, when its connection was accepted, in seconds since 1970

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self.listeners, *(stranger.connection for stranger in self.strangers)):
            connection.close()
        for line in self.lines.values():
            line.close()

    @property
    def places(self) -> list[tuple[str, int]]:
        """The addresses and ports, in the order of preference."""
        return [listener.getsockname() for listener in self.listeners]

    def receive(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return messages with their nodes, waiting at most ``timeout`` seconds for the first.

        A node's first message is ``{"event": "connected"}``, its last one ``{"event": "lost"}``.
        """
        lines = {line.connection: node for node, line in self.lines.items() if not line.closed}
        strangers = {stranger.connection: stranger for stranger in self.strangers}
        ready, _, _ = select.select([*self.listeners, *strangers, *lines], [], [], timeout)
        messages: list[tuple[str, dict[str, Any]]] = []
        for one in ready:
            if node := lines.get(one):
                messages += [(node, message) for message in self.lines[node].receive()]
            elif stranger := strangers.get(one):
                messages += self._admit(stranger)
            else:
                with contextlib.suppress(OSError):  # it has gone already
                    self.strangers.append(_Stranger(_prepared(one.accept()[0])))
        self._turn_away()
        gone = [node for node, line in self.lines.items() if line.closed]
        for node in gone:
            self.lines.pop(node).close()
        return messages + [(node, {"event": "lost"}) for node in gone]

    def _admit(self, stranger: _Stranger) -> list[tuple[str, dict[str, Any]]]:
        """Take in what a new connection says; with the run's key it becomes a node's line."""
        data = _arrived(stranger.connection) or b""
        stranger.said += data
        if b"\n" not in stranger.said and data and len(stranger.said) < LONGEST:
            return []
        self.strangers.remove(stranger)
        hello, _, rest = stranger.said.partition(b"\n")
        try:
            code, nonce, node = hello.decode().split(" ")
            expected = _proof(self.key, stranger.nonce, nonce, node)
        except ValueError:
            code = expected = ""
        if not expected or not hmac.compare_digest(code, expected):
            stranger.connection.close()
            return []
        both = (stranger.nonce + nonce).encode()
        line = Line(stranger.connection, self.key, b"hub" + both, b"agent" + both)
        if node in self.lines:  # its agent was started again
            self.lines[node].close()
        self.lines[node], self.began[node] = line, stranger.began
        return [(node, message) for message in ({"event": "connected"}, *(line.take(rest) if rest else ()))]

    def _turn_away(self) -> None:
        """Close connections that did not show the key in time, and the oldest of too many."""
        now, waiting = time.monotonic(), self.strangers
        late = [one for one in waiting if now - one.since > HELLO] + waiting[: max(0, len(waiting) - _MOST_STRANGERS)]
        for one in dict.fromkeys(late):
            self.strangers.remove(one)
            one.connection.close()

    def send(self, **message: object) -> None:
        """Send a message to every node."""
        for line in self.lines.values():
            line.send(**message)


class _Stranger:
    """A connection that has not shown the run's key; it gets a number to sign."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.since, self.said = connection, time.monotonic(), b""
        self.began = time.time()
        self.nonce = secrets.token_hex(_NONCE)
        connection.sendall(self.nonce.encode() + b"\n")


def _proof(key: bytes, theirs: str, mine: str, node: str) -> str:
    return hmac.new(key, f"hello {theirs} {mine} {node}".encode(), hashlib.sha256).hexdigest()


def reach(places: list[tuple[str, int]]) -> dict[str, socket.socket]:
    """Return a connection to each address that this node reaches, tried at the same time."""
    waiting: dict[socket.socket, str] = {}
    for address, port in places:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.connect_ex((address, port))
        waiting[connection] = address
    reached: dict[str, socket.socket] = {}
    deadline = time.monotonic() + CONNECT
    while waiting and (left := deadline - time.monotonic()) > 0:
        _, ready, _ = select.select([], [*waiting], [], left)
        for connection in ready:
            address = waiting.pop(connection)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                connection.close()
            else:
                reached[address] = _prepared(connection)
    for connection in waiting:
        connection.close()
    return {address: reached[address] for address, _ in places if address in reached}


def connect(places: list[tuple[str, int]], key: bytes, node: str) -> tuple[Line | None, dict[str, str]]:
    """Return the line of this node to the supervisor, and by each address reached the own address that led there.

    The line is None if no address was reached, or none that knows the run's key.
    """
    reached = reach(places)
    ways = {address: connection.getsockname()[0] for address, connection in reached.items()}
    line: Line | None = None
    for connection in reached.values():
        with contextlib.suppress(OSError, ValueError):  # another program has this port: the next address
            line = line or _introduce(connection, key, node)
        if line is None or line.connection is not connection:
            connection.close()
    return line, ways


def _introduce(connection: socket.socket, key: bytes, node: str) -> Line:
    theirs = b""
    while not theirs.endswith(b"\n"):
        data = connection.recv(2 * _NONCE + 1 - len(theirs))
        if not data:
            raise OSError("the connection was closed")
        theirs += data
    nonce, mine = theirs.decode().strip(), secrets.token_hex(_NONCE)
    connection.sendall(f"{_proof(key, nonce, mine, node)} {mine} {node}\n".encode())
    both = (nonce + mine).encode()
    return Line(connection, key, b"agent" + both, b"hub" + both)
