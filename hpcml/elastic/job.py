"""One job of an elastic cluster: what it asks of Slurm, the workers that it starts, its submission and its end."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dask_jobqueue.core import ProcessInterface
from dask_jobqueue.slurm import SLURMJob
from distributed import Status

from hpcml import assets, files
from hpcml.elastic.request import Request
from hpcml.errors import HpcmlError
from hpcml.node.settings import Gpu
from hpcml.paths import RunPaths
from hpcml.plan.batch_script import directive, join, quote
from hpcml.runs.beside import CLOSED
from hpcml.schedulers import slurm
from hpcml.schedulers.slurm_options import filename_pattern
from hpcml.terminal import note

_WORKER = "hpcml.node.elastic_worker.ElasticWorker"
# hpcml's own part in a run's job. A job that Slurm takes away is not put back into the queue: the cluster asks again.
_OF_A_RUN = ("--signal", "--requeue", "--no-requeue", "--comment", "--output", "--error", "--open-mode")
_T = TypeVar("_T")
_POOL = 0.9  # of a GPU, where the profile leaves it to hpcml


async def beside(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call what waits for Slurm in a thread; at the interpreter's end, when no thread can start any more, here."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:
        return function(*arguments)
    return await future


class Recipe(NamedTuple):
    """What all jobs of a cluster have in common: the request, how many workers each starts, and the program's folder.

    ``numbers`` counts submissions: each has a comment of its own, by which Slurm is asked for it if its answer is lost.
    """

    request: Request
    workers: int
    code: str
    numbers: Iterator[int]

    @classmethod
    def of(cls, request: Request, code: str) -> Recipe:
        """Return the recipe of a request."""
        return cls(request, request.plan.inside.workers_per_node, code, itertools.count(1))

    def write(self) -> None:
        """Write what each job reads in the cluster's folder."""
        paths, spec = RunPaths(self.request.folder), self.request.spec
        if spec.environment:
            lines = (f"export {name}={shlex.quote(value)}\n" for name, value in spec.environment)
            files.write(paths.variables, "".join(lines).encode(errors="surrogateescape"))
        if self.request.plan.inside.image:
            text = (assets.folder("templates") / paths.image.name).read_text(encoding="utf-8")
            files.write(paths.image, text)

    def directives(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the #SBATCH options: those of a run on one node, but for what only a run has."""
        logs = RunPaths(self.request.folder).logs
        kept = [option for option in self.request.plan.directives if option[0] not in _OF_A_RUN]
        own = (("--comment", f"hpcml:{name}"), ("--output", f"{filename_pattern(logs)}/job-%j.log"))
        return (*kept, *own, ("--no-requeue", ""))

    def script(self, name: str, command: str) -> str:
        """Return the batch script of a submission, which runs ``command`` in the environment of the site's runs."""
        made, folder, inside = self.request.plan, self.request.folder, self.request.plan.inside
        paths = RunPaths(folder)
        fixed = f"{inside.memory_limit}B" if inside.memory_limit else ""
        margin = max(1.0, min(inside.signal_lead, inside.time_limit / 4)) if inside.time_limit else 0.0
        lifetime = f"{inside.time_limit - margin:g}s" if margin else ""
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {directive(option)}" for option in self.directives(name)),
            f"# hpcml {made.version}: {self.workers} workers of the elastic cluster {made.run_id} on site {made.site}.",
            "umask 077",
            'unset "${!HPCML_@}"',
            f"export HPCML_RUN_DIR={quote(folder)} HPCML_GPUS={inside.gpus}",
            'if [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then',
            '  echo "hpcml: not there, or not yours: $HPCML_RUN_DIR" >&2; exit 74',
            "fi",
            f'[ ! -e "$HPCML_RUN_DIR/{CLOSED}" ] || {{ echo "hpcml: the cluster is closed"; exit 0; }}',
            *made.setup,
            *(_module(module) for module in made.modules),
            *(f"export {name}={quote(value)}" for name, value in made.environment),
            *(['. "$HPCML_RUN_DIR/environment.sh"'] if made.variables else []),
            *made.prologue,
            f'export PYTHONPATH={quote(paths.library)}:{quote(self.code)}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            "export PYTHONUNBUFFERED=1",
            "trap : TERM INT HUP   # the workers answer",
            f"threads=$((cpus / {self.workers}))" if not inside.threads else f"threads={inside.threads}",
            '[ "$threads" -ge 1 ] || threads=1',
            *_memory(fixed, self.workers, inside.node_gpus),
            *([f"export DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION={lifetime}"] if lifetime else []),
            command,
            "",
        ]
        return "\n".join(lines)

    def python(self) -> str:
        """Return the words before a module's name: into the image, and its Python, or the site's."""
        made = self.request.plan
        entry = (*made.entry, made.inside.image) if made.entry else ()
        return join((*entry, made.steps[-1].command[0]))


def _module(name: str) -> str:
    return f"module load {quote(name)} || exit 80"


def _expanded(place: str) -> str:
    """Return a folder for bash, within double quotes: its variables are the node's."""
    return place.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")


