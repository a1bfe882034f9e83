"""The Dask cluster of a run, as its supervisor sees it: how it starts, what it reports, what a loss means, its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcml import errors, installed_packages
from hpcml.failures import job_log
from hpcml.failures.end import End, Reason
from hpcml.kind import Hindrance
from hpcml.kinds.dask.node import gpus, late_cluster, lost_workers, temporary_directory
from hpcml.kinds.dask.node import messages as dask_messages
from hpcml.kinds.dask.node.lost_workers import Losses
from hpcml.kinds.dask.node.security import tls
from hpcml.kinds.dask.own_settings import Own
from hpcml.kinds.dask.roles import NEEDS, SCHEDULER
from hpcml.node import prestarted_role, scratch, shared_files
from hpcml.node.agents import Agents
from hpcml.node.context import Context
from hpcml.node.events_and_end import RunEndedError
from hpcml.node.hardware.dask_protocol import own_addresses, ucx_environment
from hpcml.node.interconnect import record, result
from hpcml.node.job_steps import LAST_WORDS
from hpcml.node.missing_processes import Absence
from hpcml.node.process_helpers import OwnTime
from hpcml.node.run_state import TICK, RunState
from hpcml.node.silent_supervisor import warn_after
from hpcml.node.tasks import process
from hpcml.node.tasks.process import Script, can_wait, world_of_one
from hpcml.node.tasks.task import Task, of_run
from hpcml.node.versions_and_clocks import Comparison
from hpcml.paths import SCRIPT
from hpcml.units import format_deadline

ORDERLY = 2.0  # seconds that scheduler and workers have to close by themselves, a quarter if they never were all up
ORDERLY_EACH = 0.003  # seconds more for each worker: one scheduler tells them all
PROFILING = 0.8  # of the teardown's deadline, that they have to close where profiles are to be finished
CERTIFICATE_WITHOUT_LIMIT = 8 * 86400.0  # seconds; a job without a time limit of its own
TOLD = 10.0  # seconds that an agent whose workers are there has to tell its versions
WAITED = 10.0  # seconds of asking for workers after which it is said
STUCK = 30.0  # seconds without any activity after which tasks that no worker may run are said


class Processes:
    """The cluster. ``folders`` is what is removed at the run's end.

    The scheduler reports over the link, beside its node's agent, and takes orders there.
    """

    def __init__(self, state: RunState, folders: contextlib.ExitStack) -> None:
        self.state, self.context, self.settings = state, state.context, state.context.settings
        self.folders = folders
        self.versions = Comparison(state.context, state.kind.roles, behind=tls.EARLY, ahead=tls.LATE)
        addresses = own_addresses(self.settings.network.interface, single_node=self.settings.single_node)
        self.agents = Agents(state, folders, addresses, self.versions, dask_messages.EVENTS)
        self.scheduler = f"{SCHEDULER.name}@{state.context.node}"  # its line
        self.losses = Losses(Absence(state, self.agents, lost_workers.WORDS))
        self.hangs = Hangs(state.context, state.clock, state.warn)
        self.address = self.protocol = ""  # the scheduler's address; auto, tls or ucx as the scheduler chose
        self.present: set[str] = set()  # the names of the workers that have registered
        self.without_gpu = False  # whether a worker was said to restart after a CUDA error
        self.pools: dict[str, dict[str, int]] = {}  # by worker of this node: its process and its GPU memory pool
        self.interconnect: dict[str, Any] | None = None  # the result of the interconnect's check
        self.of_tasks: list[str] = []  # what to say of the script's tasks if it ended with 0
        self.released = False  # whether the script closed the cluster itself
        self.has_client = False  # whether a Dask client ever connected
        self.closing = False  # whether the supervisor has told it to close
        self.silent_nodes: set[str] = set()  # those whose workers send no heartbeats
        self.closed_at = 0.0
        self.waiting: Script | None = None  # the script, whose interpreter starts before the workers are there
        self.late = False  # whether the cluster still waits for the script's first client
        self.script: Script | None = None  # once it runs

    # -- startup --------------------------------------------------------------------------------------------------

    def start(self) -> dict[str, str]:
        """Start the cluster, or have it wait for the script's first client; return the script's environment."""
        self.agents.begin()
        self.late = self.settings.workers.late
        if not self.late:
            return self._start()
        self.state.events.write("cluster-waits")
        return {**os.environ, late_cluster.VARIABLE: late_cluster.ADDRESS}

    def _start(self) -> dict[str, str]:
        """Make the keys, wait for the scheduler and for every worker; return the script's environment."""
        state, settings = self.state, self.settings
        state.phase = "keys"
        self._make_keys()
        self.agents.order(do=dask_messages.START)
        if not (self.script or prestarted_role.WAITING or settings.workers.gpu):  # UCX gives the script other variables
            process.start_ahead(self.context, state.kind, is_of_run=True)
            self.folders.callback(prestarted_role.end_waiting)
        state.phase = SCHEDULER.name
        self._until(lambda: bool(self.address), settings.deadlines.scheduler, self._scheduler_missing)
        environment = self._environment()  # now, because it imports Dask's settings: the workers need longer
        if not self.script:
            self._start_script(environment | state.script_variables)
        state.phase = "workers"
        count = settings.worker_count
        self._until(lambda: len(self.present) >= count, settings.deadlines.workers, self._workers_missing)
        state.judge(self.versions)
        limit = state.clock.seconds + TOLD
        told = lambda: self.versions.complete or state.clock.seconds > limit  # noqa: E731 - a node behind a port filter
        self._until(told, settings.deadlines.workers, self._workers_missing)
        state.judge(self.versions)
        state.events.write("workers-ready", count=count, seconds=state.seconds)
        state.note_repairs(self.versions.local)
        if settings.interconnect.require != "none" and (
            settings.workers.gpu or settings.interconnect.require == "rdma" or self.protocol == "ucx"
        ):
            state.phase = "interconnect"
            self._check_interconnect()
        if settings.workers.gpu:  # not before: it would disturb the measurement
            self.agents.hub.send(self.scheduler, do=dask_messages.IMPORT)
        return environment

    def _start_late(self) -> None:
        """Start the cluster that the script asks for, while the script waits; nothing more if the script ends."""
        state, phase = self.state, self.state.phase
        self.late = False
        state.events.write("cluster-wanted")
        try:
            late_cluster.answer(self.context, self._start())
        except _ScriptEndedError:
            self.released = True  # nobody needs the cluster any more
        state.phase = phase
        self.hangs.begin()

    def _make_keys(self) -> None:
        if missing := [name for name in NEEDS if find_spec(name) is None]:
            reason, hint = installed_packages.lacking(sys.executable, missing)
            if image := self.settings.job.image:
                hint = f"Build the image {image} with these packages (hpcml image build --help)."
            raise self.state.end(errors.START_FAILED, reason, hint, reason=Reason.LACKS_PACKAGES)
        lifetime = (self.settings.job.time_limit or CERTIFICATE_WITHOUT_LIMIT) + tls.LATE
        try:
            tls.make_certificate(self.context.attempt, lifetime)
            tls.make_data_key(self.context.attempt)
        except ImportError as error:
            hint = f"Install it again: {installed_packages.install(sys.executable, ['cryptography'])}."
            reason = f"the run's Python ({sys.executable}) cannot import cryptography: {error}"
            raise self.state.end(errors.START_FAILED, reason, hint, reason=Reason.LACKS_PACKAGES) from error

    def _environment(self) -> dict[str, str]:
        """Return the script's environment, in which a plain ``Client()`` is let into the cluster."""
        settings = self.settings
        chosen: dict[str, str] = {}
        if self.protocol == "ucx":
            chosen = tls.as_variables(gpus.ucx_settings(settings.workers.gpu, worker=False))
            chosen |= ucx_environment(single_node=settings.single_node, tcp=settings.ucx != "rdma")
        client_variables = tls.client_environment(self.context.attempt, self.address, self.protocol)
        client_variables |= tls.as_variables({"temporary-directory": self._dask_folder()})
        return {**chosen, **os.environ, **client_variables}  # what the user chose of UCX stays

    def _start_script(self, environment: dict[str, str]) -> None:
        """Start the script's interpreter, which imports Dask and waits: the workers need longer."""
        task, programs = of_run(self.context), self.state.kind.programs
        if can_wait(self.context, programs):
            with contextlib.suppress(OSError):  # then it cannot be started later either, which run() says
                self.waiting = Script(self.context, task, environment, programs, waits=True)
                self.folders.callback(self.waiting.end_unbegun)

    def _dask_folder(self) -> str:
        """Make the folder for what the script has Dask start: in Dask's own place in /tmp anybody may put modules."""
        place = temporary_directory.of_role(self.context)
        if Path(place) == self.state.folder.parent:
            return str(self.state.folder)
        return str(self.folders.enter_context(scratch.Folder(place)).path)

    def _until(self, done: Callable[[], bool], seconds: float, missing: Callable[[float], End | None]) -> None:
        """Wait, and end the run as soon as ``missing`` says that waiting is useless, at the latest at the deadline."""
        state = self.state
        deadline = state.clock.seconds + seconds  # a suspended job's deadlines wait too
        while not done():
            self.step()
            if self.script and self.script.poll() is not None:
                raise _ScriptEndedError
            state.end_requests.check(state.phase)
            if state.phase != SCHEDULER.name:
                self._check_scheduler()
            late = state.clock.seconds > deadline
            if late or state.time_to_look():
                state.judge(self.versions)
                if outcome := missing(seconds if late else 0.0):
                    raise RunEndedError(outcome)

    def _scheduler_missing(self, late: float) -> End | None:
        closed, step_gone = self.silent, self.state.steps.gone(SCHEDULER.name)
        if closed and not self.closed_at:
            self.closed_at = time.monotonic()
        silent = closed and time.monotonic() - self.closed_at > LAST_WORDS
        outcome = lost_workers.of_the_scheduler(self.context, silent, late, step_gone=step_gone)
        return None if outcome and not late and self.state.steps.still_writes(SCHEDULER.name) else outcome

    def _workers_missing(self, late: float) -> End | None:
        return lost_workers.of_the_workers(self.losses.absence, self.present, late)

    def _interconnect_missing(self, late: float) -> End | None:
        if late:
            self.interconnect = record.too_late(late)
            self.state.events.write("interconnect-checked", **self.interconnect)
        return None

    def _check_interconnect(self) -> None:
        """Have the scheduler measure the network between the workers; the policy decides what its answer means."""
        state, settings = self.state, self.settings
        state.events.write("interconnect-checking")
        self.agents.hub.send(self.scheduler, do="check-interconnect")
        self._until(lambda: self.interconnect is not None, settings.deadlines.interconnect, self._interconnect_missing)
        result.obey(state, self.interconnect or {})

    # -- what it reports ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take in what the scheduler and the agents report, for at most one tick."""
        self.state.clock.tick()
        for name, message in self.agents.receive(TICK):
            if name == self.scheduler:
                self._take(message.pop("event"), message)

    def _take(self, event: str, message: dict[str, Any]) -> None:
        match event:
            case "client-added":
                self.has_client = True
            case "remarks":
                self.of_tasks = list(map(str, message["sentences"]))
            case "use":
                self.hangs.take(message)
                self._note_silent(message["silent"])
            case "worker-task-stopped":
                self.losses.tell_stopped(message["node"])
            case _ if event in dask_messages.EVENTS:
                self._write(event, message)

    def _write(self, event: str, message: dict[str, Any]) -> None:
        """Take in what belongs into the run's events."""
        match event:
            case "scheduler-up":
                self.address, self.protocol = str(message["address"]), str(message["protocol"])
                addresses = [self.address, *message.pop("shares")]
                self.agents.order(do=dask_messages.SCHEDULER_IS_UP, addresses=addresses, protocol=self.protocol)
            case "worker-added" | "worker-removed":
                self._count_worker(event, message)
                if self.closing:  # all workers go now
                    return
            case "scheduler-closed":
                self.released = True
            case "interconnect-checked":
                self.interconnect = message
            case "clock":
                self.state.measured.add(str(message["node"]))
                self.state.clocks[str(message["node"])] = (float(message["ahead"]), float(message["within"]))
            case "ucx-failed" | "memory-reduced" | "gpu-pool" | dask_messages.NO_GPU:
                self._note_gpus(event, message)
        self.state.events.write(event, **message)

    def _count_worker(self, event: str, message: dict[str, Any]) -> None:
        change = self.present.add if event == "worker-added" else self.present.discard
        change(str(message["worker"]))
        message["count"] = len(self.present)
        if message.get("silent") and not self.closing:
            self.state.warn(
                f"Dask removed worker {message['worker']}, which sent no heartbeat for too long "
                "(the worker or its node was stopped)."
            )

    def _note_silent(self, silent: Mapping[str, float]) -> None:
        """Write down since when workers of nodes are silent, if these are others than before."""
        if silent.keys() != self.silent_nodes and not self.closing:
            self.silent_nodes = set(silent)
            now = time.time()
            self.state.events.write(
                "workers-silent", since={node: round(now - seconds) for node, seconds in silent.items()}
            )

    def _note_gpus(self, event: str, message: dict[str, Any]) -> None:
        """Warn of what GPU workers lack; write down who has the GPU memory of the script's node, for ``hpcml why``."""
        if event == "gpu-pool":
            if message["node"] == self.context.node:
                self.pools[str(message["worker"])] = {"pid": int(message["pid"]), "pool": int(message["pool"])}
                shared_files.write_json(self.context.attempt.gpu_pools, self.pools)
            return
        if event == "ucx-failed":
            sentence = "UCX did not start in the Dask scheduler, so the scheduler cannot reach the workers"
            self.state.warn(f"{sentence}: {message['problem']}")
            return
        if event == dask_messages.NO_GPU:
            self._warn_without_gpu(**message)
            return
        pool, wanted = (gpus.in_gib(int(message[key])) for key in ("pool", "wanted"))
        self.state.warn(
            f"GPU worker {message['worker']} uses {pool} of GPU memory, not {wanted}: no more GPU memory was free"
        )

    def _warn_without_gpu(self, worker: str, node: str, error: str) -> None:
        """Warn of the first worker that restarts after a CUDA error; the events tell all."""
        if not (self.closing or self.without_gpu):
            self.without_gpu = True
            self.state.warn(
                f"{node}: worker {worker} restarts: a task raised {error}, after which a process cannot use its GPU; "
                "only the node's log shows further restarts for this reason."
            )

    # -- what a loss means ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """End the run if the scheduler is gone, or workers that it needs; start the cluster when the script asks."""
        if self.late:
            if self.versions.complete and not (self.versions.ends or self.versions.clocks.fatal):
                self.state.judge(self.versions)  # differences end the run only when the roles form a cluster
            if self.context.attempt.cluster_wanted.name in self.state.end_requests.names:
                self._start_late()
            return
        self._check_scheduler()
        self._check_workers()

    def _check_scheduler(self) -> None:
        """End the run if the scheduler is gone, and the script did not close it."""
        if self.silent and not self.released:
            reason = f"the Dask scheduler on {self.context.node} was lost{lost_workers.scheduler_end(self.context)}"
            raise self.state.end(
                errors.ROLE_LOST,
                reason,
                quote=job_log.of_role(self.context.run, SCHEDULER, self.context.node),
                **lost_workers.of_scheduler(self.context),
            )

    def _check_workers(self) -> None:
        """End the run if no worker is left that could come back, or if the policy says so."""
        if self.released or not self.state.time_to_look():
            return
        missing = self.losses.look(self.present)
        final = [node for node in missing if node.final]
        none_left = not self.present and len(final) == len(missing)
        self.losses.tell(missing)
        absent = sum(len(node.workers) for node in missing)
        self.hangs.look(absent, final=len(final) == len(missing))
        if final and (self.context.settings.own(Own).on_loss == "fail" or none_left):
            reason = f"workers were lost: {lost_workers.sentences(final)}"
            raise self.state.end(errors.ROLE_LOST, reason, quote=final[0].quote, **lost_workers.of_nodes(final))

    # -- its end --------------------------------------------------------------------------------------------------

    def run(self, task: Task, environment: dict[str, str]) -> Script:
        """Start a task, and begin to watch whether it uses the cluster."""
        script = self.waiting or Script(self.context, task, environment, self.state.kind.programs)
        script.begin()
        self.hangs.begin()
        self.script = script
        return script

    def hindrance(self, status: int) -> Hindrance | None:
        """Return the hindrance of idle other nodes, where MPI or JAX started alone and no Dask client connected."""
        if status or not (alone := world_of_one(self.context, self.context.attempt.world)):
            return None
        self.step()  # what the scheduler reported up to the script's end
        if self.has_client:
            return None
        nodes = self.settings.job.nodes
        reason = f"{alone} on one of {nodes} nodes, and no Dask client connected: the other nodes did nothing"
        hint = "Add --ranks N, and for an MPI program also --mpi pmix or --mpi pmi2. Or request one node: --nodes 1."
        return Hindrance(errors.START_FAILED, reason, f"{hint} More: hpcml help ranks.")

    def close(self) -> float:
        """Tell the scheduler to close itself and its workers; return the seconds that this may take."""
        self.closing = True
        self.agents.order(do="close")
        longest = self.settings.deadlines.teardown * PROFILING
        orderly = (
            longest
            if self.settings.report.profilers
            else min(ORDERLY + ORDERLY_EACH * self.settings.worker_count, longest)
        )
        return orderly if self.state.script_began else ORDERLY / 4

    @property
    def silent(self) -> bool:
        """Whether the scheduler's line has ended."""
        return self.scheduler in self.agents.lost

    def remarks(self) -> list[str]:
        """Return the scheduler's remarks on tasks that the script did not wait for."""
        return [] if not self.settings.code.form.traits.is_script or self.settings.points.sweep else self.of_tasks


