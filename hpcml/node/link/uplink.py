"""The end of the link of an agent, or of a role beside it: a thread keeps the line, and gives signs of life by it.

The thread touches no file while the line is up, so that a hung file system is no silence. It only connects and sends:
what has arrived, the agent's own loop takes. Where no line comes about, an agent's messages go by files.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import time
from typing import Any

from hpcml.node import shared_files, versions_and_clocks
from hpcml.node.context import Context
from hpcml.node.link.line import Line, connect
from hpcml.node.link.mailbox import Mailboxes
from hpcml.node.link.messages import sign_every
from hpcml.node.process_helpers import Process, readable

AGAIN = 0.5  # seconds until a supervisor that was not reached is tried again, and later:
RARELY = 5.0
FALLBACK = 3.0  # seconds without a line after which messages go by files
_LOOK = 0.5  # seconds between two looks at the file with the supervisor's orders
_LAST = 1.0  # seconds for the last messages


class Uplink:
    """The line of this process to the supervisor. It opens with :meth:`open`; messages wait until then.

    ``ways`` is by each address of the supervisor that was reached the own address that led there. ``role`` is that of a
    process beside the agent, on the supervisor's node: it has one line and no files.
    """

    def __init__(self, context: Context, role: str = "") -> None:
        self.context, self.role, self.key = context, role, b""
        self.name = f"{role}@{context.node}" if role else context.node
        self.places: list[tuple[str, int]] = []
        self.supervisor: Process | None = None  # where it is on this node
        self.ways: dict[str, str] = {}
        self.line: Line | None = None
        self.waiting: list[dict[str, Any]] = []  # messages that neither a line nor a file has taken
        self.boxes: Mailboxes | None = None  # once messages go by files
        self.next_look = 0.0
        self.versions: dict[str, str] = {}
        self.reconnects = not role  # whether another line is opened when one is lost
        self.lock, self.over, self.came = threading.RLock(), threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin to connect, in a thread of this process; a fork of it has no part in the line."""
        self.versions = versions_and_clocks.here()
        os.register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._leave)
        atexit.register(self.close)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _hold(self) -> None:
        """Before a fork: nothing of the link is half done."""
        self.lock.acquire()

    def _go_on(self) -> None:
        self.lock.release()

    def _leave(self) -> None:
        """In a fork: close this process's copy of the connection, which stays open in the agent."""
        if self.line:
            self.line.connection.socket.close()
        self.line, self.thread, self.lock = None, None, threading.RLock()

    @property
    def is_known(self) -> bool:
        """Whether the supervisor has said where it is."""
        return bool(self.key)

    @property
    def is_up(self) -> bool:
        """Whether messages go to the supervisor, by a line or by files."""
        return bool(self.boxes) or (self.line is not None and not self.line.why)

    @property
    def lost(self) -> str:
        """Why the line that was there is closed, a clause about the supervisor; empty while it is open, or none was."""
        return self.line.why if self.line else ""

    def send(self, **message: object) -> None:
        """Send a message: by the line, by files where none comes about, or as soon as one of them is there."""
        with self.lock:
            self.waiting.append(message)
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self.line and not self.line.why:
            for message in self.waiting:
                self.line.send(**message)
        elif self.boxes:
            self.boxes.out.append(*self.waiting)
        else:
            return
        self.waiting.clear()

    def wait(self, seconds: float, *others: int) -> None:
        """Wait until an order has arrived, the first line is there, or one of other descriptors can be read."""
        line = self.line
        if line and not line.why:
            readable([*others, line.connection.socket.fileno()], seconds)
        elif others:
            readable(others, seconds)
        elif self.came.wait(seconds):
            self.came.clear()

    def give_sign(self, **message: object) -> None:
        """Send a message that the next one replaces, unless others wait: an end that reads nothing needs no more."""
        with self.lock:
            if self.line and not self.line.why:
                self.line.give_sign(**message)
            elif self.boxes:
                self.boxes.out.append(message)

    def receive(self) -> list[dict[str, Any]]:
        """Return the orders that have arrived, without waiting."""
        orders: list[dict[str, Any]] = []
        with self.lock:
            if self.line and not self.line.why:
                orders = self.line.receive()
        if self.boxes and time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + _LOOK
            self.boxes.out.append()
            if self.boxes.into.path.name in shared_files.listed(self.context.attempt.nodes):
                orders += self.boxes.into.receive()
        return orders

    def wait_for(self, order: str, until: float = math.inf) -> bool:
        """Wait for an order; return False if the line or this role's step ends before, or at ``until``."""
        parent = os.getppid()
        while time.monotonic() < until and os.getppid() == parent and not self.lost:
            self.wait(AGAIN)
            orders = {order.get("do") for order in self.receive()}
            if orders & {order, "close"}:
                return "close" not in orders
        return False

    def drop(self, why: str) -> None:
        """End the line for a reason; the thread opens another."""
        with self.lock:
            if self.line:
                self.line.connection.end(why)

    def close(self) -> None:
        """End the link; what no line has taken goes into the file."""
        self.over.set()
        with self.lock:
            self._send_waiting()
            until = time.monotonic() + _LAST
            while self.line and not self.line.why and self.line.connection.unsent and time.monotonic() < until:
                self.line.connection.flush()
                time.sleep(0.01)
            attempt = self.context.attempt
            if self.waiting and not self.role and attempt.ended.name not in shared_files.listed(attempt.directory):
                self._use_files()
            if self.line:
                self.line.close()

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        if not self._find():
            return
        since, every, next_sign = time.monotonic(), sign_every(self.context.settings.deadlines.answer), 0.0
        while not self.over.is_set():
            if self.line and not self.line.why:
                since = time.monotonic()
                if since >= next_sign:
                    next_sign = since + every
                    with self.lock:
                        self.line.give_sign(event="alive")
                self.over.wait(min(every, AGAIN))
            elif self.line and not self.reconnects:
                return
            elif not self._connect():
                if not self.role and (time.monotonic() - since > FALLBACK or not self.ways):
                    self._use_files()
                self.over.wait(RARELY if self.boxes else AGAIN)

    def _find(self) -> bool:
        """Wait until the supervisor has said where it is; return False if this process's end comes before."""
        attempt, nodes = self.context.attempt, self.context.settings.job.nodes
        while attempt.link.name not in shared_files.listed(attempt.directory):
            if self.over.wait(shared_files.interval(nodes)):
                return False
        control = shared_files.read_json(attempt.link) or {}
        self.places = [(str(address), int(port)) for address, port in control["places"]]
        if self.context.node == self.context.node_names[0]:
            self.supervisor = Process(*control["supervisor"])
        self.key = attempt.link_key.read_bytes()
        return True

    def _connect(self) -> bool:
        """Open the line, and say hello; return True if there is one."""
        line, self.ways = connect(self.places, self.key, self.name)
        if line is None:
            return False
        with self.lock:
            if self.line:
                print(
                    f"hpcml: the connection to hpcml's supervisor was lost: {self.line.why}. Connected again.",
                    flush=True,
                )
                self.line.close()
            if self.over.is_set():
                line.close()
                return False
            self.line = line
            line.send(**self._hello())
            self._send_waiting()
        self.came.set()
        return True

    def _hello(self) -> dict[str, Any]:
        return {"event": "hello", "reached": list(self.ways), "versions": self.versions, "time": time.time()}

    def _use_files(self) -> None:
        with self.lock:
            if self.boxes is None:
                self.boxes = Mailboxes.of_agent(self.context.attempt.nodes, self.context.node)
                self.waiting.insert(0, self._hello())
            self._send_waiting()