def _memory(fixed: str, workers: int, node_gpus: int) -> list[str]:
    """Return the lines that say how much memory a worker has: the profile's word, else a share of the job's.

    Where Slurm does not say what the job has, one that asked for some of ``node_gpus`` has their share of the node's.
    """
    if fixed:
        return [f"memory={fixed}"]
    return [
        f"memory=$(($(getconf PAGE_SIZE) * $(getconf _PHYS_PAGES) / {node_gpus}))B" if node_gpus else "memory=auto",
        f'[ "${{SLURM_MEM_PER_CPU:-0}}" = 0 ] || memory=$((SLURM_MEM_PER_CPU * cpus / {workers}))MiB',
        f'[ "${{SLURM_MEM_PER_NODE:-0}}" = 0 ] || memory=$((SLURM_MEM_PER_NODE / {workers}))MiB',
    ]


def gpu_options(gpu: Gpu) -> list[str]:
    """Return the profile's GPU settings as dask-cuda's options."""
    pool = _POOL if gpu.rmm_pool_size == -1 else gpu.rmm_pool_size
    amounts = {
        "--rmm-pool-size": None if gpu.rmm_async or gpu.rmm_managed_memory else pool,
        "--rmm-maximum-pool-size": gpu.rmm_maximum_pool_size,
        "--rmm-release-threshold": gpu.rmm_release_threshold,
        "--device-memory-limit": 0 if gpu.device_memory_limit is None else gpu.device_memory_limit,
    }
    flags = {
        "--rmm-managed-memory": gpu.rmm_managed_memory,
        "--rmm-async": gpu.rmm_async,
        "--rmm-track-allocations": gpu.rmm_track_allocations,
        "--enable-cudf-spill": gpu.cudf_spill,
    }
    texts = {
        "--rmm-log-directory": gpu.rmm_log_directory,
        "--set-rmm-allocator-for-libs": ",".join(gpu.rmm_allocator_libs) if pool or gpu.rmm_async else "",
        "--pre-import": ",".join(gpu.pre_import),
        "--cudf-spill-stats": str(gpu.cudf_spill_stats or ""),
    }
    words = [
        word
        for option, amount in amounts.items()
        if amount is not None
        for word in (option, f"{amount:g}" if amount <= 1 else str(int(amount)))
    ]
    words += [option for option, on in flags.items() if on]
    return words + [word for option, text in texts.items() if text for word in (option, text)]


class ElasticJob(SLURMJob):  # type: ignore[misc]
    """dask-jobqueue's job with the directives, the environment and the workers that the site's runs have.

    ``problem`` is why Slurm has not taken it. ``came`` is whether a worker of it was ever there.
    """

    def __init__(
        self, scheduler: str | None = None, name: str | None = None, *, recipe: Recipe, **options: Any
    ) -> None:
        super().__init__(scheduler, name, **options)
        self.recipe = recipe
        self.status: Status
        self.problem: HpcmlError | None = None
        self.came = False
        self.log: Path | None = None
        self._number = f"{recipe.request.folder.name}.0"
        self.job_header = "\n".join(f"#SBATCH {directive(option)}" for option in recipe.directives(self._number))
        self._command_template = self._command(scheduler or "", str(name), options["security"])

    def _command(self, scheduler: str, name: str, security: Any) -> str:
        inside, site = self.recipe.request.plan.inside, self.recipe.request.loaded.site
        tls = security.get_tls_config_for_role("worker")
        words = ["--name", name, "--worker-class", _WORKER, "--death-timeout", f"{inside.workers_deadline:g}"]
        words += ["--protocol", "tls", "--no-dashboard"]
        for key in ("ca_file", "cert", "key"):
            words += [f"--tls-{key.replace('_', '-')}", tls[key]]
        if site.network.interface:
            words += ["--interface", site.network.interface]
        if inside.resources:
            words += ["--resources", " ".join(f"{resource}={amount:g}" for resource, amount in inside.resources)]
        if inside.gpu:
            module, own = "dask_cuda.cli", gpu_options(inside.gpu)
        else:
            module, own = "distributed.cli.dask_worker", ["--nworkers", str(self.recipe.workers)]
        place = f'"{_expanded(inside.scratch)}"'
        measured = '--nthreads "$threads" --memory-limit "$memory"'
        started = f"{self.recipe.python()} -P -m hpcml.node.elastic_job {place} {module}"
        return f"{started} {quote(scheduler)} {join([*words, *own])} {measured}"

    @property
    def key(self) -> str:
        """What names the job to Slurm: its number, and the comment that it carries."""
        return f"{self.job_id} {self._number}"

    def job_script(self) -> str:
        """Return the batch script."""
        return self.recipe.script(self._number, self._command_template)

    async def start(self) -> None:
        """Ask Slurm for the job; what Slurm says against it is kept in :attr:`problem`."""
        try:
            await beside(self._submit)
        except HpcmlError as error:
            self.problem = error
        await ProcessInterface.start(self)

    def _submit(self) -> None:
        request = self.recipe.request
        self._number = f"{request.folder.name}.{next(self.recipe.numbers)}"
        run = RunPaths(request.folder / "jobs" / self._number)
        run.directory.parent.mkdir(mode=0o700, exist_ok=True)
        run.directory.mkdir(mode=0o700)
        files.write(run.script, self.job_script())
        self.job_id = slurm.submit(request.loaded.site, run).job
        self.log = RunPaths(request.folder).logs / f"job-{self.job_id}.log"

    async def close(self) -> None:
        """Cancel the job; where that fails, the cluster's guard goes on trying."""
        if self.job_id and self.status != Status.closed:
            try:
                await beside(slurm.cancel, self.key)
            except HpcmlError as error:
                note(f"job {self.job_id} could not be cancelled: {error.message}")
        self.status = Status.closed

    def forget(self) -> None:
        """Count the job as ended: Slurm says that it has."""
        self.status = Status.closed
