"""Bring-up on GPUs: hpcml against a batch script written by hand, from the job's start to the first line of the script.

Measured as bench/bringup.py does: the job's start is when Slurm's batch bash begins (BASH_ENV writes the time),
``registered`` is the last add-worker in the scheduler's own event log, ``usable`` is when the script, its client
connected, has seen all workers. hpcml authenticates its connections and checks the wire before the script starts; two
more contenders show what the check and UCX cost. All have the same RMM pool and limits; they take turns.

Cases "cuDF" compare a script that uses cuDF with one that does not. The workers of ``dask cuda worker`` always import
cuDF, those of hpcml and of a LocalCUDACluster only if the script uses it: there *usable* is after each worker has
computed with cuDF.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness import JOB, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result, skipped

DEADLINE = 90
ABOUT = 25  # seconds of one bring-up with its end
BY_HAND = "by hand, ucx"
CUDF = ", cuDF"  # the end of a contender's name: its script uses cuDF
OTHERS = 2  # rounds of the other contenders
START = """\
unset BASH_ENV
if [ -n "${SLURM_JOB_ID:-}" ] && [ ! -e "$GPU_TIER_FOLDER/start" ]; then printf '%s\\n' "$EPOCHREALTIME" >"$GPU_TIER_FOLDER/start"; fi
"""
# The recipe of dask-cuda's documentation (examples, UCX) in one allocation: a scheduler file of this job, one worker task
# per node that sees all its GPUs, a CUDA context before UCX everywhere, no sleep, no dashboards. Not the default port:
# UCX cannot bind one again for a minute after the last job on that node.
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpu_line}
#SBATCH --exclusive
#SBATCH --time=15
#SBATCH --output={folder}/job.log
export DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT={context}
file={folder}/scheduler-$SLURM_JOB_ID.json
{scheduler_pool}{python} -m dask scheduler --port 0 --protocol {protocol} {interface} \\
  --scheduler-file "$file" --no-dashboard --dashboard-address 127.0.0.1:0 &
srun --overlap --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none {bind} {python} -m dask {worker} \\
  --scheduler-file "$file" --protocol {protocol} {interface} --memory-limit {memory} --no-dashboard \\
  --local-directory {folder} {worker_options} &
{python} {driver} {workers} --scheduler-file "$file"
status=$?
wait
exit $status
"""
LOCAL = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --time=15
#SBATCH --output={folder}/job.log
{python} {driver} {gpus} {pool} {more}
"""

Contenders = dict[str, Callable[[], dict[str, float]]]
Figures = dict[str, list[dict[str, float]]]


def cases(world: World) -> list[Case]:
    """Return a case for every way to divide the machine's GPUs, and one with cuDF: rounds of all contenders."""
    shapes, about = world.shapes(), min(ABOUT * 4 * world.rounds, 120)
    made = [Case(f"{nodes}x{gpus}", about, partial(_measure, world, nodes, gpus)) for nodes, gpus in shapes]
    return [
        *made,
        *(Case(f"{nodes}x{gpus}{CUDF}", about, partial(_frames, world, nodes, gpus)) for nodes, gpus in shapes[::-1]),
    ]


def _measure(world: World, nodes: int, gpus: int) -> list[Result]:
    world.shape(nodes, gpus)
    contenders: Contenders = {
        "hpcml": lambda: _hpcml(world, nodes, gpus, "ucx", ()),
        BY_HAND: lambda: _by_hand(world, nodes, gpus),
        "hpcml, no check": lambda: _hpcml(world, nodes, gpus, "ucx", ("interconnect.require=none",)),
        "hpcml, tls, no check": lambda: _hpcml(world, nodes, gpus, "tls", ("interconnect.require=none",)),
    }
    figures, errors = in_rounds(world, contenders, {name: OTHERS for name in contenders if "no check" in name})
    return summary(f"{nodes}x{gpus}", figures, errors)


def _frames(world: World, nodes: int, gpus: int) -> list[Result]:
    """Compare a script that uses cuDF with one that does not, by each contender."""
    if world.cpu_only:
        return [skipped(f"{nodes}x{gpus}{CUDF}", "cuDF needs a GPU")]
    world.shape(nodes, gpus)
    contenders: Contenders = {}
    for end, script in (("", "first_line.py"), (CUDF, "first_frame.py")):
        contenders[f"hpcml{end}"] = partial(_hpcml, world, nodes, gpus, "ucx", (), script)
        contenders[f"{BY_HAND}{end}"] = partial(_by_hand, world, nodes, gpus, script)
        if nodes == 1:
            contenders[f"LocalCUDACluster{end}"] = partial(_local, world, gpus, "cudf" if end else "")
    figures, errors = in_rounds(world, contenders)
    anchors = {name: f"{BY_HAND}{CUDF if name.endswith(CUDF) else ''}" for name in contenders}
    return summary(f"{nodes}x{gpus}, beside cuDF", figures, errors, anchors)


