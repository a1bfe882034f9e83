"""Start on nodes without GPUs: hpcml beside dask-jobqueue's SLURMRunner, a batch script by hand and torchrun; and a run on 128 nodes.

As bench/bringup.py, on a machine whose nodes need not share two cores. *usable* is when a script has seen all workers of
two threads, one on each node; for ranks, when all have exchanged a number by Gloo. The crowd has no times: it tells
whether many nodes link, and what ``status``, ``stacks``, ``why`` and the ends say of them.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from harness import JOB, SCRIPTS, Case, HarnessError, Running, World, last_lines, read_json, run_directory
from results import Result, result
from section_bringup import Contenders, by_hpcml, by_sbatch, in_rounds, summary
from slurm import wait_for

SIZES, FEW = (4, 16), (2,)  # nodes; with --cpu
CROWD, SMALL_CROWD = 128, 3
CPUS, THREADS = 4, 2  # of a node as Slurm counts them: room for two tasks of SLURMRunner; of a worker
RUNNER, TORCHRUN, RANKS = "SLURMRunner", "torchrun", "hpcml, ranks"
DEADLINE, ENDS = 240, 90
ABOUT, ABOUT_CROWD = 25, 150  # seconds of a round, of the crowd
HEAD = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=15
#SBATCH --output={folder}/job.log
"""
BY_HAND = """\
file={folder}/scheduler-$SLURM_JOB_ID.json
{python} -m dask scheduler --port 0 --interface eth0 --scheduler-file "$file" --no-dashboard &
srun --overlap --ntasks-per-node=1 --cpu-bind=none {python} -m dask worker --scheduler-file "$file" --interface eth0 \\
  --nthreads {threads} --no-dashboard --local-directory {folder} &
{python} {scripts}/first_line.py {nodes} --scheduler-file "$file"
status=$?
wait
exit $status
"""
BY_RUNNER = """\
srun --ntasks=$(({nodes} + 2)) --ntasks-per-node=2 --cpus-per-task={threads} --cpu-bind=none \\
  {python} {scripts}/first_runner.py {nodes} {threads}
"""
BY_TORCHRUN = """\
export GLOO_SOCKET_IFNAME=eth0
head=$(scontrol --oneliner show node "$(scontrol show hostnames | head -n 1)" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
export head
srun --kill-on-bad-exit=1 bash -c 'exec {python} -m torch.distributed.run --nproc-per-node 1 --nnodes {nodes} \\
  --node-rank "$SLURM_PROCID" --master-addr "$head" --master-port 29511 {scripts}/first_rank.py'
"""
SETTINGS = ("workers.per_node=1", f"workers.threads={THREADS}", "interconnect.require=none")


def cases(world: World) -> list[Case]:
    """Return a case of Dask and one of ranks for each number of nodes, and the crowd."""
    made = [Case(f"{kind}, {nodes} nodes", ABOUT * min(world.rounds, 2), partial(measure, world, nodes))
            for kind, measure in (("Dask", _dask), ("ranks", _ranks)) for nodes in (FEW if world.cpu_only else SIZES)]  # fmt: skip
    return [*made, Case("crowd", ABOUT_CROWD, partial(_crowd, world, SMALL_CROWD if world.cpu_only else CROWD))]


def _dask(world: World, nodes: int) -> list[Result]:
    contenders: Contenders = {
        "hpcml": partial(by_hpcml, world, "first_line.py", [str(nodes)], nodes, 0, SETTINGS),
        "by hand": partial(_by_batch, world, nodes, BY_HAND),
        RUNNER: partial(_by_batch, world, nodes, BY_RUNNER),
    }
    return _measured(world, nodes, contenders, RUNNER)


def _ranks(world: World, nodes: int) -> list[Result]:
    contenders: Contenders = {
        RANKS: partial(by_hpcml, world, "first_rank.py", [], nodes, 0, options=("--ranks", "1")),
        TORCHRUN: partial(_by_batch, world, nodes, BY_TORCHRUN),
    }
    return _measured(world, nodes, contenders, TORCHRUN)


def _by_batch(world: World, nodes: int, text: str) -> dict[str, float]:
    words = {"job": JOB, "nodes": nodes, "python": world.python, "scripts": SCRIPTS, "threads": THREADS}
    return by_sbatch(world, lambda folder: (HEAD + text).format(folder=folder, **words))


