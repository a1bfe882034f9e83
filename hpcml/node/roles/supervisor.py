"""The driver role: supervise the run from the first node. Phases with deadlines, then the script, then teardown."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml import errors
from hpcml.node import files, scratch, storage
from hpcml.node.clocks import Clocks
from hpcml.node.control import Channel
from hpcml.node.events import EventLog
from hpcml.node.hardware import gpus
from hpcml.node.hardware.network import ucx_environment
from hpcml.node.health import diagnosis
from hpcml.node.health.hangs import Hangs
from hpcml.node.health.losses import LAST_WORDS, Losses, Steps
from hpcml.node.health.versions import Comparison
from hpcml.node.outcome import Outcome, RunEndedError, say
from hpcml.node.own_time import OwnTime
from hpcml.node.roles import end_cause
from hpcml.node.roles.script import Script
from hpcml.node.security import tls
from hpcml.node.settings import Context, load

TICK = 0.05  # seconds between looks at this node's processes
NOTES_TICK = 0.25  # seconds between looks at the notes that the batch script leaves
ROOM_TICK = 5.0  # seconds between questions to the run's file system whether it is full
SLOW_TICK = 0.5  # seconds between looks at files that other nodes write
CERTIFICATE_WITHOUT_LIMIT = 8 * 86400.0  # seconds; a job without a time limit of its own
ORDERLY = 2.0  # seconds that scheduler and workers have to close by themselves, a quarter if they never were all up
_PLACE = "Set paths.scratch in the profile, or TMPDIR, to a folder of your own, or to a sticky one of root's."
SETTLE = 0.3  # seconds for Slurm's own signal to arrive beside the batch script's note


@dataclass(slots=True)
class Supervisor:
    """The state of the run as the supervisor sees it."""

    context: Context
    events: EventLog
    channel: Channel
    started: float = field(default_factory=time.monotonic)
    phase: str = "allocated"
    address: str = ""
    protocol: str = ""
    present: set[str] = field(default_factory=set)
    signalled: bool = False
    told_time: bool = False
    released: bool = False
    told_end: float = 0.0
    looked: float = 0.0
    fabric: dict[str, Any] | None = None
    versions: Comparison | None = None
    variables: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)
    notes_read: float = 0.0
    closed_at: float = 0.0
    folders: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    room_looked: float = 0.0
    clock: OwnTime = field(default_factory=OwnTime)
    steps: Steps = field(init=False)
    losses: Losses = field(init=False)
    hangs: Hangs = field(init=False)

    def __post_init__(self) -> None:
        """Take in the steps that the batch script started, and begin to count what is lost."""
        self.steps = Steps(self.clock)
        self.losses = Losses(self.context, self.events, self.clock, self.warn)
        self.hangs = Hangs(self.context, self.clock, self.warn)

    # -- phases ---------------------------------------------------------------------------------------------------

    def bring_up(self) -> None:
        """Make the keys, then wait for the scheduler and for every worker, each within its deadline."""
        settings = self.context.settings
        if not os.access(settings.cwd, os.X_OK):
            hint = "The folder that the run was submitted from must exist on the compute nodes."
            reason = f"the folder that the script runs in cannot be entered: {settings.cwd}"
            raise RunEndedError(self._outcome(errors.START_FAILED, reason, hint, ()))
        self.versions = Comparison(self.context)
        self.phase = "keys"
        lifetime = (settings.time_limit or CERTIFICATE_WITHOUT_LIMIT) + tls.LATE
        try:
            tls.make_certificate(self.context.attempt, lifetime)
            tls.make_ucx_key(self.context.attempt)
        except ImportError as error:
            hint = "Install hpcml with its extra 'node' in the run's environment (runtime.python)."
            reason = f"the run's environment lacks a package: {error}"
            raise RunEndedError(self._outcome(errors.START_FAILED, reason, hint, ())) from error
        files.write_json(self.context.attempt.control, {"socket": str(self.channel.path), "node": self.context.node})
        self.phase = "scheduler"
        self._until(lambda: bool(self.address), settings.scheduler_deadline, self._scheduler_missing)
        self.variables = self._variables()  # now, because it imports Dask's settings: the workers need longer
        self.phase = "workers"
        expected = {name for node in self.context.nodes for name in self.context.worker_names(node)}
        self._until(lambda: expected <= self.present, settings.workers_deadline, self._workers_missing)
        self._compare_versions()
        self.events.write("workers-ready", count=len(expected), seconds=round(time.monotonic() - self.started, 3))
        if settings.fabric != "none" and (settings.gpu or settings.fabric == "rdma" or self.protocol == "ucx"):
            self._check_fabric()

    def _check_fabric(self) -> None:
        """Have the scheduler try the wire between the workers; the policy decides what its answer means."""
        self.phase = "fabric"
        settings = self.context.settings
        self.events.write("fabric-checking")
        self.channel.send(do="check-fabric")
        deadline = time.monotonic() + settings.fabric_deadline
        while self.fabric is None and time.monotonic() < deadline:
            self._step()
            self._check_end_requests()
            self._check_scheduler()
        found = self.fabric
        if found is None:
            problem = f"the fabric check did not end within {settings.fabric_deadline:g} s"
            found = {"line": "", "ok": False, "problem": problem}
            self.events.write("fabric-checked", **found)
        if found.get("line"):
            say(self.context, f"fabric: {found['line']}")
        for difference in found.get("differences", ()):
            say(self.context, f"nodes differ: {difference}")
        if not found["problem"]:
            return
        say(self.context, f"fabric: {found['problem']}")
        if settings.fabric == "rdma":
            hint = str(
                found.get("remedy") or "See fabric.json in the run's directory; fabric.require = 'warn' goes on."
            )
            quote = (str(found["line"]),) if found.get("line") else ()
            raise RunEndedError(self._outcome(errors.FABRIC, str(found["problem"]), hint, quote))

    def run_script(self) -> Outcome:
        """Run the script to its end and return how it ended."""
        self.phase = "driver"
        try:
            script = Script(self.context, self.variables)
        except OSError as error:
            reason = f"the script could not be started: {error.strerror}: {error.filename}"
            at_home = error.filename == self.context.settings.cwd  # otherwise it is the interpreter, or a limit
            hint = "The folder that the run was submitted from must exist on the compute nodes." if at_home else ""
            return Outcome(errors.START_FAILED, self.phase, "hpcml", reason, hint)
        self.events.write("driver-started", pid=script.process.pid)
        self.hangs.begin()
        try:
            return self._follow(script)
        finally:
            script.kill()

    def _variables(self) -> dict[str, str]:
        """Return the script's environment, in which a plain ``Client()`` is let into the cluster."""
        settings = self.context.settings
        backends = tls.as_variables(gpus.dask_backends(settings.gpu))
        ucx: dict[str, str] = {}
        if self.protocol == "ucx":
            ucx = tls.as_variables(gpus.ucx_settings(settings.gpu, worker=False)) | ucx_environment(
                single_node=settings.single_node
            )
        own = tls.client_environment(self.context.attempt, self.address, self.protocol)
        own |= tls.as_variables({"temporary-directory": self._dask_folder()})
        nodes = {"HPCML_NODES": str(settings.nodes)}
        return {**backends, **ucx, **os.environ, **own, **nodes}  # a backend that the user chose stays

    def _dask_folder(self) -> str:
        """Make the folder for what the script has Dask start: in Dask's own place in /tmp anybody may put modules."""
        place = scratch.place_for_dask(self.context)
        sockets = self.channel.path.parent
        if Path(place) == sockets.parent:
            return str(sockets)
        return str(self.folders.enter_context(scratch.Folder(place)).path)

    def _follow(self, script: Script) -> Outcome:
        verdict: Outcome | None = None
        kill_at = float("inf")
        while (status := script.poll()) is None:
            self._step()
            self._look_for_room()
            if verdict is None and (verdict := self._must_end()):
                self.events.write("ending", reason=verdict.reason)
                kill_at = time.monotonic() + self.context.settings.driver_grace
                if not self.signalled:
                    script.tell_to_end()
            if time.monotonic() > kill_at:
                script.kill()
        self.events.write("driver-ended", status=status)
        if verdict is None or (status == 0 and verdict.status in (errors.TIME_LIMIT, errors.CANCELLED)):
            return self._own_end(script, status)
        # The kernel can take a role in the same moment as the script: then memory is the cause, and not the loss.
        if verdict.status == errors.ROLE_LOST and script.out_of_memory(status):
            return self._own_end(script, status)
        return verdict

    def _look_for_room(self) -> None:
        """Warn once when the run's file system is full: the script may not need it, and somebody may make room."""
        if self.clock.seconds - self.room_looked < ROOM_TICK:
            return
        self.room_looked = self.clock.seconds
        if found := storage.scarce(self.context.run.directory):
            self.warn(f"{found}: what the script and the logs write from now on is lost.")

    def _own_end(self, script: Script, status: int) -> Outcome:
        quote = () if status == 0 else tuple(files.tail(self.context.run.driver_log))
        by = "hpcml" if self.context.settings.service and status == errors.START_FAILED else "script"
        return Outcome(status, "driver", by, script.describe_end(status), quote=quote)

    def _must_end(self) -> Outcome | None:
        """Return why the script has to end before its own end, if it has to."""
        try:
            self._check_end_requests()
            self._check_scheduler()
            self._check_workers()
        except RunEndedError as ended:
            return ended.outcome
        return None

    def tear_down(self, outcome: Outcome) -> None:
        """Tell the scheduler to close itself and its workers, and wait for both steps within the deadline."""
        start = time.monotonic()
        storage.write_end(self.context.run, self.context.attempt.ended, {"status": outcome.status})
        outcome.write(self.context, "ending", self.warnings)
        self.channel.send(do="close")
        orderly = start + (ORDERLY if outcome.phase == "driver" else ORDERLY / 4)
        while (left := self.steps.alive()) and time.monotonic() < orderly:
            self.channel.receive(TICK)
        _force(left, local=self.context.settings.local)
        deadline = start + self.context.settings.teardown_deadline
        while self.steps.alive() and time.monotonic() < deadline:
            self.channel.receive(TICK)
        try:
            tls.remove_secrets(self.context.attempt)
        except OSError as error:  # they open nothing any more, and the script's status stays
            say(self.context, f"the keys could not be removed: {error}")
        self.events.write("torn-down", seconds=round(time.monotonic() - start, 3), killed=len(left))
        outcome.write(self.context, "ended", self.warnings)
        storage.release(self.context.run)

    def warn(self, sentence: str) -> None:
        """Say once, in the job's log, the events and the run's end, what the user has to know although it goes on."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            say(self.context, f"warning: {sentence}")  # the driver's log is the script's alone
            self.events.write("warning", sentence=sentence)

    # -- waiting --------------------------------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool], seconds: float, missing: Callable[[bool, float], None]) -> None:
        deadline = self.clock.seconds + seconds  # a suspended job's deadlines wait too
        while not done():
            self._step()
            self._check_end_requests()
            if self.phase == "workers":
                self._check_scheduler()
            late = self.clock.seconds > deadline
            if late or self._time_to_look():
                self._compare_versions()
                missing(late, seconds)

    def _compare_versions(self) -> None:
        """End the run if a role has other versions than the driver; write down when all have told theirs."""
        compared = self.versions
        if compared is None:
            return
        told = compared.complete
        compared.look()
        self._check_clocks(compared.clocks)
        if told:
            return
        if compared.ends:
            what = "image" if self.context.settings.image else "environment"
            where = "The image" if self.context.settings.image else "The environment of runtime.python"
            hint = f"{where} must be the same on all nodes: keep it on a file system that they share, or copy it anew."
            raise RunEndedError(Outcome(errors.VERSIONS, what, "hpcml", compared.ends, hint))
        if compared.complete:
            took = round(time.monotonic() - self.started, 3)
            self.events.write(
                "environment-ready",
                seconds=took,
                words=compared.words,
                versions=compared.own,
                differences=compared.notes,
            )
            if compared.clocks.note:
                self.warn(f"{compared.clocks.note}. Tell the site's support: logs and files have wrong times.")

    def _check_clocks(self, clocks: Clocks) -> None:
        """End the run if a node's clock is so wrong that the run's certificate is not valid there."""
        if clocks.fatal:
            hint = "The run's certificate is not valid there. Leave the node out, and tell the site's support."
            raise RunEndedError(self._outcome(errors.WORKERS_NEVER_CAME, clocks.fatal, hint, ()))

    def _step(self) -> None:
        """Take in what the scheduler says, for at most one tick."""
        self.clock.tick()
        for message in self.channel.receive(TICK):
            event = message.pop("event", "")
            if event == "scheduler-up":
                self.address, self.protocol = str(message["address"]), str(message["protocol"])
            elif event == "worker-added":
                self.present.add(str(message["worker"]))
                message["count"] = len(self.present)
            elif event == "worker-removed":
                self.present.discard(str(message["worker"]))
                message["count"] = len(self.present)
            elif event == "scheduler-closed":
                self.released = True
            elif event == "fabric-checked":
                self.fabric = message
            elif event == "alive":
                self.hangs.take(message)
                self.channel.send(do="alive")
                continue
            elif event == "worker-task-stopped":
                self.losses.tell_stopped(message["node"])
                continue
            self._warn_of(event, message)
            self.events.write(event, **message)

    def _warn_of(self, event: str, message: dict[str, Any]) -> None:
        if event == "ucx-failed":
            self.warn(f"UCX does not start in the scheduler, so it cannot ask workers: {message['problem']}")
        elif event == "memory-reduced":
            pool, wanted = (gpus.in_gib(int(message[key])) for key in ("pool", "wanted"))
            self.warn(f"GPU worker {message['worker']} works with {pool} of memory, not {wanted}: no more was free")

    def _time_to_look(self) -> bool:
        if time.monotonic() - self.looked < SLOW_TICK:
            return False
        self.looked = time.monotonic()
        return True

    # -- reasons to end -------------------------------------------------------------------------------------------

    def _check_end_requests(self) -> None:
        """Heed the time limit and a cancellation, which come as files from the batch script or as SIGTERM."""
        settings = self.context.settings
        if time.monotonic() - self.notes_read > NOTES_TICK:
            self.notes_read, self.notes = time.monotonic(), files.listed(self.context.attempt.directory)
        age = time.monotonic() - self.started
        out_of_time = settings.local and settings.time_limit and age > settings.time_limit
        near = settings.local and settings.time_limit and age > settings.time_limit - settings.signal_lead
        if not self.told_time and (self.context.attempt.time_limit.name in self.notes or near):
            self.told_time = True
            if self.context.attempt.time_limit.name not in self.notes:
                storage.write_end(self.context.run, self.context.attempt.time_limit, {})
            self.events.write("time-limit-near", seconds=settings.signal_lead)
        if settings.local and not _alive(int(os.environ.get("HPCML_BATCH", "0"))):
            reason = "the batch script was killed"
            raise RunEndedError(Outcome(errors.ALLOCATION_LOST, self.phase, "hpcml", reason))
        if not (self.signalled or out_of_time or self.context.attempt.terminate.name in self.notes):
            return
        self.told_end = self.told_end or time.monotonic()
        if not self.signalled and not out_of_time and time.monotonic() - self.told_end < SETTLE:
            return
        if self.told_time:
            reason, hint = "the time limit was reached", "Ask for more with --time, or let the script save and stop."
            raise RunEndedError(Outcome(errors.TIME_LIMIT, self.phase, "slurm", reason, hint))
        raise RunEndedError(Outcome(errors.CANCELLED, self.phase, "user", "the run was cancelled"))

    def _check_scheduler(self) -> None:
        if self.channel.closed and not self.released:
            reason = f"the Dask scheduler on {self.context.node} was lost{diagnosis.scheduler_end(self.context)}"
            raise RunEndedError(self._outcome(errors.ROLE_LOST, reason, "", diagnosis.scheduler_log(self.context)))

    def _check_workers(self) -> None:
        """While the script runs: end it if no worker is left that could come back, or if the policy says so."""
        if self.released or not self._time_to_look():
            return
        missing = self.losses.look(self.present, step_gone=self.steps.gone("worker"))
        final = [node for node in missing if node.final]
        none_left = not self.present and len(final) == len(missing)
        self.losses.tell(missing)
        absent = sum(len(node.workers) for node in missing)
        self.hangs.look(absent, final=len(final) == len(missing))
        if final and (self.context.settings.on_loss == "fail" or none_left):
            reason = f"workers were lost: {'; '.join(node.sentence() for node in final)}"
            raise RunEndedError(self._outcome(errors.ROLE_LOST, reason, "", final[0].quote))

    def _scheduler_missing(self, late: bool, seconds: float) -> None:
        if self.channel.closed and not self.closed_at:
            self.closed_at = time.monotonic()
        silent = self.channel.closed and time.monotonic() - self.closed_at > LAST_WORDS
        if ended := diagnosis.of_the_scheduler(
            self.context, silent, seconds if late else 0.0, step_gone=self.steps.gone("scheduler")
        ):
            raise RunEndedError(ended)

    def _workers_missing(self, late: bool, seconds: float) -> None:
        if ended := diagnosis.of_the_workers(
            self.context, self.present, seconds if late else 0.0, step_gone=self.steps.gone("worker")
        ):
            raise RunEndedError(ended)

    def _outcome(self, status: int, reason: str, hint: str, quote: tuple[str, ...]) -> Outcome:
        return Outcome(status, self.phase, "hpcml", reason, hint, quote)


def _force(steps: list[int], *, local: bool) -> None:
    """End steps that do not end by themselves: srun kills its tasks when told to end; elsewhere it is the group."""
    for pid in steps:
        with contextlib.suppress(ProcessLookupError):
            if local:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    """Supervise the run and return its exit status."""
    context = load()
    try:
        return _supervise(context)
    except OSError as error:  # before the first phase, or in the teardown: there is no supervisor that could say it
        what = storage.explanation(error, context.run.directory) if storage.is_full(error) else str(error)
        outcome = Outcome(errors.STORAGE, "allocated", "hpcml", f"the supervisor could not work: {what}", storage.HINT)
        outcome.write(context, "ended")
        outcome.report(context)
        return outcome.status


def _supervise(context: Context) -> int:
    began = end_cause.log_size(context)
    events = EventLog(context.run.events, context.number)
    events.write("allocated", nodes=list(context.nodes), job=os.environ.get("SLURM_JOB_ID", ""), node=context.node)
    try:
        folder = scratch.Folder(context.scratch(longest=context.socket_room))
    except scratch.UnsafePlaceError as error:
        return _refuse(context, error)
    with folder, Channel(folder.path / "control.sock") as channel:
        supervisor = Supervisor(context, events, channel)
        with supervisor.folders:
            signal.signal(signal.SIGTERM, lambda *_: setattr(supervisor, "signalled", True))
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, lambda *_: None)
            storage.renew(context.run)
            outcome = end_cause.from_slurm(context, _run(supervisor), began).or_a_full_disk(context)
            supervisor.tear_down(outcome)
    if outcome.by != "script":
        outcome.report(context)
    return outcome.status


def _refuse(context: Context, error: scratch.UnsafePlaceError) -> int:
    """End a run whose supervisor has no place for its sockets."""
    outcome = Outcome(errors.START_FAILED, "allocated", "hpcml", str(error), _PLACE)
    storage.write_end(context.run, context.attempt.ended, {"status": outcome.status})
    outcome.write(context, "ended")
    outcome.report(context)
    return outcome.status


def _run(supervisor: Supervisor) -> Outcome:
    """Bring up, run the script; whatever goes wrong is an outcome, so that the teardown always follows."""
    try:
        supervisor.bring_up()
        return supervisor.run_script()
    except RunEndedError as ended:
        return ended.outcome
    except scratch.UnsafePlaceError as error:
        return Outcome(errors.START_FAILED, supervisor.phase, "hpcml", str(error), _PLACE)
    except OSError as error:
        if not storage.is_full(error):
            return _defect(supervisor, error)
        reason = storage.explanation(error, supervisor.context.run.directory)
        return Outcome(errors.STORAGE, supervisor.phase, "hpcml", reason, storage.HINT)
    except Exception as error:  # noqa: BLE001 - the nodes must be freed whatever happens
        return _defect(supervisor, error)


def _defect(supervisor: Supervisor, error: Exception) -> Outcome:
    traceback.print_exc()  # into the driver's log: a defect of hpcml, to be reported
    reason = f"hpcml's supervisor failed: {type(error).__name__}: {error}"
    hint = "This is a defect in hpcml: please report it with the driver's log."
    return Outcome(errors.INTERNAL, supervisor.phase, "hpcml", reason, hint)
