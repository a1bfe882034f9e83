"""``ElasticCluster``: dask-jobqueue's cluster with a site's own requests, closed doors, and an end in every case."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dask_jobqueue import SLURMCluster
from distributed import Adaptive, Security, Status
from distributed.deploy.cluster import Cluster
from distributed.protocol import pickle

from hpcml import subprocesses, units
from hpcml.elastic import doors, records, request
from hpcml.elastic.job import ElasticJob, Recipe, beside
from hpcml.errors import ALLOCATION_LOST, HpcmlError, NotFoundError, SlurmUnreachableError, UsageError
from hpcml.files import tail
from hpcml.paths import RunPaths
from hpcml.repairs import file_names
from hpcml.schedulers import slurm
from hpcml.terminal import note, say_message

_INTERVAL = 1.0  # seconds between two thoughts about how many workers are wanted
_LOOK = 1.0  # seconds between two looks at which workers are there
_ASK = 30.0  # seconds between two questions to Slurm about all jobs
_ASK_SOON = 3.0  # seconds to the next one where a job has no worker, and then twice as long each time
_HOLD = 30.0  # seconds without a submission after one that Slurm did not answer
_MOST_FAILURES = 3  # jobs one after another that ended before a worker came
_CLOSED = 10.0  # seconds that the guard has to end when it is told that all is well


def _family(name: object, workers: int) -> str:
    """Return the job that a worker belongs to, by the worker's name."""
    return str(name).rpartition("-")[0] if workers > 1 else str(name)


