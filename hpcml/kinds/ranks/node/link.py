"""The connection of each node's agent with the supervisor: authenticated lines over TCP, and proof of a common address.

Ends are known at once, on one clock, without the shared file system. A node tries all addresses of the first node: the
ranks meet at one that every node has reached. Both ends send signs of life.
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
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from hpcml import listening
from hpcml.kinds.ranks.node.connections import HELLO, Connection, Entrance, Stranger

LONGEST = 1 << 16  # bytes of a line
MOST_UNSENT = 1 << 18  # bytes that wait for an end that does not read
ALIVE = 5.0  # seconds between two signs of life, or a part of deadlines.answer if that is short:
_SIGNS = 4  # as many signs as may be missed
CONNECT = 5.0  # seconds for one address to accept a connection
_NONCE = 16
# What an agent may say: the fields of each event, and their types.
_EVENTS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "ready": {"reached": list, "versions": dict, "time": (int, float)},
    "alive": {"processors": (int, float)},
    "fabric": {"interface": str, "results": list, "log": dict, "moved": dict},
    "nccl": {"interface": str, "log": dict},
    "note": {"text": str},
    "rank-ended": {"rank": int, "status": int, "memory": bool, "alone": str},
    "alone": {"rank": int, "how": str},
}


def sign_every(answer: float) -> float:
    """Return the seconds between two signs of life; ``answer`` is deadlines.answer."""
    return min(ALIVE, answer / _SIGNS)


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


class Hub:
    """The supervisor's end: a listener on each address of the first node, and a line for each node's agent.

    ``now`` is the clock by which an agent that reads nothing is lost.
    """

    def __init__(self, addresses: list[str], key: bytes, now: Callable[[], float] = time.monotonic) -> None:
        self.key, self.lines = key, dict[str, Line]()
        self.listeners = [listening.listen_tcp(listening.AGENTS, address, backlog=1024) for address in addresses]
        self.entrance = Entrance(self.listeners, self._admit, MOST_UNSENT, _nonce, now)
        self.began: dict[str, float] = {}  # by node, when its connection was accepted, in seconds since 1970
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.over = threading.Event()

    def give_signs(self, every: float) -> None:
        """Send a sign of life to each agent, from a thread that touches no file: a hung file system is no silence."""

        def work() -> None:
            while not self.over.wait(every):
                with self.entrance.lock:
                    for line in self.lines.values():
                        line.give_sign(do="hear")

        threading.Thread(target=work, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.entrance.close()

    @property
    def places(self) -> list[tuple[str, int]]:
        """The addresses and ports, in the order of preference."""
        return [listener.getsockname() for listener in self.listeners]

    def receive(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return messages with their nodes, waiting at most ``timeout`` seconds for the first.

        A node's first message is ``{"event": "connected"}``, its last one ``{"event": "lost", "why": …}``. A message
        that no agent sends closes the line.
        """
        lines = self.entrance.wait(timeout)
        with self.entrance.lock:
            for line in lines:
                self._hear(line)
            news, self.news = self.news, []
        return news

    def _hear(self, line: Line) -> None:
        for message in line.receive() if self.lines.get(line.node) is line else ():
            if _is_of_an_agent(message):
                self.news.append((line.node, message))
            else:
                line.connection.end(f"it sent a message that no agent sends ({str(message)[:80]})")
                break
        if line.why:
            self.drop(line)

    def drop(self, line: Line) -> None:
        """Close a node's line: the node is lost, unless its agent has connected again."""
        self.entrance.drop(line)
        if self.lines.get(line.node) is line:
            del self.lines[line.node]
            self.news.append((line.node, {"event": "lost", "why": line.why}))

    def _admit(self, stranger: Stranger, hello: bytes) -> Line | None:
        """Return the line of a node whose agent has signed the greeting with the run's key."""
        words = hello.split(b" ")
        if len(words) != 3 or not hmac.compare_digest(words[0], _proof(self.key, stranger.greeting, *words[1:])):
            return None
        both = stranger.greeting.rstrip() + words[1]
        line = Line(stranger.connection, self.key, b"hub" + both, b"agent" + both, stranger.said)
        line.node = words[2].decode(errors="replace")
        if before := self.lines.get(line.node):  # its agent has connected again
            before.connection.end("its agent has connected again")
            self.drop(before)
        self.lines[line.node], self.began[line.node] = line, stranger.began
        self.news.append((line.node, {"event": "connected"}))
        return line

    def send(self, **message: object) -> None:
        """Send a message to every node, without waiting for any."""
        with self.entrance.lock:
            for line in self.lines.values():
                line.send(**message)


def _nonce() -> bytes:
    return secrets.token_hex(_NONCE).encode() + b"\n"


def _proof(key: bytes, greeting: bytes, mine: bytes, node: bytes) -> bytes:
    text = b"hello %b %b %b" % (greeting.rstrip(), mine, node)
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def _is_of_an_agent(message: dict[str, Any]) -> bool:
    fields = _EVENTS.get(message["event"]) if isinstance(message.get("event"), str) else None
    return fields is not None and all(isinstance(message.get(name), kind) for name, kind in fields.items())


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
                line = _introduce(connection, key, node)
        if line is None or line.connection.socket is not connection:
            connection.close()
    return line, ways


def _introduce(connection: socket.socket, key: bytes, node: str) -> Line:
    deadline = time.monotonic() + HELLO
    greeting = b""
    while not greeting.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        data = connection.recv(2 * _NONCE + 1 - len(greeting))
        if not data:
            raise OSError("the connection was closed")
        greeting += data
    mine = secrets.token_hex(_NONCE).encode()
    connection.sendall(b"%b %b %b\n" % (_proof(key, greeting, mine, node.encode()), mine, node.encode()))
    both = greeting.rstrip() + mine
    # A supervisor that a file system blocks reads nothing, and still gives signs of life: only their want is a loss.
    return Line(Connection(connection, MOST_UNSENT, lambda: 0.0), key, b"agent" + both, b"hub" + both)
