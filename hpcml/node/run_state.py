"""The run as its supervisor sees it, whatever its kind: phase, events, warnings, clocks, and the steps beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml import errors, repairs
from hpcml.failures.end import End
from hpcml.kind import Kind
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.end_cause import EndRequests
from hpcml.node.events_and_end import EventLog, RunEndedError, say
from hpcml.node.job_steps import Steps
from hpcml.node.process_helpers import OwnTime
from hpcml.node.script import interpreter_state
from hpcml.node.versions_and_clocks import Comparison
from hpcml.repairs.table import REPAIRS, Repair
from hpcml.safe_files import size_of

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
        self.stacks_written: dict[str, str] = {}  # by node, the last request for stacks that its agent has answered
        self.environment_known = False  # whether all roles have told their versions
        self.looked = 0.0
        # The files into which the scheduler writes why it ends the job, with their lengths when this attempt began.
        self.job_logs = {context.run.job_log: size_of(context.run.job_log)}
        self.awaited: list[int] = []  # open files that end a wait of the kind's processes when they can be read
        self.clock = OwnTime()
        self.steps = Steps(kind, self.clock, context.run.job_log)
        self.end_requests = EndRequests(context, events)

    @property
    def seconds(self) -> float:
        """The seconds since the supervisor started, for the events."""
        return round(time.monotonic() - self.started, 3)

    @property
    def script_variables(self) -> dict[str, str]:
        """The variables by which the script's process knows the run's kind."""
        return {interpreter_state.IN_SCRIPT: self.kind.in_script}

    def warn(self, sentence: str, **facts: object) -> None:
        """Say once, in the job's log, the events and the run's end, what the user has to know although it continues.

        ``facts`` are fields of the event.
        """
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            say(self.context, f"warning: {sentence}")  # the script's log is its own
            self.events.write("warning", sentence=sentence, **facts)

    def end(
        self, status: int, message: str, hint: str = "", quote: tuple[str, ...] = (), **fields: Any
    ) -> RunEndedError:
        """Return the exception that ends the run in this phase; ``fields`` are more of those of an end."""
        return RunEndedError(End(status, self.phase, "hpcml", message, hint, quote, **fields))

    def judge(self, compared: Comparison) -> None:
        """Raise RunEndedError if a role has other versions than the supervisor; note once that all have reported."""
        self.clocks = compared.clocks.bounds | {node: self.clocks[node] for node in self.measured}
        if compared.clocks.fatal:
            hint = (
                "The run's certificate is not valid on a node with a wrong clock. "
                "Exclude that node, and report it to the site's support."
            )
            raise self.end(errors.WORKERS_NEVER_CAME, compared.clocks.fatal, hint)
        if self.environment_known:
            return
        if compared.ends:
            is_image = bool(self.context.settings.job.image)
            where = "The image" if is_image else "The environment of runtime.python"
            hint = (
                f"{where} must be the same on all nodes. "
                "Keep it on a shared file system, or copy it to the nodes again."
            )
            origin = "image" if is_image else "environment"
            raise RunEndedError(End(errors.VERSIONS, origin, "hpcml", compared.ends, hint))
        if compared.complete:
            self.environment_known = True
            comparison = {"words": compared.summary, "versions": compared.local, "differences": compared.notes}
            self.events.write("environment-ready", seconds=self.seconds, **comparison)
            if compared.clocks.note:
                self.warn(
                    f"{compared.clocks.note}. Report this to the site's support: logs and files have wrong times."
                )

    def note_repairs(self, versions: Mapping[str, str], rows: Sequence[Repair] = REPAIRS) -> None:
        """Write down which repairs the run's processes apply, and say which are off for an untried release.

        ``versions`` are by package; of UCX the node's probe knows the one that is loaded.
        """
        probe = shared_files.read_json(self.context.attempt.probe_of(self.context.node)) or {}
        loaded = {"ucx": str(probe.get("ucx", {}).get("version") or versions.get("ucx", ""))}
        decisions = repairs.decisions({**versions, **loaded}, rows)
        self.events.write("repairs", repairs={name: decision._asdict() for name, decision in decisions.items()})
        for text in repairs.notes(decisions):
            say(self.context, text)

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