class _ScriptEndedError(Exception):
    """The script ended while its cluster started."""


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
        if self.context.settings.code.form.traits.web_service or not self.use:
            return  # a service ends for idleness by itself
        ran = self.heard - self.began  # a scheduler that is held up has not reported what happened since
        idle = min(float(self.use["idle"]), ran)
        self._look_at_use(ran, idle)
        if (stuck := self.use["stuck"]) and idle > STUCK and not missing:
            count = f"{stuck} tasks wait" if stuck > 1 else "A task waits"
            self.warn(f"{count}: no worker has the resources or the name that a task needs (resources= or workers=).")
        if not missing or final:
            self._look_at_waiting(float(self.use["waited"]), missing)

    def _look_at_scheduler(self) -> None:
        silent, deadline = self.clock.seconds - self.heard, self.context.settings.deadlines.answer
        sentence = f"the Dask scheduler on {self.context.node} has not answered for"
        if silent > deadline:
            reason = f"{sentence} {deadline:g} s"
            hint = "The scheduler is suspended (SIGSTOP), or busy with a very large task graph."
            hint += " To wait longer, increase deadlines.answer."
            raise _ended(errors.ROLE_LOST, reason, hint, **lost_workers.of_scheduler(self.context))
        if silent > warn_after(deadline):
            self.warn(f"{sentence} {warn_after(deadline):g} s; the run ends after {deadline:g} s without an answer.")

    def _look_at_use(self, ran: float, idle: float) -> None:
        settings = self.context.settings
        held = (
            f"{settings.job.nodes} nodes stay reserved" if settings.job.nodes > 1 else "the run's node stays reserved"
        )
        if not self.use["connected"] and ran > settings.deadlines.connect_notice > 0:
            self.warn(
                f"The script has not connected to its Dask cluster for {settings.deadlines.connect_notice:g} s. "
                "Client() and hpcml.connect() connect to the cluster, also in child processes that keep PYTHONPATH. "
                "A script that needs no cluster can run without Dask: see hpcml help ranks."
            )
        if idle > settings.deadlines.idle_notice > 0:
            self.warn(
                f"Nothing has used the Dask cluster for {format_deadline(settings.deadlines.idle_notice)}, and {held}."
            )
        if idle > settings.deadlines.idle > 0:
            reason = f"nothing used the Dask cluster for {format_deadline(settings.deadlines.idle)}"
            hint = "You or the site set deadlines.idle (default: off). Set a longer time, or end the script earlier."
            raise _ended(errors.IDLE, reason, hint)

    def _look_at_waiting(self, waited: float, missing: int) -> None:
        if waited <= WAITED:
            return
        total, deadline = self.context.settings.worker_count, self.context.settings.deadlines.workers
        sentence = f"the script waits in wait_for_workers() for more workers than the run has ({total - missing})"
        self.warn(f"{sentence}; the run ends if the script still waits after {deadline:g} s.")
        if waited > deadline:
            hint = "Wait for fewer workers, or start more workers (--nodes or workers.per_node)."
            raise _ended(errors.WORKERS_NEVER_CAME, sentence, hint)


def _ended(status: int, message: str, hint: str, **fields: Any) -> RunEndedError:
    return RunEndedError(End(status, SCRIPT, "hpcml", message, hint, **fields))
