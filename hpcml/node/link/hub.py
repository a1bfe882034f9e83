"""The supervisor's end of the link: a line to each node's agent, and files for an agent that cannot connect.

A line has the name of its node. That of a role beside the agent is ``ROLE@NODE``.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from hpcml import listeners
from hpcml.node import shared_files
from hpcml.node.link.connections import Entrance, Stranger
from hpcml.node.link.line import MOST_UNSENT, Line, nonce, proof
from hpcml.node.link.mailbox import Mailboxes, nodes_that_write
from hpcml.node.link.messages import EVENTS, Events, is_one_of
from hpcml.node.process_helpers import OwnTime

_TICK = 1.0  # seconds between two ticks of the thread that gives signs


class Hub:
    """The supervisor's end: a listener on each address that it tells the nodes, and a line for each node's agent.

    ``events`` are those of the kind, beside :data:`EVENTS`. ``now`` is the clock by which an agent that reads nothing
    is lost. ``folder`` is where agents that cannot connect write.
    """

    def __init__(
        self, addresses: Sequence[str], key: bytes, events: Events, now: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.key, self.events, self.lines = key, EVENTS | events, dict[str, Line]()
        self.folder, self.by_file = folder, dict[str, Mailboxes]()
        with contextlib.ExitStack() as opened:
            self.listeners = [
                opened.enter_context(listeners.listen_tcp(listeners.AGENTS, address, backlog=1024))
                for address in addresses
            ]
            opened.pop_all()
        self.entrance = Entrance(self.listeners, self._admit, MOST_UNSENT, nonce, now)
        self.began: dict[str, float] = {}  # by node, when its connection was accepted, in seconds since 1970
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.looks = 0  # at what has arrived
        self.over = threading.Event()

    def give_signs(self, every: float) -> None:
        """Send a sign of life to each agent, from a thread that touches no file: a hung file system is no silence.

        It says for how long the supervisor's own loop has not looked at what has arrived (``busy``).
        """

        def work() -> None:
            clock, looks, since, last = OwnTime(), 0, 0.0, 0.0
            while not self.over.wait(min(every, _TICK)):
                if clock.tick() and looks != self.looks:
                    looks, since = self.looks, clock.seconds
                if clock.seconds - last < every:
                    continue
                last, busy = clock.seconds, round(clock.seconds - since, 1)
                with self.entrance.lock:
                    for line in self.lines.values():
                        line.give_sign(do="hear", busy=busy)

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

    def receive(self, timeout: float, others: Sequence[int] = ()) -> list[tuple[str, dict[str, Any]]]:
        """Return messages with their nodes, waiting at most ``timeout`` seconds for the first, or for ``others``.

        A line's first message is ``{"event": "connected"}``, its last one ``{"event": "lost", "why": …}``. A message
        that no agent sends closes the line.
        """
        self.looks += 1
        lines = self.entrance.wait(timeout, others)
        with self.entrance.lock:
            for line in lines:
                self._hear(line)
            news, self.news = self.news, []
        return news

    def read_files(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages of agents without a connection, and write again what a full disk did not take."""
        if self.folder is None:
            return []
        for node in nodes_that_write(shared_files.listed(self.folder)) - self.by_file.keys():
            self.by_file[node] = Mailboxes.of_supervisor(self.folder, node)
        news = []
        for node, boxes in self.by_file.items():
            boxes.out.append()
            news += [(node, message) for message in boxes.into.receive() if is_one_of(self.events, message)]
        return news

    def _hear(self, line: Line) -> None:
        for message in line.receive() if self.lines.get(line.node) is line else ():
            if is_one_of(self.events, message):
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
        if len(words) != 3 or not hmac.compare_digest(words[0], proof(self.key, stranger.greeting, *words[1:])):
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

    def send(self, to: str = "", /, **message: object) -> None:
        """Send a message to everyone, or to one of them, without waiting for any."""
        with self.entrance.lock:
            for name, line in self.lines.items():
                if to in ("", name):
                    line.send(**message)
        for name, boxes in self.by_file.items():
            if to in ("", name) and name not in self.lines:
                boxes.out.append(message)
