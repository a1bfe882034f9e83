"""The run as its supervisor sees it: what the scheduler tells, what is missing, and why the run has to end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpcml import errors
from hpcml.failures.end import End
from hpcml.kinds.dask.node import diagnosis, gpus
from hpcml.kinds.dask.node.control_socket import Channel
from hpcml.kinds.dask.node.hangs import Hangs
from hpcml.kinds.dask.node.losses import Losses, Steps
from hpcml.node.end_cause import EndRequests
from hpcml.node.outcome import EventLog, RunEndedError, say
from hpcml.node.processes import OwnTime
from hpcml.node.settings import Context

TICK = 0.05  # seconds between looks at this node's processes
SLOW_TICK = 0.5  # seconds between looks at files that other nodes write
LOOK_EACH = 0.005  # seconds more for each node: a look reads a file of every node that lacks workers


class RunState:
    """What is known of the run, brought up to date by :meth:`step`.

    ``present`` are the names of the workers that are there; ``fabric`` is the answer of the fabric check; ``of_tasks``
    is what to say of the script's tasks if it ended with 0; ``released``
    is whether the script closed the cluster itself, ``closing`` whether the teardown does; ``frozen`` is whether the
    script waits for a file system. ``clocks`` are by how many
    seconds a node's is ahead of this one's, and by how many that may be wrong; ``measured`` are the nodes that asked.
    """

    def __init__(self, context: Context, events: EventLog, channel: Channel) -> None:
        self.context, self.events, self.channel = context, events, channel
        self.started = time.monotonic()
        self.phase = "allocated"
        self.address = self.protocol = ""
        self.present: set[str] = set()
        self.fabric: dict[str, Any] | None = None
        self.of_tasks: list[str] = []
        self.released = self.closing = self.frozen = False
        self.warnings: list[str] = []
        self.clocks: dict[str, tuple[float, float]] = {}
        self.measured: set[str] = set()
        self.silent: set[str] = set()
        self.looked = 0.0
        self.clock = OwnTime()
        self.steps = Steps(self.clock, context.run.job_log)
        self.losses = Losses(context, events, self.clock, self.warn)
        self.hangs = Hangs(context, self.clock, self.warn)
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

    def step(self) -> None:
        """Take in what the scheduler says, for at most one tick."""
        self.clock.tick()
        for message in self.channel.receive(TICK):
            if "of_tasks" in message:
                self.of_tasks = list(map(str, message["of_tasks"]))
            else:
                self._take(message.pop("event", ""), message)

    def _take(self, event: str, message: dict[str, Any]) -> None:
        match event:
            case "scheduler-up":
                self.address, self.protocol = str(message["address"]), str(message["protocol"])
            case "worker-added" | "worker-removed":
                self._count_worker(event, message)
                if self.closing:  # all workers go now
                    return
            case "scheduler-closed":
                self.released = True
            case "fabric-checked":
                self.fabric = message
            case "alive":
                self.hangs.take(message)
                self._note_silent(message.get("silent", {}))
                self.channel.send(do="alive")
                return
            case "clock":
                self.measured.add(str(message["node"]))
                self.clocks[str(message["node"])] = (float(message["ahead"]), float(message["within"]))
            case "worker-task-stopped":
                self.losses.tell_stopped(message["node"])
                return
            case "ucx-failed" | "memory-reduced":
                self._warn_of(event, message)
        self.events.write(event, **message)

    def _count_worker(self, event: str, message: dict[str, Any]) -> None:
        change = self.present.add if event == "worker-added" else self.present.discard
        change(str(message["worker"]))
        message["count"] = len(self.present)
        if message.get("silent") and not self.closing:
            self.warn(f"Dask removed worker {message['worker']}: no heartbeat for too long (stopped, or its node is).")

    def _note_silent(self, silent: Mapping[str, float]) -> None:
        """Write down since when workers of nodes are silent, if these are others than before."""
        if silent.keys() != self.silent and not self.closing:
            self.silent = set(silent)
            now = time.time()
            self.events.write("workers-silent", since={node: round(now - seconds) for node, seconds in silent.items()})

    def _warn_of(self, event: str, message: dict[str, Any]) -> None:
        if event == "ucx-failed":
            self.warn(f"UCX does not start in the scheduler, so it cannot ask workers: {message['problem']}")
            return
        pool, wanted = (gpus.in_gib(int(message[key])) for key in ("pool", "wanted"))
        self.warn(f"GPU worker {message['worker']} works with {pool} of memory, not {wanted}: no more was free")

    def time_to_look(self) -> bool:
        """Whether the files that other nodes write are to be looked at again."""
        if time.monotonic() - self.looked < max(SLOW_TICK, LOOK_EACH * self.context.settings.nodes):
            return False
        self.looked = time.monotonic()
        return True

    # -- reasons to end -------------------------------------------------------------------------------------------

    def must_end(self) -> End | None:
        """Return why the script has to end before its own end, if it has to."""
        try:
            self.end_requests.check(self.phase)
            self.check_scheduler()
            self._check_workers()
        except RunEndedError as ended:
            return ended.end
        return None

    def check_scheduler(self) -> None:
        """End the run if the scheduler is gone, and the script did not close it."""
        if self.channel.closed and not self.released:
            reason = f"the Dask scheduler on {self.context.node} was lost{diagnosis.scheduler_end(self.context)}"
            raise self.end(errors.ROLE_LOST, reason, quote=diagnosis.scheduler_log(self.context))

    def _check_workers(self) -> None:
        """End the run if no worker is left that could come back, or if the policy says so."""
        if self.released or not self.time_to_look():
            return
        lost = self.steps.lost_tasks()
        missing = self.losses.look(self.present, step_gone=self.steps.gone("worker"), lost=lost)
        final = [node for node in missing if node.final]
        none_left = not self.present and len(final) == len(missing)
        self.losses.tell(missing)
        absent = sum(len(node.workers) for node in missing)
        self.hangs.look(absent, final=len(final) == len(missing))
        if final and (self.context.settings.on_loss == "fail" or none_left):
            reason = f"workers were lost: {diagnosis.sentences(final)}"
            raise self.end(errors.ROLE_LOST, reason, quote=final[0].quote)
