"""What waits for something that cannot come, while the script runs: said once, and ended where a deadline says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcml import errors
from hpcml.failures.end import End
from hpcml.forms import Form
from hpcml.kinds.dask.node.control_socket import warn_after
from hpcml.node.outcome import RunEndedError
from hpcml.node.processes import OwnTime
from hpcml.node.settings import Context

WAITED = 10.0  # seconds of asking for workers after which it is said
STUCK = 30.0  # seconds without any activity after which tasks that no worker may run are said


class Hangs:
    """What the scheduler tells of its use, and what follows from it.

    All durations are of time in which the supervisor itself, or the scheduler, ran: a suspended job does not hang.
    """

    def __init__(self, context: Context, clock: OwnTime, warn: Callable[[str], None]) -> None:
        self.context, self.clock, self.warn = context, clock, warn
        self.use: Mapping[str, Any] = {}  # of the cluster, as the scheduler tells it every second
        self.heard = self.began = clock.seconds

    def begin(self) -> None:
        """The script starts now."""
        self.heard = self.began = self.clock.seconds

    def take(self, use: Mapping[str, Any]) -> None:
        """Take in what the scheduler tells every second."""
        self.use, self.heard = use, self.clock.seconds

    def look(self, missing: int, *, final: bool) -> None:
        """Say what is noticed, and end the run (RunEndedError) where a deadline has passed.

        ``missing`` workers are not there; ``final``: none of them can come back.
        """
        self._look_at_scheduler()
        if self.context.settings.code.form is Form.JUPYTER or not self.use:
            return  # a service ends for idleness by itself
        ran = self.heard - self.began  # a scheduler that is held up has not reported what happened since
        idle = min(float(self.use["idle"]), ran)
        self._look_at_use(ran, idle)
        if (stuck := self.use["stuck"]) and idle > STUCK and not missing:
            count = f"{stuck} tasks wait" if stuck > 1 else "A task waits"
            self.warn(f"{count} for a worker with resources, or of a name, that no worker has (resources=, workers=).")
        if not missing or final:
            self._look_at_waiting(float(self.use["waited"]), missing)

    def _look_at_scheduler(self) -> None:
        silent, deadline = self.clock.seconds - self.heard, self.context.settings.deadlines.answer
        sentence = f"the Dask scheduler on {self.context.node} has not answered for"
        if silent > deadline:
            reason = f"{sentence} {deadline:g} s"
            hint = "Was it stopped, or is it busy with a very large graph? deadlines.answer gives it longer."
            raise _ended(errors.ROLE_LOST, reason, hint)
        if silent > warn_after(deadline):
            self.warn(f"{sentence} {warn_after(deadline):g} s; the run ends if it does not within {deadline:g} s.")

    def _look_at_use(self, ran: float, idle: float) -> None:
        settings = self.context.settings
        held = f"{settings.job.nodes} nodes are held" if settings.job.nodes > 1 else "its node is held"
        if not self.use["connected"] and ran > settings.deadlines.connect_notice > 0:
            self.warn(
                f"The script has run for {settings.deadlines.connect_notice:g} s without connecting to its cluster. "
                "Client() and hpcml.connect() find it; in processes that the script starts, Client(scheduler_file=…), "
                "another address and LocalCluster() do not. A script that needs no cluster goes on."
            )
        if idle > settings.deadlines.idle_notice > 0:
            self.warn(f"Nothing has used the cluster for {_duration(settings.deadlines.idle_notice)}, and {held}.")
        if idle > settings.deadlines.idle_end > 0:
            reason = f"nothing used the cluster for {_duration(settings.deadlines.idle_end)}"
            hint = "deadlines.idle ends such a run; 0s lets it go on."
            raise _ended(errors.IDLE, reason, hint)

    def _look_at_waiting(self, waited: float, missing: int) -> None:
        if waited <= WAITED:
            return
        total, deadline = self.context.settings.worker_count, self.context.settings.deadlines.workers
        sentence = f"the script waits for more workers than the {total - missing} that the run has (wait_for_workers)"
        self.warn(f"{sentence}; the run ends if it still does after {deadline:g} s.")
        if waited > deadline:
            hint = "Wait for fewer, or ask for more: --nodes, or workers.per_node."
            raise _ended(errors.WORKERS_NEVER_CAME, sentence, hint)


def _ended(status: int, reason: str, hint: str) -> RunEndedError:
    return RunEndedError(End(status, "driver", "hpcml", reason, hint))


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:g} s"