class WholeJobs(Adaptive):  # type: ignore[misc]
    """Dask's adaptive scaling in jobs, each of all its workers: a job whose other workers compute is not ended."""

    cluster: ElasticCluster

    @property
    def plan(self) -> set[str]:
        """The jobs that should be there."""
        return set(self.cluster.worker_spec)

    @property
    def requested(self) -> set[str]:
        """Those that Slurm was asked for."""
        return set(self.cluster.workers) & self.plan

    @property
    def observed(self) -> set[str]:
        """Those that have workers."""
        return {self.cluster.job_of(worker.name) for worker in self.cluster.scheduler.workers.values()} & self.plan

    async def target(self) -> int:
        """Return how many jobs the load calls for."""
        workers: int = await super().target()
        return math.ceil(workers / self.cluster.workers_per_job)

    async def workers_to_close(self, target: int) -> list[str]:
        """Return jobs that the load does not call for, none of which computes."""
        each = self.cluster.workers_per_job

        def of(worker: Any) -> str:
            return _family(worker.name, each)

        names = await self.scheduler.workers_to_close(target=target * each, key=pickle.dumps(of), attribute="name")
        return sorted({self.cluster.job_of(name) for name in names} & self.plan)

    async def scale_up(self, n: int) -> None:
        """Ask for more jobs, unless Slurm has just not answered."""
        if time.monotonic() >= self.cluster.hold_until:
            self.cluster.scale(jobs=n)

    async def scale_down(self, workers: Collection[str]) -> None:
        """Retire the workers of some jobs, which pass on what they hold, and end the jobs."""
        there = [str(worker.name) for worker in self.cluster.scheduler.workers.values()]
        names = [name for name in there if self.cluster.job_of(name) in workers]
        if names:
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
        If it cannot be: a wrong option, a site without Slurm, Slurm's refusal of its jobs, UCX. Nothing is left then.
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
            hint = "Give 0 <= minimum <= maximum, and a maximum of 1 or more."
            raise UsageError(f"minimum={minimum} and maximum={maximum} do not go together", place="maximum", hint=hint)
        self.idle, self._unused = request.seconds(idle, "idle"), request.seconds(unused, "unused")
        asked = request.make(options)
        address = doors.checked(host) if host else doors.listen_at(asked.loaded.site.network.interface)
        for text in records.left_behind(asked.folder.parent):
            note(text)
        self._scratch, self._remove_scratch = doors.make_scratch(self)
        request.make_folder(asked)
        self.directory = asked.folder
        self.problem: HpcmlError | None = None
        self.hold_until = 0.0
        self._failures, self._ask_at, self._soon = 0, 0.0, _ASK_SOON
        self._recipe = Recipe.of(asked, _code())
        self.workers_per_job = self._recipe.workers
        self._range = minimum, maximum
        self._care: asyncio.Task[None] | None = None
        self._lifeline = -1
        try:
            self._recipe.write()
            security = doors.make_keys(self.directory)
            self._begin(asked, security, address, asynchronous=asynchronous, loop=loop)
        except BaseException:
            self._let_guard_go()
            self._remove_scratch()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _begin(self, asked: request.Request, security: Security, address: str, **how: Any) -> None:
        options = dict(asked.plan.directives)
        cpus = int(options.get("--cpus-per-task", "0"))
        memory = options.get("--mem", "")
        self._known = {"cores": bool(cpus), "memory": bool(memory)}
        about = {
            "cores": cpus or self.workers_per_job,
            "memory": f"{memory}iB" if memory else "1GiB",
            "processes": self.workers_per_job,
        }
        # what a user's jobqueue.yaml says of other clusters is not meant for this one
        quiet = {
            "log_directory": str(RunPaths(self.directory).logs),
            "job_name": asked.spec.name,
            "python": sys.executable,
        }
        listening = {
            "host": address,
            "port": 0,
            "dashboard": False,
            "idle_timeout": self._unused or None,
            "local_directory": str(self._scratch),
        }
        trial = ElasticJob(f"tls://{address}:0", "trial", recipe=self._recipe, security=security, **about, **quiet)
        script = self.directory / "trial.sh"
        script.write_text(trial.job_script())
        slurm.check(script)
        script.unlink()
        if asked.loaded.site.repairs:
            file_names.keep()
        self._start_guard()
        records.write(self.directory, asked.loaded.site.name, "")
        super().__init__(
            name=self.directory.name,
            security=security,
            scheduler_cls=doors.PrivateScheduler,
            scheduler_options=listening,
            recipe=self._recipe,
            **about,
            **quiet,
            **how,
        )

    @classmethod
    def security_of(cls, address: str, *, site: str = "") -> Security:
        """Return Dask's ``security`` for a cluster of this user's that another program keeps, by its address.

        With it ``Client(address, security=…)`` is let in: in the notebook beside a cluster of JupyterLab's sidebar.

        Raises
        ------
        NotFoundError
            If there is no open cluster of yours at that address.
        """
        if folder := records.addressed(request.clusters_of(site), address):
            return doors.keys_in(folder)
        hint = "Is it closed, or of another site or user?"
        raise NotFoundError("There is no open elastic cluster of yours there", place=address, hint=hint)

    def _start_guard(self) -> None:
        """Start the process that cancels what is left when this one has ended in whatever way."""
        reading, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "hpcml.elastic.guard", str(self.directory)]
        log = RunPaths(self.directory).logs / "guard.log"
        try:
            self._guard = subprocesses.start_in_background(command, log, stdin=reading)
        finally:
            os.close(reading)

    def _let_guard_go(self) -> None:
        """Tell the guard that nothing is left, and take its end."""
        if self._lifeline < 0:
            return
        with contextlib.suppress(OSError):  # it has been killed
            os.write(self._lifeline, b"closed")
        os.close(self._lifeline)
        self._lifeline = -1
        deadline = time.monotonic() + _CLOSED
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._guard, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.01)

    @property
    def dashboard_link(self) -> str:
        """Empty: its pages would be open to everybody on this machine."""
        return ""

    def job_of(self, name: object) -> str:
        """Return the job that a worker belongs to, by the worker's name."""
        return _family(name, self.workers_per_job)

    async def _start(self) -> None:
        if self.status in (Status.starting, Status.running):
            await super()._start()
            return
        await super()._start()
        records.write(self.directory, self._recipe.request.loaded.site.name, self.scheduler.address)
        self.adapt(*self._range)
        self._care = asyncio.ensure_future(self._take_care())

    def adapt(self, minimum: int = 0, maximum: float = math.inf, **options: Any) -> Adaptive:
        """Change how many workers there are at least and at most, as for Dask's own clusters, in whole jobs."""
        each = self.workers_per_job
        most = math.inf if math.isinf(maximum) else max(1, int(maximum) // each)
        given = {"Adaptive": WholeJobs, "interval": _INTERVAL, "wait_count": max(1, math.ceil(self.idle / _INTERVAL))}
        return Cluster.adapt(self, **{**given, **options, "minimum": math.ceil(minimum / each), "maximum": most})

    def scale(self, n: int | None = None, jobs: int = 0, memory: str | None = None, cores: int | None = None) -> Any:
        """Ask for so many workers now, also beyond ``maximum``; what nothing needs is released after ``idle``."""
        for what, value in (("memory", memory), ("cores", cores)):
            if value is not None and not self._known[what]:
                hint = "Give scale() a number of workers."
                raise UsageError(f"How much {what} a job has is not known here", place=f"{what}={value!r}", hint=hint)
        return super().scale(n, jobs=jobs, memory=memory, cores=cores)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        Cluster._update_worker_status(self, op, msg)  # noqa: SLF001 - which jobs have ended Slurm says: _look()

    async def _take_care(self) -> None:
        """See, while the cluster is open, to what Slurm took away, and to its end when nobody uses it."""
        while self.status == Status.running:
            await asyncio.sleep(_LOOK)
            if self.scheduler.status in (Status.closing, Status.closed):
                if self.status == Status.running:
                    words = units.format_seconds(self._unused)
                    note(f"cluster {self.name} was not used for {words} and is closed")
                    self.shutdown_scheduler = False  # it has done it
                    self._end_soon()
                return
            await self._look()

    def _end_soon(self) -> None:
        self._ending = asyncio.ensure_future(self._close())  # not from within: closing ends this task

    async def _look(self) -> None:
        """Forget jobs that have ended, so that the load asks for others."""
        there = {self.job_of(worker.name) for worker in self.scheduler.workers.values()}
        jobs: dict[str, ElasticJob] = dict(self.workers)
        gone = False
        for name, job in jobs.items():
            job.came = job.came or name in there
            gone = gone or name not in there
        now = time.monotonic()
        if not gone:
            self._soon = _ASK_SOON
        self._ask_at = min(self._ask_at, now + self._soon) if gone else self._ask_at
        self._lost({name: "" for name, job in jobs.items() if job.problem})
        ids = {job.key: name for name, job in jobs.items() if job.job_id}
        if not ids or now < self._ask_at:
            return
        self._ask_at, self._soon = now + _ASK, min(2 * self._soon, _ASK)
        try:
            states = await beside(slurm.states, list(ids))
        except SlurmUnreachableError:
            return  # nothing is known, and so nothing has ended
        except (HpcmlError, OSError) as error:
            note(f"Slurm does not report the jobs of cluster {self.name}: {error}")
            return
        self._lost({ids[job]: state.state for job, state in states.items() if state.ended})

    def _lost(self, ended: dict[str, str]) -> None:
        for name, state in ended.items():
            job: ElasticJob | None = self.workers.pop(name, None)
            wanted = self.worker_spec.pop(name, None) is not None
            if job is None:
                continue
            job.forget()
            self._soon = _ASK_SOON
            if job.came or not wanted:
                self._failures = 0
            elif isinstance(job.problem, SlurmUnreachableError):
                self.hold_until = time.monotonic() + _HOLD
            else:
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    self._give_up(job, state)
                    return

    def _give_up(self, job: ElasticJob, state: str) -> None:
        """Close the cluster: the next job would end as the last ones did."""
        self.problem = job.problem
        if not self.problem:
            what = f"{_MOST_FAILURES} jobs one after another ended before a worker came (Slurm says {state})"
            log, text = job.log or self.directory, tail(job.log) if job.log else ()
            hint = "Can the nodes reach this machine (host=…), and is Dask installed there? The log may say more."
            self.problem = HpcmlError(what, place=str(log), hint=hint, quote=text, exit_status=ALLOCATION_LOST)
        say_message(f"hpcml: {self.problem}")
        note(f"cluster {self.name} is closed")
        self._end_soon()

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            await super()._close()
            return
        if self._care is not None and self._care is not asyncio.current_task():
            self._care.cancel()
        await super()._close()
        self._remove_scratch()
        left: list[str] = []
        try:
            left = await beside(self._cancel_rest)
        except HpcmlError as error:
            note(f"what is left of cluster {self.name} is not known, and is cancelled later: {error.message}")
            os.close(self._lifeline)  # without a word: the guard goes on
            self._lifeline = -1
            return
        self._let_guard_go()
        self._over("its program", left)

    def _cancel_rest(self) -> list[str]:
        """Cancel jobs whose submission was not answered, or whose cancellation failed; return them."""
        left = slurm.jobs_of_clusters().get(self.directory.name, [])
        for job in left:
            slurm.cancel(job)
        return left

    def _over(self, by: str, left: list[str]) -> None:
        """Remove the keys and the modules for the nodes, and write that the cluster is over."""
        with contextlib.suppress(OSError):  # a full disk is no reason to keep what called this from its end
            doors.remove_keys(self.directory)
            RunPaths(self.directory).library.unlink(missing_ok=True)
            records.close(self.directory, by, left, [])


def _code() -> str:
    """Return the folder from which this program imports its own modules."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(program).resolve().parent if program else Path.cwd())
