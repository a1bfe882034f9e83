"""Scripts that open their own cluster, unchanged: in a run on the run's GPU workers, alone on a LocalCUDACluster."""

from __future__ import annotations

from functools import partial
from typing import Any

from harness import SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, result

DEADLINE = 200
ABOUT = 60  # seconds of one run
FIGURE = float(sum(sum(range(1000 * (seed + 1))) for seed in range(8)))


def cases(world: World) -> list[Case]:
    """Return the two scripts, on two nodes where there are GPUs for both."""
    nodes = 2 if world.gpus > 1 else 1
    count = max(world.gpus // nodes, 1)
    return [
        Case(f"{nodes} × {count}: its own LocalCUDACluster", 2 * ABOUT, partial(_idioms, world, nodes, count)),
        Case(f"{nodes} × {count}: without a main guard", ABOUT / 2, partial(_no_guard, world, nodes, count)),
    ]


def _submit(world: World, script: str, nodes: int, count: int) -> tuple[dict[str, Any], str]:
    folder = world.folder("idioms")
    run = world.submit(SCRIPTS / script, [str(folder / "result.json")], nodes=nodes, gpus=count,
                       settings=["fabric.require=none", "gpu.rmm_pool_size=8G"], timeout=DEADLINE)  # fmt: skip
    run.must_be(0)
    return read_json(folder / "result.json"), run.output


def _idioms(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    folder = world.folder("idioms-alone")
    done = world.command(
        [world.python, str(SCRIPTS / "idioms.py"), str(folder / "result.json")], timeout=DEADLINE, cwd=folder
    )
    if not (folder / "result.json").exists():
        raise HarnessError(f"alone: exit status {done.status}\n{last_lines(done.output)}")
    alone = read_json(folder / "result.json")
    found, output = _submit(world, "idioms.py", nodes, count)
    results = []
    for name, figures in found.items():
        if isinstance(figures, dict):
            same = all(figures.get(key) == alone[name].get(key) for key in ("kind", "figure"))
            error = figures.get("error", "") or ("" if same else f"alone: {alone[name]}, in a run: {figures}")
            shown = figures | {"alone": str(alone[name].get("figure", alone[name].get("error")))}
            results.append(
                result(f"{nodes} × {count}: {name}", ok=same and not figures.get("error"), figures=shown, error=error)
            )
    noted = "hpcml: LocalCUDACluster(" in output and f"this run's {nodes * count} GPU worker" in output
    right = found["workers"] == nodes * count and noted
    figures = {"workers": found["workers"], "open_s": found["open_s"], "alone_open_s": alone["open_s"]}
    results.append(result(f"{nodes} × {count}: the run's workers, and a note", ok=right, figures=figures,
                          error="" if right else last_lines(output)))  # fmt: skip
    return results


def _no_guard(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    found, output = _submit(world, "no_guard.py", nodes, count)
    right = found == {"figure": FIGURE, "workers": nodes * count} and "Client(scheduler_file=" in output
    return [result(f"{nodes} × {count}: Client(scheduler_file=…), no main guard", ok=right, figures=found,
                   error="" if right else last_lines(output))]  # fmt: skip