def _measured(world: World, nodes: int, contenders: Contenders, anchor: str) -> list[Result]:
    world.shape(nodes, 0, CPUS)
    figures, errors = in_rounds(world, contenders)
    return summary(f"{nodes} nodes", figures, errors, dict.fromkeys(contenders, anchor))


def _crowd(world: World, nodes: int) -> list[Result]:
    """Have a run on all nodes end well, one whose script fails, and ranks of which one fails."""
    world.shape(nodes, 0, CPUS)
    last = nodes - 1
    failing = world.folder("crowd") / "failing.py"
    failing.write_text(f"import os, sys\nsys.exit(5 * (os.environ['RANK'] == '{last}'))\n")
    return [_lives(world, nodes, 0), _lives(world, nodes, 7), _rank_fails(world, failing, nodes, last)]


def _lives(world: World, nodes: int, status: int) -> Result:
    """Submit a run on all nodes, ask it what users ask, and have its script end with a status."""
    folder = world.folder("crowd")
    words = world.submit_words(
        SCRIPTS / "many.py", [str(folder), str(nodes)], folder, nodes=nodes, gpus=0, settings=SETTINGS, protocol=""
    )
    with world.started(words, cwd=folder) as running:
        ready = folder / "ready.json"
        if not wait_for(lambda: ready.exists() or running.process.poll() is not None, DEADLINE) or not ready.exists():
            raise HarnessError(f"the run on {nodes} nodes did not come up\n{last_lines(running.output())}")
        found: dict[str, Any] = {**read_json(ready)}
        found["nodes"] = len(found["nodes"])
        found |= _asked(world, run_directory(folder), running)
        (folder / "order.new").write_text(str(status))
        (folder / "order.new").rename(folder / "order")
        done = running.wait(ENDS)
    found["status"] = done.status
    world.clear()
    expected = {"workers": nodes, "nodes": nodes, "state": "RUNNING", "silent": 0, "status": status}
    if done.status != status:  # what says why is on no later page
        found["output"] = last_lines(done.output)
    few = [] if found["stacks"] > nodes + 1 else [f"{found['stacks']} stacks"]  # workers, scheduler, script
    return _compared(f"{nodes} nodes, the script ends with {status}", expected, found, few)


def _asked(world: World, directory: Path | None, running: Running) -> dict[str, Any]:
    """Return what ``status`` and ``stacks`` say of a run."""
    assert directory is not None
    said = {}
    for command in ("status", "stacks"):
        done = world.command(
            [world.python, "-m", "hpcml", command, "--json", directory.name, "--set", f"paths.runs={directory.parent}"],
            timeout=DEADLINE,
        )
        if done.status:
            raise HarnessError(
                f"hpcml {command}: exit status {done.status}\n{last_lines(done.output)}\n{last_lines(running.output())}"
            )
        said[command] = json.loads(done.output)
    stacks = said["stacks"]
    return {
        "state": said["status"]["state"],
        "stacks": sum(group["count"] for group in stacks["groups"]),
        "silent": len(stacks["missing"]),
    }


def _rank_fails(world: World, script: Path, nodes: int, last: int) -> Result:
    """Have the last of many ranks fail: the run has its status, and ``why`` its number and node."""
    run = world.submit(
        script, [], nodes=nodes, gpus=0, options=("--ranks", "1"), settings=SETTINGS[-1:], timeout=DEADLINE
    )
    found: dict[str, Any] = {"status": run.status}
    if run.directory is not None:
        words = ["why", "--json", run.directory.name, "--set", f"paths.runs={run.directory.parent}"]
        done = world.command([world.python, "-m", "hpcml", *words], timeout=ENDS)
        why = json.loads(done.output) if not done.status else {}
        found |= {"rank": why.get("rank"), "node": why.get("node")}
    return _compared(f"{nodes} ranks, the last one fails", {"status": 5, "rank": last, "node": f"n{nodes}"}, found)


def _compared(name: str, expected: dict[str, Any], found: dict[str, Any], wrong: list[str] | None = None) -> Result:
    wrong = (wrong or []) + [
        f"{key} is {found.get(key)}, {value} is expected" for key, value in expected.items() if found.get(key) != value
    ]
    return result(name, ok=not wrong, figures=found, error="; ".join(wrong))
