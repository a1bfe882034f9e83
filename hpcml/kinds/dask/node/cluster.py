"""The phases before the script: keys, scheduler, workers and fabric, each with its deadline."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from hpcml import errors
from hpcml.failures.end import End
from hpcml.kinds.dask.node import diagnosis, gpus
from hpcml.kinds.dask.node.losses import LAST_WORDS
from hpcml.node import files, scratch
from hpcml.node.hardware.network import ucx_environment
from hpcml.node.outcome import RunEndedError, say
from hpcml.node.run_state import RunState
from hpcml.node.security import tls
from hpcml.node.versions import Comparison

CERTIFICATE_WITHOUT_LIMIT = 8 * 86400.0  # seconds; a job without a time limit of its own
NO_FOLDER = "The folder that the run was submitted from must exist on the compute nodes."


class BringUp:
    """Bring the cluster up; whatever keeps it from coming ends the run (RunEndedError).

    ``folders`` is what is removed at the run's end.
    """

    def __init__(self, state: RunState, folders: contextlib.ExitStack) -> None:
        self.state, self.context, self.settings = state, state.context, state.context.settings
        self.folders = folders
        self.versions = Comparison(state.context)
        self.closed_at = 0.0

    def run(self) -> dict[str, str]:
        """Make the keys, wait for the scheduler and for every worker; return the script's environment."""
        state, settings = self.state, self.settings
        if not os.access(settings.cwd, os.X_OK):
            reason = f"the folder that the script runs in cannot be entered: {settings.cwd}"
            raise state.end(errors.START_FAILED, reason, NO_FOLDER)
        state.phase = "keys"
        self._make_keys()
        files.write_json(self.context.attempt.control, {"socket": str(state.channel.path), "node": self.context.node})
        state.phase = "scheduler"
        self._until(lambda: bool(state.address), settings.scheduler_deadline, self._scheduler_missing)
        environment = self._environment()  # now, because it imports Dask's settings: the workers need longer
        state.phase = "workers"
        count = settings.worker_count
        self._until(lambda: len(state.present) >= count, settings.workers_deadline, self._workers_missing)
        self._compare_versions()
        state.events.write("workers-ready", count=count, seconds=state.seconds)
        if settings.fabric != "none" and (settings.gpu or settings.fabric == "rdma" or state.protocol == "ucx"):
            state.phase = "fabric"
            self._check_fabric()
        return environment

    def _make_keys(self) -> None:
        lifetime = (self.settings.time_limit or CERTIFICATE_WITHOUT_LIMIT) + tls.LATE
        try:
            tls.make_certificate(self.context.attempt, lifetime)
            tls.make_ucx_key(self.context.attempt)
        except ImportError as error:
            hint = "Install hpcml with its extra 'node' in the run's environment (runtime.python)."
            reason = f"the run's environment lacks a package: {error}"
            raise self.state.end(errors.START_FAILED, reason, hint) from error

    def _environment(self) -> dict[str, str]:
        """Return the script's environment, in which a plain ``Client()`` is let into the cluster."""
        state, settings = self.state, self.settings
        chosen: dict[str, str] = {}
        if state.protocol == "ucx":
            chosen = tls.as_variables(gpus.ucx_settings(settings.gpu, worker=False))
            chosen |= ucx_environment(single_node=settings.single_node)
        own = tls.client_environment(self.context.attempt, state.address, state.protocol)
        own |= tls.as_variables({"temporary-directory": self._dask_folder()})
        return {**chosen, **os.environ, **own}  # what the user chose of UCX stays

    def _dask_folder(self) -> str:
        """Make the folder for what the script has Dask start: in Dask's own place in /tmp anybody may put modules."""
        place = scratch.place_for_dask(self.context)
        sockets = self.state.channel.path.parent
        if Path(place) == sockets.parent:
            return str(sockets)
        return str(self.folders.enter_context(scratch.Folder(place)).path)

    def _until(self, done: Callable[[], bool], seconds: float, missing: Callable[[float, bool], End | None]) -> None:
        """Wait, and end the run as soon as ``missing`` says that it is in vain, at the latest at the deadline."""
        state = self.state
        deadline = state.clock.seconds + seconds  # a suspended job's deadlines wait too
        while not done():
            state.step()
            state.end_requests.check(state.phase)
            if state.phase != "scheduler":
                state.check_scheduler()
            late = state.clock.seconds > deadline
            if late or state.time_to_look():
                self._compare_versions()
                step_gone = state.steps.gone("scheduler" if state.phase == "scheduler" else "worker")
                if outcome := missing(seconds if late else 0.0, step_gone):
                    raise RunEndedError(outcome)

    def _scheduler_missing(self, late: float, step_gone: bool) -> End | None:
        closed = self.state.channel.closed
        if closed and not self.closed_at:
            self.closed_at = time.monotonic()
        silent = closed and time.monotonic() - self.closed_at > LAST_WORDS
        return diagnosis.of_the_scheduler(self.context, silent, late, step_gone=step_gone)

    def _workers_missing(self, late: float, step_gone: bool) -> End | None:
        lost = self.state.steps.lost_tasks()
        return diagnosis.of_the_workers(self.context, self.state.present, late, step_gone=step_gone, lost=lost)

    def _fabric_missing(self, late: float, _: bool) -> End | None:
        if late:
            problem = f"the fabric check did not end within {late:g} s"
            self.state.fabric = {"line": "", "ok": False, "problem": problem}
            self.state.events.write("fabric-checked", **self.state.fabric)
        return None

    def _compare_versions(self) -> None:
        """End the run if a role has other versions than the driver; write down when all have told theirs."""
        state, compared = self.state, self.versions
        was_complete = compared.complete
        compared.look()
        state.clocks = compared.clocks.bounds | {node: state.clocks[node] for node in state.measured}
        if compared.clocks.fatal:
            hint = "The run's certificate is not valid there. Leave the node out, and tell the site's support."
            raise state.end(errors.WORKERS_NEVER_CAME, compared.clocks.fatal, hint)
        if was_complete:
            return
        if compared.ends:
            what = "image" if self.settings.image else "environment"
            where = "The image" if self.settings.image else "The environment of runtime.python"
            hint = f"{where} must be the same on all nodes: keep it on a file system that they share, or copy it anew."
            raise RunEndedError(End(errors.VERSIONS, what, "hpcml", compared.ends, hint))
        if compared.complete:
            facts = {"words": compared.words, "versions": compared.own, "differences": compared.notes}
            state.events.write("environment-ready", seconds=state.seconds, **facts)
            if compared.clocks.note:
                state.warn(f"{compared.clocks.note}. Tell the site's support: logs and files have wrong times.")

    def _check_fabric(self) -> None:
        """Have the scheduler measure the network between the workers; the policy decides what its answer means."""
        state, settings = self.state, self.settings
        state.events.write("fabric-checking")
        state.channel.send(do="check-fabric")
        self._until(lambda: state.fabric is not None, settings.fabric_deadline, self._fabric_missing)
        answer = state.fabric or {}
        if line := str(answer.get("line", "")):
            say(self.context, f"fabric: {line}")
        for difference in answer.get("differences", ()):
            say(self.context, f"nodes differ: {difference}")
        if not answer["problem"]:
            return
        say(self.context, f"fabric: {answer['problem']}")
        if settings.fabric == "rdma":
            where = "See fabric.json in the run's directory; fabric.require = 'warn' goes on."
            hint = str(answer.get("remedy") or where)
            raise state.end(errors.FABRIC, str(answer["problem"]), hint, (line,) if line else ())
