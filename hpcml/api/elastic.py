"""``ElasticCluster``: dask-jobqueue's cluster with a site's own requests, no open port, and an end in every case."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from distributed import Adaptive, Scheduler, Status
from distributed.deploy.cluster import Cluster

from hpcml import assets, listeners, node_archive, safe_files, schedulers, subprocesses, typed_json, units
from hpcml.api import keywords_to_job
from hpcml.config_trust import HPCML
from hpcml.errors import ALLOCATION_LOST, HpcmlError, SiteError, SlurmUnreachableError, StorageError, UsageError
from hpcml.kinds.dask.node import temporary_directory
from hpcml.kinds.dask.node.security import connection_limits, tls
from hpcml.node import scratch
from hpcml.node.hardware.dask_protocol import NoAddressError, choose_address
from hpcml.node.shared_files import remove_secrets
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.plan.batch_script import directive, join, quote
from hpcml.plan.make_plan import Plan
from hpcml.repairs import file_names
from hpcml.request.record import Code, RunRequest
from hpcml.runs import directories
from hpcml.runs.submit import Prepared, check_image
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Site
from hpcml.terminal import note, say_message
from hpcml.workload_forms import Form

_before = signal.getsignal(signal.SIGINT)
with settings_layers.narrowed_umask():  # it writes ~/.config/dask/jobqueue.yaml, where there is none
    from dask_jobqueue import SLURMCluster
    from dask_jobqueue.core import ProcessInterface
    from dask_jobqueue.slurm import SLURMJob

# dask-jobqueue (0.9) has Ctrl-C end the program, when it is imported: in a notebook the whole kernel
if _before is not None:
    signal.signal(signal.SIGINT, _before)

_NAME = "hpcml.ElasticCluster"
_FOLDER = ".clusters"  # below the folder of runs
_LIFETIME = 30 * 86400.0  # seconds for which the keys are valid: who uses a cluster for longer makes a new one
_INTERVAL = 1.0  # seconds between two thoughts about how many workers are wanted
_LOOK = 10.0  # seconds between two questions to Slurm, while a job has no worker
_MOST_FAILURES = 3  # jobs one after another that ended before a worker came
_T = TypeVar("_T")


async def _in_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call what waits for Slurm in a thread; at the interpreter's end, when no thread can start any more, here."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:
        return function(*arguments)
    return await future


class PrivateScheduler(connection_limits.Guarded, Scheduler):  # type: ignore[misc]
    """Dask's scheduler without an HTTP port: on a login node everybody could open it, on 127.0.0.1 too."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port; the dashboard's, for which a client asks for its link, is 0."""
        self.services["dashboard"] = SimpleNamespace(port=0, stop=lambda: None)


class ElasticJob(SLURMJob):  # type: ignore[misc]
    """dask-jobqueue's job with the directives, the environment and the workers that the site's runs have.

    ``problem`` is why Slurm has not taken it. ``came`` is whether a worker of it was ever there.
    """

    def __init__(
        self, scheduler: str | None = None, name: str | None = None, *, site: Site, made: Plan, **options: Any
    ) -> None:
        super().__init__(scheduler, name, **options)
        self.site, self.status = site, Status.created
        folder = RunPaths(Path(made.directory))
        self.run, self.log = RunPaths(folder.directory / "jobs" / str(name)), folder.logs / "job.log"
        self.problem: HpcmlError | None = None
        self.joined = False
        self.key = ""  # names the job to Slurm: its number, and the comment that it carries
        directives = schedulers.other_jobs(site.scheduler).cluster_options(made.directives, str(name), folder.logs)
        self.job_header = "\n".join(f"{made.directive_word} {directive(option)}" for option in directives)
        python = join((*((*made.entry, made.inside.job.image) if made.entry else ()), made.steps[-1].command[0]))
        module = f"{python} -P -m hpcml.kinds.dask.node.elastic_worker"
        self._command_template = f"{module} {quote(scheduler)} {quote(name)}"

    async def start(self) -> None:
        """Ask Slurm for the job; what Slurm says against it is kept in :attr:`problem`."""
        try:
            await _in_thread(self._submit)
        except HpcmlError as error:
            self.problem = error
        await ProcessInterface.start(self)

    def _submit(self) -> None:
        self.run.directory.parent.mkdir(mode=0o700, exist_ok=True)
        self.run.directory.mkdir(mode=0o700)
        safe_files.write(self.run.script, self.job_script())
        self.job_id = schedulers.get(self.site.scheduler).submit(self.site, self.run).job
        self.key, self.log = f"{self.job_id} {self.name}", self.log.with_name(f"job-{self.job_id}.log")

    async def close(self) -> None:
        """Cancel the job; where that fails, the cluster's guard continues to try."""
        if self.key and self.status != Status.closed:
            try:
                await _in_thread(schedulers.get(self.site.scheduler).cancel, self.key)
            except HpcmlError as error:
                note(f"job {self.job_id} could not be cancelled: {error.message}")
        self.status = Status.closed


