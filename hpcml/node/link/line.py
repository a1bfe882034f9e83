"""An authenticated line over TCP, and how an agent opens it: at the first address of the supervisor that knows the key.

A node tries all addresses of the first node at the same time: it knows then which of them lead there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import secrets
import selectors
import socket
import time
from typing import Any

from hpcml.node.link.connections import HELLO, Connection

LONGEST = 1 << 16  # bytes of a line
MOST_UNSENT = 1 << 18  # bytes that wait for an end that does not read
CONNECT = 3.0  # seconds for an address to accept a connection
OTHERS = 1.0  # the same once another address has: a filter may swallow what is sent to this one
_NONCE = 16


class Line:
    """One end of a connection: lines of JSON, each with a code of authentication and in its order.

    ``said`` are bytes that have arrived already.
    """

    def __init__(self, connection: Connection, key: bytes, mine: bytes, theirs: bytes, said: bytes = b"") -> None:
        self.connection, self.buffer = connection, said
        self.mine, self.theirs = (hmac.new(key, nonces, hashlib.sha256).digest() for nonces in (mine, theirs))
        self.sent = self.received = 0
        self.node = ""  # at the supervisor's end: whose it is

    @property
    def why(self) -> str:
        """The reason for which it was closed, a clause about the other end; empty while it is open."""
        return self.connection.why

    def _code(self, key: bytes, number: int, text: bytes) -> bytes:
        return hmac.new(key, b"%d %b" % (number, text), hashlib.sha256).hexdigest().encode()

    def send(self, **message: object) -> None:
        """Send a message, now or when the other end reads; if it has gone, ``why`` says so."""
        text = json.dumps(message).encode()
        self.connection.send(self._code(self.mine, self.sent, text) + b" " + text + b"\n")
        self.sent += 1

    def give_sign(self, **message: object) -> None:
        """Send a sign of life, unless other messages wait: an end that reads nothing needs no more of them."""
        if self.connection.unsent:
            self.connection.flush()
        else:
            self.send(**message)

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived, without waiting; one that is not authentic closes the connection."""
        self.connection.flush()
        *lines, self.buffer = (self.buffer + self.connection.receive(LONGEST)).split(b"\n")
        if len(self.buffer) > LONGEST:
            self.connection.end("it sent a line that is too long")
        messages = []
        for line in lines:
            code, _, text = line.partition(b" ")
            if not hmac.compare_digest(code, self._code(self.theirs, self.received, text)):
                self.connection.end("it sent a line that is not authentic")
                break
            self.received += 1
            try:
                messages.append(dict(json.loads(text)))
            except (ValueError, TypeError, RecursionError):
                self.connection.end("it sent a line that is not a message")
                break
        return messages

    def close(self) -> None:
        """Close the connection."""
        self.connection.end("this end was closed")
        self.connection.socket.close()


def nonce() -> bytes:
    """Return the nonce that the supervisor sends first on a connection: the other end signs it."""
    return secrets.token_hex(_NONCE).encode() + b"\n"


def proof(key: bytes, greeting: bytes, mine: bytes, node: bytes) -> bytes:
    """Return an agent's signature of a greeting, with its own random text and its name."""
    text = b"hello %b %b %b" % (greeting.rstrip(), mine, node)
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def reach(places: list[tuple[str, int]]) -> dict[str, socket.socket]:
    """Return a connection to each address that this node reaches, tried at the same time."""
    reached: dict[str, socket.socket] = {}
    deadline = time.monotonic() + CONNECT
    with selectors.DefaultSelector() as waiting:
        for address, port in places:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            if connection.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                waiting.register(connection, selectors.EVENT_WRITE, address)
            else:  # there is no route
                connection.close()
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                connection = key.fileobj  # type: ignore[assignment]
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    connection.close()
                else:
                    reached[key.data] = connection
                    deadline = min(deadline, time.monotonic() + OTHERS)
        for key in waiting.get_map().values():
            key.fileobj.close()  # type: ignore[union-attr]
    return {address: reached[address] for address, _ in places if address in reached}


def connect(places: list[tuple[str, int]], key: bytes, node: str) -> tuple[Line | None, dict[str, str]]:
    """Return the line of this node to the supervisor, and by each address reached the own address that led there.

    The line is None if no address was reached, or none that knows the run's key.
    """
    reached = reach(places)
    ways = {address: connection.getsockname()[0] for address, connection in reached.items()}
    line: Line | None = None
    for connection in reached.values():
        if line is None:
            with contextlib.suppress(OSError):  # another program has this port: the next address
                line = introduce(connection, key, node)
        if line is None or line.connection.socket is not connection:
            connection.close()
    return line, ways


def introduce(connection: socket.socket, key: bytes, node: str) -> Line:
    """Return the line that an agent has at a connection, by the signed hello; OSError if nobody greets it."""
    deadline = time.monotonic() + HELLO
    greeting = b""
    while not greeting.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        data = connection.recv(2 * _NONCE + 1 - len(greeting))
        if not data:
            raise OSError("the connection was closed")
        greeting += data
    mine = secrets.token_hex(_NONCE).encode()
    connection.sendall(b"%b %b %b\n" % (proof(key, greeting, mine, node.encode()), mine, node.encode()))
    both = greeting.rstrip() + mine
    # A supervisor that a file system blocks reads nothing, and still gives signs of life: only their want is a loss.
    return Line(Connection(connection, MOST_UNSENT, lambda: 0.0), key, b"agent" + both, b"hub" + both)
