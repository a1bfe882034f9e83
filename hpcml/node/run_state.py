"""The run as its supervisor sees it, whatever its kind: its phase, its events, its warnings and its clocks."""

from __future__ import annotations

import time
from pathlib import Path

from hpcml.failures.end import End
from hpcml.kind import Kind
from hpcml.node.end_cause import EndRequests
from hpcml.node.outcome import EventLog, RunEndedError, say
from hpcml.node.processes import OwnTime
from hpcml.node.settings import Context
from hpcml.node.steps import Steps

TICK = 0.05  # seconds between looks at this node's processes
SLOW_TICK = 0.5  # seconds between looks at files that other nodes write
LOOK_EACH = 0.005  # seconds more for each node: a look reads a file of every node


class RunState:
    """What the supervisor and the kind's processes share. ``folder`` is for sockets: only the user can enter it."""

    def __init__(self, context: Context, kind: Kind, events: EventLog, folder: Path) -> None:
        self.context, self.kind, self.events, self.folder = context, kind, events, folder
        self.started = time.monotonic()
        self.phase = "allocated"
        self.script_began = False
        self.frozen = False  # whether the script is blocked on a hung file system
        self.warnings: list[str] = []
        self.clocks: dict[str, tuple[float, float]] = {}  # by node: seconds ahead of this one, and the uncertainty
        self.measured: set[str] = set()  # the nodes whose own processes measured their clock
        self.looked = 0.0
        self.clock = OwnTime()
        self.steps = Steps(kind, self.clock, context.run.job_log)
        self.end_requests = EndRequests(context, events)

    @property
    def seconds(self) -> float:
        """The seconds since the supervisor started, for the events."""
        return round(time.monotonic() - self.started, 3)

    def warn(self, sentence: str) -> None:
        """Say once, in the job's log, the events and the run's end, what the user has to know although it goes on."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            say(self.context, f"warning: {sentence}")  # the driver's log is the script's alone
            self.events.write("warning", sentence=sentence)

    def end(self, status: int, reason: str, hint: str = "", quote: tuple[str, ...] = ()) -> RunEndedError:
        """Return the exception that ends the run in this phase."""
        return RunEndedError(End(status, self.phase, "hpcml", reason, hint, quote))

    def tell_clocks(self) -> None:
        """Write down what is known of the clocks of nodes whose workers have not measured them."""
        for node, (ahead, within) in self.clocks.items():
            if node not in self.measured:
                self.events.write("clock", node=node, ahead=round(ahead, 1), within=round(within, 1))

    def time_to_look(self) -> bool:
        """Whether the files that other nodes write are to be looked at again."""
        if time.monotonic() - self.looked < max(SLOW_TICK, LOOK_EACH * self.context.settings.job.nodes):
            return False
        self.looked = time.monotonic()
        return True