class WholeJobs(Adaptive):  # type: ignore[misc]
    """Dask's adaptive scaling in jobs, each of all its workers: a job whose other workers compute is not ended."""

    cluster: ElasticCluster

    async def target(self) -> int:
        """Return the number of jobs that the load calls for."""
        workers: int = await super().target()
        return math.ceil(workers / self.cluster.workers_per_job)

    async def workers_to_close(self, target: int) -> list[str]:
        """Return jobs that the load does not call for, none of which computes."""
        names = await super().workers_to_close(target * self.cluster.workers_per_job)
        return sorted({self.cluster.job_of(name) for name in names} & self.plan)

    async def scale_up(self, n: int) -> None:
        """Ask for more jobs."""
        self.cluster.scale(jobs=n)

    async def scale_down(self, workers: Collection[str]) -> None:
        """Retire the workers of some jobs, which pass on what they hold, and end the jobs."""
        present = [str(worker.name) for worker in self.cluster.scheduler.workers.values()]
        if names := [name for name in present if self.cluster.job_of(name) in workers]:
            await self.scheduler.retire_workers(names=names, remove=True, close_workers=True)
        await self.cluster.scale_down(workers)


class ElasticCluster(SLURMCluster):  # type: ignore[misc]
    """Dask workers in Slurm jobs of their own, asked for when there is work and released when there is none.

    The scheduler is in this program. Every connection is mutual TLS by keys made for this cluster. It is used as any
    cluster of Dask's: ``with hpcml.ElasticCluster() as cluster, Client(cluster) as client: …``.

    Parameters
    ----------
    minimum, maximum
        How many workers there are at least and at most; with several workers in a job, whole jobs of them.
    idle
        How long a worker has nothing to do before its job ends, as ``"10m"`` or in seconds. Some stay while a client
        holds results.
    unused
        How long nothing is computed before the cluster closes itself, whatever its workers hold; 0 for never.
    host
        The address at which the nodes reach this machine, where the site's rule finds another.
    asynchronous, loop
        As for Dask's own clusters.
    options
        Those of ``hpcml submit`` that describe a job of one node: ``site``, ``time``, ``gpus_per_node``,
        ``cpus_per_node``, ``memory_per_node``, ``partition``, ``account``, ``qos``, ``image``, ``env``, ``set``, …

    Attributes
    ----------
    directory
        Its folder beside the runs: logs and job scripts, mode 0700.
    problem
        Why it closed itself, an ``HpcmlError``, or None.

    Raises
    ------
    HpcmlError
        If it cannot be: a wrong option, a site without Slurm, Slurm's refusal of its jobs. Nothing is left then.
    """

    job_cls = ElasticJob

    def __init__(
        self,
        *,
        minimum: int = 0,
        maximum: int = 8,
        idle: str | float = "10m",
        unused: str | float = "8h",
        host: str = "",
        asynchronous: bool = False,
        loop: Any = None,
        **options: Any,
    ) -> None:
        self.status = Status.closed  # until there is something to close
        if not 0 <= minimum <= maximum or maximum < 1:
            hint = "Use 0 <= minimum <= maximum, and maximum >= 1."
            raise UsageError(
                f"minimum={minimum} and maximum={maximum} are not a valid range", place="maximum", hint=hint
            )
        self._range, self._idle, self._unused = (minimum, maximum), _seconds(idle, "idle"), _seconds(unused, "unused")
        code = Code(Path("elastic"), cwd=settings_layers.here(), form=Form.ELASTIC)
        loaded, spec = keywords_to_job.parse(_NAME, "elastic", code, options)
        loaded, spec = _without_ucx(loaded), spec.changed(nodes=1)
        if schedulers.find_other_jobs(loaded.site.scheduler) is None:
            hint = "Use dask.distributed.LocalCluster() here, or choose a site with Slurm."
            raise SiteError(
                f"{_NAME} starts its workers with Slurm, which site {loaded.site.name} does not have", hint=hint
            )
        self._scheduler_name = loaded.site.scheduler
        self.directory = keywords_to_job.place(loaded, _FOLDER, spec.name)
        made = keywords_to_job.plan_at(loaded, spec, self.directory)
        check_image(Prepared(loaded, spec, made))
        for text in made.notices:
            note(text)
        self.problem: HpcmlError | None = None
        self.workers_per_job, self._numbers = made.inside.workers.per_node, itertools.count()
        self._watching: asyncio.Task[None] | None = None
        self._lifeline = -1
        address = _address(host, loaded.site.network.interface)
        self._remove_scratch: Callable[[], object] = lambda: None
        try:
            keywords_to_job.make(self.directory, loaded)
            _write(made, spec)
            tls.make_certificate(AttemptPaths(self.directory), _LIFETIME)
            # what a user's jobqueue.yaml says of other clusters is not meant for this one
            about = {
                "site": loaded.site,
                "made": made,
                "security": tls.security(AttemptPaths(self.directory)),
                "cores": 1,
                "memory": "1GiB",
                "processes": 1,  # to dask-jobqueue a job is one worker
                "job_name": spec.name,
                "python": sys.executable,
                "shebang": "#!/bin/bash",
                "job_script_prologue": _prologue(made),
                "log_directory": str(RunPaths(self.directory).logs),
            }
            trial = self.directory / "trial.sh"
            safe_files.write(trial, ElasticJob(f"tls://{address}:0", "trial", **about).job_script())
            schedulers.get(self._scheduler_name).check(trial)
            if loaded.site.repairs.file_names:
                file_names.keep()
            place, self._remove_scratch = _scratch_for(self)
            self._start_guard()
            listening = {"host": address, "port": 0, "dashboard": False, "idle_timeout": self._unused or None}
            super().__init__(
                name=self.directory.name,
                scheduler_cls=PrivateScheduler,
                scheduler_options={**listening, "local_directory": str(place)},
                asynchronous=asynchronous,
                loop=loop,
                **about,
            )
        except BaseException:
            self._let_guard_clean()
            self._remove_scratch()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _start_guard(self) -> None:
        """Start the process that cancels what is left when this one has ended in whatever way."""
        reading, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "hpcml.api.job_guard", str(self.directory), self._scheduler_name]
        log = RunPaths(self.directory).logs / "guard.log"
        try:
            guard = subprocesses.start_in_background(command, log, program=HPCML, stdin=reading)
        finally:
            os.close(reading)
        threading.Thread(target=_await, args=(guard,), name="hpcml-guard", daemon=True).start()

    def _let_guard_clean(self) -> None:
        """Have the guard cancel what is left: jobs of which sbatch's answer was lost, or scancel failed."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = -1

    @property
    def dashboard_link(self) -> str:
        """Empty: its pages would be open to everybody on this machine."""
        return ""

    @property
    def observed(self) -> set[str]:
        """The jobs that have workers."""
        return {self.job_of(worker.name) for worker in self.scheduler.workers.values()} & set(self.worker_spec)

    def job_of(self, name: object) -> str:
        """Return the job that a worker belongs to, by the worker's name."""
        return _family(name, self.workers_per_job)

    def _new_worker_name(self, _: int) -> str:
        return f"{self.directory.name}.{next(self._numbers)}"  # never the same again: by it Slurm's answers are told

    async def _start(self) -> None:
        before = self.status
        await super()._start()
        if before not in (Status.starting, Status.running):
            self.adapt(*self._range)
            self._watching = asyncio.ensure_future(self._watch())

    def adapt(self, minimum: int = 0, maximum: float = math.inf, **options: Any) -> Adaptive:
        """Change how many workers there are at least and at most, as for Dask's own clusters, in whole jobs."""
        each = self.workers_per_job
        most = math.inf if math.isinf(maximum) else max(1, int(maximum) // each)
        given = {"Adaptive": WholeJobs, "interval": _INTERVAL, "wait_count": max(1, math.ceil(self._idle / _INTERVAL))}
        given["worker_key"] = lambda worker: _family(worker.name, each)
        return super().adapt(**{**given, **options, "minimum": math.ceil(minimum / each), "maximum": most})

    def scale(self, n: int | None = None, jobs: int = 0) -> Any:
        """Ask for so many workers now, also beyond ``maximum``; what nothing needs is released after ``idle``."""
        return super().scale(jobs=jobs if n is None else math.ceil(n / self.workers_per_job))

    def _update_worker_status(self, op: str, msg: Any) -> None:
        Cluster._update_worker_status(self, op, msg)  # noqa: SLF001 - which jobs have ended Slurm says: _watch()

    async def _watch(self) -> None:
        """While the cluster is open, forget jobs that have ended, so that the load asks for others."""
        failures = 0
        while self.status == Status.running and failures < _MOST_FAILURES:
            await asyncio.sleep(_LOOK)
            if self.scheduler.status in (Status.closing, Status.closed):
                unused = units.format_seconds(self._unused)
                note(f"elastic cluster {self.name} was not used for {unused}; hpcml closed it")
                self.shutdown_scheduler = False  # it has done it
                break
            for name, job in self.workers.items():
                job.joined = job.joined or name in self.observed
            for name, state in (await self._ended()).items():
                job = self.workers.pop(name, None)
                wanted = self.worker_spec.pop(name, None) is not None
                if job is None:
                    continue
                job.status = Status.closed
                if job.joined or not wanted:
                    failures = 0
                elif not isinstance(job.problem, SlurmUnreachableError):
                    failures += 1
                    self.problem = job.problem or _no_worker(job, state)
        else:
            if failures < _MOST_FAILURES:
                return
            say_message(f"hpcml: {self.problem}")
            why = f"{failures} consecutive jobs ended before a worker connected to the scheduler"
            note(f"elastic cluster {self.name} is closed: {why}")
        await self._close()

    async def _ended(self) -> dict[str, str]:
        """Return the jobs that have ended, with Slurm's word, and those that it has not taken."""
        ended = {name: "" for name, job in self.workers.items() if job.problem}
        keys = {job.key: name for name, job in self.workers.items() if job.key}
        if not set(keys.values()) - self.observed:
            return ended
        try:
            states = await _in_thread(schedulers.get(self._scheduler_name).states, list(keys))
        except SlurmUnreachableError:
            return ended  # nothing is known of the others, and so nothing has ended
        except (HpcmlError, OSError) as error:
            note(f"Slurm does not report the jobs of elastic cluster {self.name}: {error}")
            return ended
        return ended | {keys[job]: state.state for job, state in states.items() if state.ended}

    async def _close(self) -> None:
        if self.status not in (Status.closing, Status.closed):
            if self._watching is not None and self._watching is not asyncio.current_task():
                self._watching.cancel()
            await super()._close()
            self._remove_scratch()
            remove_secrets(AttemptPaths(self.directory))
            self._let_guard_clean()
        else:
            await super()._close()


def _await(pid: int) -> None:
    """Take the end of a child process, which would stay as a zombie else."""
    with contextlib.suppress(ChildProcessError):  # the program has done it
        os.waitpid(pid, 0)


def _family(name: object, workers: int) -> str:
    """Return the job that a worker belongs to, by the worker's name."""
    return str(name).rpartition("-")[0] if workers > 1 else str(name)


def _without_ucx(loaded: LoadedSite) -> LoadedSite:
    """Return the site with workers that speak TLS; UsageError if the user asked for UCX or TCP."""
    network = loaded.site.network
    if network.protocol in ("tcp", "ucx") and loaded.layers.origin("network.protocol") == "--set":
        place = f"network.protocol={network.protocol}"
        hint = (
            f"Remove {place}. To use UCX, TCP or cuML's collective communication, submit a script with hpcml.submit()."
        )
        raise UsageError("Workers of an elastic cluster always use TLS", place=place, hint=hint)
    return loaded._replace(site=loaded.site._replace(network=network._replace(protocol="tls")))


def _seconds(value: str | float, name: str) -> float:
    """Return a duration in seconds; UsageError if it is not one."""
    try:
        seconds = float(value) if isinstance(value, (int, float)) else units.parse_seconds(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # not a number is not either
        raise UsageError(f"{value!r} is not a duration", place=f"{name}={value!r}", hint=f"Write {name}='10m'.")
    return seconds


def _address(host: str, interface: str) -> str:
    """Return this machine's address for the workers: ``host``, the profile's interface, else by the nodes' rule."""
    if host:
        try:
            listeners.try_tcp(host)
        except OSError as error:
            message, hint = (
                f"This machine has no address {host}",
                "Use the address of a network interface of this machine (see: ip address).",
            )
            raise UsageError(f"{message}: {error.strerror or error}", place="host", hint=hint) from error
        return host
    with contextlib.suppress(NoAddressError):
        return choose_address(interface, single_node=False)[0]
    try:
        return choose_address("", single_node=False)[0]
    except NoAddressError as error:
        hint = "Set host=… to an address of this machine that the nodes can reach."
        raise SiteError(
            f"The nodes could not reach a Dask scheduler on this machine: {error}", place="host", hint=hint
        ) from error


def _scratch_for(cluster: ElasticCluster) -> tuple[Path, Callable[[], object]]:
    """Make the folder of the scheduler, which Dask puts first on ``sys.path``; return it and what removes it."""
    try:
        return temporary_directory.of_cluster(cluster)
    except scratch.UnsafePlaceError as error:
        hint = "Set TMPDIR to a folder that you own, or to a folder like /tmp (owner root, with the sticky bit)."
        raise StorageError(str(error), place="TMPDIR", hint=hint) from error


def _write(made: Plan, spec: RunRequest) -> None:
    """Write what each job reads in the cluster's folder."""
    paths = RunPaths(Path(made.directory))
    paths.logs.mkdir(mode=0o700)
    safe_files.write(paths.library, node_archive.node_archive())
    directories.write_json(paths.plan, typed_json.plain(made))
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in spec.environment)
    safe_files.write(paths.variables, "".join(lines).encode(errors="surrogateescape"))
    if made.inside.job.image:
        safe_files.write(paths.image, (assets.folder("templates") / paths.image.name).read_text(encoding="utf-8"))


def _prologue(made: Plan) -> list[str]:
    """Return the lines before the workers' command: the environment of the site's runs."""
    inside, library = made.inside, RunPaths(Path(made.directory)).library
    lifetime = inside.job.time_limit - max(1.0, min(inside.job.signal_lead, inside.job.time_limit / 4))
    return [
        f"# hpcml {made.version}: workers of the elastic cluster {made.run_id} on site {made.site}.",
        "umask 077",
        'unset "${!HPCML_@}"',
        f"export HPCML_RUN_DIR={quote(made.directory)} HPCML_GPUS={inside.gpus}",
        'if [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then',
        '  echo "hpcml: missing, or not yours: $HPCML_RUN_DIR" >&2; exit 74',
        "fi",
        *keywords_to_job.environment(made),
        '. "$HPCML_RUN_DIR/environment.sh"',
        *made.prologue,
        f'export PYTHONPATH={quote(library)}:{quote(keywords_to_job.program_folder())}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        "export PYTHONUNBUFFERED=1",
        *([f"export DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION={lifetime:g}s"] if inside.job.time_limit else []),
        "trap : TERM INT HUP   # only the workers handle these signals",
    ]


def _no_worker(job: ElasticJob, state: str) -> HpcmlError:
    ended = f"Job {job.job_id} ended before a worker connected to the scheduler (state in Slurm: {state})"
    hint = (
        "Check that the nodes can reach this machine (host=… sets the address), and that Python on the nodes has Dask."
    )
    hint += " See also the log of the job."
    return HpcmlError(ended, place=str(job.log), hint=hint, quote=safe_files.tail(job.log), exit_status=ALLOCATION_LOST)
