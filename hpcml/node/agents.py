"""The agents of all nodes, as the supervisor sees them: what they say, and which of them is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from hpcml.node import services, shared_files, stacks
from hpcml.node.link.hub import Hub
from hpcml.node.link.messages import Events, sign_every
from hpcml.node.process_helpers import Process
from hpcml.node.run_state import LOOK_EACH, SLOW_TICK, RunState
from hpcml.node.versions_and_clocks import Comparison
from hpcml.safe_files import create

Mark = dict[str, Any]  # what an agent says of its node (hpcml.node.agent.Node.mark)


class Agents:
    """The supervisor's end of the link, and what is known by it.

    Parameters
    ----------
    state, folders
        The run's, as the kind's processes have them.
    addresses
        Those of this node at which agents may connect.
    versions
        Takes in what agents tell of theirs.
    events
        Those that only agents of this kind send.
    """

    def __init__(
        self,
        state: RunState,
        folders: contextlib.ExitStack,
        addresses: Sequence[str],
        versions: Comparison,
        events: Events,
    ) -> None:
        self.state, self.context, self.versions = state, state.context, versions
        self.role = state.kind.agent.name
        self.key = secrets.token_bytes(32)
        settings = self.context.settings
        now, folder = lambda: state.clock.seconds, self.context.attempt.nodes
        self.hub = folders.enter_context(Hub(addresses, self.key, events, now, folder))
        self.hub.give_signs(sign_every(settings.deadlines.answer))
        self.heard: dict[str, float] = {}  # by node, when it was last heard over its line, by the supervisor's clock
        self.lost: dict[str, str] = {}  # by node whose line has ended: why, a clause
        self.marks: dict[str, Mark] = {}  # by node, what its agent said last
        self.ends = 0  # how many lines have ended
        self.looked = 0.0
        self.requests = stacks.Requests(self.context, 1)
        self.services = services.Requests(self.context)
        self.nodes = frozenset(self.context.node_names)
        self.orders: list[dict[str, object]] = []  # that hold for whoever connects later too

    def begin(self) -> None:
        """Say where the supervisor is, where its node's roles have unix sockets, and which versions it has."""
        attempt = self.context.attempt
        attempt.secret.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(create(attempt.link_key), "wb") as file:
            file.write(self.key)
        this = dataclasses.astuple(Process.named(os.getpid()))
        where: dict[str, Any] = {"places": self.hub.places, "node": self.context.node, "supervisor": this}
        where |= {"sockets": str(self.state.folder), "versions": self.versions.local}
        shared_files.write_json(attempt.link, where)

    def order(self, **order: object) -> None:
        """Give an order to everyone, and to each one that connects later."""
        self.orders.append(order)
        self.hub.send(**order)

    def receive(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages of agents, with their nodes, waiting at most ``timeout`` seconds for the first."""
        news = self.hub.receive(timeout, self.state.awaited)
        for node, _ in news:
            self.heard[node] = self.state.clock.seconds
        if not self.nodes <= self.hub.lines.keys() and self._is_time_for_files():
            news += self.hub.read_files()
        for node, message in news:
            self._take(node, message)
        if request := self.requests.look():
            self.hub.send(do="stacks", request=request)
        for wanted in self.services.look():
            self.order(do="service", wanted=wanted._asdict())
        return news

    def _is_time_for_files(self) -> bool:
        every = max(SLOW_TICK, LOOK_EACH * len(self.context.node_names))
        if time.monotonic() - self.looked < every:
            return False
        self.looked = time.monotonic()
        return True

    def _take(self, node: str, message: dict[str, Any]) -> None:
        match message["event"]:
            case "hello":
                began = self.hub.began[node] if node in self.hub.lines else 0.0
                if node not in self.hub.lines:  # it uses files, by which it gives no signs
                    self.heard.pop(node, None)
                    self.lost.pop(node, None)
                role, _, host = node.rpartition("@")
                self.versions.take(role or self.role, host, message["versions"], float(message["time"]), began)
                for order in self.orders:
                    self.hub.send(node, **order)
            case "mark":
                self.marks[node] = message
            case "stacks":
                self.state.stacks_written[node] = message["id"]
            case "note":
                self.state.warn(message["text"])
            case "connected":
                self.lost.pop(node, None)
            case "lost":
                self.lost[node] = message["why"]
                self.ends += 1

    def is_silent(self, node: str) -> bool:
        """Whether a node's agent had a line and has not been heard for deadlines.answer."""
        now, answer = self.state.clock.seconds, self.context.settings.deadlines.answer
        return now - self.heard.get(node, now) > answer

    def recently_silent(self) -> set[str]:
        """Return the nodes that have been silent for longer than two signs of life."""
        now, answer = self.state.clock.seconds, self.context.settings.deadlines.answer
        return {node for node, last in self.heard.items() if now - last > min(answer, 2 * sign_every(answer))}

    def is_connected(self, node: str) -> bool:
        """Whether a node's agent has a line: what it does not say by it, no file says."""
        return node in self.hub.lines