def in_rounds(
    world: World, contenders: Contenders, most: Mapping[str, int] | None = None
) -> tuple[Figures, dict[str, str]]:
    """Return the figures of the contenders in turns, and the errors; ``most``: how many rounds of some there are at most."""
    figures: Figures = {name: [] for name in contenders}
    errors: dict[str, str] = {}
    names = list(contenders)
    for number in range(world.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if number >= (most or {}).get(name, world.rounds) or world.left() < ABOUT:
                continue
            if name in errors:  # who has failed once would spend its deadline again
                continue
            try:
                figures[name].append(contenders[name]())
            except HarnessError as error:
                errors[name] = str(error)
    return figures, errors


def summary(
    shape: str, figures: Figures, errors: dict[str, str], anchors: Mapping[str, str] | None = None
) -> list[Result]:
    """Return the medians of each contender, with the least and the most, and its ratio to its anchor (default: by hand)."""
    found = []
    for name, runs in figures.items():
        title = f"{shape}: {name}"
        by_hand = [one["usable"] for one in figures[(anchors or {}).get(name, BY_HAND)]]
        if not runs:
            found.append(failure(title, errors.get(name, "no time was left")))
            continue
        keys = sorted({key for one in runs for key in one})
        medians = {key: statistics.median([one[key] for one in runs if key in one]) for key in keys}
        usable = [one["usable"] for one in runs]
        ratio = round(medians["usable"] / statistics.median(by_hand), 3) if by_hand else None
        row = {**{key: round(value, 3) for key, value in medians.items()}, "runs": len(runs),
               "usable_least": round(min(usable), 3), "usable_most": round(max(usable), 3), "each": runs}  # fmt: skip
        found.append(result(title, ok=name not in errors, figures=row, ratio=ratio, error=errors.get(name, "")))
    return found


def _variables(folder: Path) -> dict[str, str]:
    (folder / "start.sh").write_text(START)
    return {"BASH_ENV": str(folder / "start.sh"), "GPU_TIER_FOLDER": str(folder)}


def _workers(world: World, nodes: int, gpus: int) -> int:
    return nodes * (1 if world.cpu_only else gpus)


def _hpcml(
    world: World, nodes: int, gpus: int, protocol: str, settings: tuple[str, ...], script: str = "first_line.py"
) -> dict[str, float]:
    pool = () if world.cpu_only else (f"gpu.rmm_pool_size={world.pool >> 30}G",)
    words = [str(_workers(world, nodes, gpus))]
    return by_hpcml(world, script, words, nodes, gpus, (*pool, *settings), protocol)


def by_hpcml(
    world: World, script: str, words: list[str], nodes: int, gpus: int, settings: tuple[str, ...] = (), protocol: str = "",
    options: tuple[str, ...] = (),
) -> dict[str, float]:  # fmt: skip
    """Run one of scripts/ by hpcml and return its times."""
    folder = world.folder("bringup-hpcml")
    run = world.submit(SCRIPTS / script, words, nodes=nodes, gpus=gpus, settings=settings, protocol=protocol,
                       timeout=DEADLINE, environment=_variables(folder), options=options)  # fmt: skip
    run.must_be(0)
    found = _times(folder, run.submitted)
    start = float((folder / "start").read_text())
    named = {"allocated": "allocated", "scheduler-up": "scheduler_up", "workers-ready": "workers_ready",
             "interconnect-checked": "fabric_checked", "script-started": "script_started"}  # fmt: skip
    return found | {
        key: round(when - start, 3) for event, key in named.items() if (when := run.when(event)) is not None
    }


def _by_hand(world: World, nodes: int, gpus: int, script: str = "first_line.py") -> dict[str, float]:
    return by_sbatch(world, lambda folder: batch_script(world, folder, nodes, gpus, script))


def _local(world: World, gpus: int, more: str) -> dict[str, float]:
    line = LOCAL.format(
        job=JOB,
        gpus=gpus,
        python=world.python,
        driver=SCRIPTS / "first_local.py",
        pool=world.pool,
        more=more,
        folder="{folder}",
    )
    return by_sbatch(world, lambda folder: line.replace("{folder}", str(folder)))


def by_sbatch(world: World, write: Callable[[Path], str]) -> dict[str, float]:
    """Submit a batch script, which is made for its folder, and return its times."""
    folder = world.folder("bringup-hand")
    (folder / "job.sh").write_text(write(folder))
    submitted = time.time()
    done = world.batch(
        ["sbatch", *sbatch_options(world), "job.sh"], timeout=DEADLINE, cwd=folder, environment=_variables(folder)
    )
    if not (folder / "result.json").exists():  # a teardown that crashes is no part of this measurement
        log = folder / "job.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        raise HarnessError(f"by hand: exit status {done.status}\n{last_lines(done.output + said)}")
    return _times(folder, submitted)


def sbatch_options(world: World) -> list[str]:
    """Return what the site wants of sbatch, out of the options for hpcml."""
    wanted = ("--account", "--partition", "--qos")
    pairs = zip(world.options, world.options[1:], strict=False)
    return [f"{option}={value}" for option, value in pairs if option in wanted]


def batch_script(world: World, folder: Path, nodes: int, gpus: int, script: str = "first_line.py") -> str:
    """Return the batch script that is written by hand."""
    gpu = not world.cpu_only
    return SCRIPT.format(
        job=JOB, nodes=nodes, folder=folder, python=world.python, driver=SCRIPTS / script,
        gpu_line=f"#SBATCH --gpus-per-node={gpus}" if gpu else "#", context="True" if gpu else "False",
        bind="--gpu-bind=none" if gpu else "", worker="cuda worker" if gpu else "worker --nthreads 1",
        worker_options=f"--rmm-pool-size {world.pool}" if gpu else "", scheduler_pool="DASK_DISTRIBUTED_UCXX__RMM__POOL_SIZE=1GB " if gpu else "",
        protocol="ucx", interface="--interface eth0" if world.lab else "", memory="16GB" if gpu else "2GB",
        workers=_workers(world, nodes, gpus),
    )  # fmt: skip


def _times(folder: Path, submitted: float) -> dict[str, float]:
    found: dict[str, Any] = read_json(folder / "result.json")
    start = float((folder / "start").read_text())
    last = max(found["registered"])
    return {"registered": round(last - start, 3), "usable": round(found["usable"] - start, 3),
            "first_line": round(found["begun"] - start, 3), "submit_to_usable": round(found["usable"] - submitted, 3),
            "queued": round(start - submitted, 3)}  # fmt: skip
