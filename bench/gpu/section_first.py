"""A short script on one GPU: k-means by cuML in a run, and with a LocalCUDACluster, from the submission to the end.

The steps are those of scripts/first_fit.py; a step's seconds are since the one before.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

from harness import SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, result

LOCAL = "LocalCUDACluster"
ABOUT = 35  # seconds of one
DEADLINE = 120
STEPS = ("first_line", "imported", "usable", "looked", "data", "cuml", "fit1", "fit2", "fit3", "end", "gone")


def cases(world: World) -> list[Case]:
    """Return the one case: rounds of all contenders."""
    return [Case("k-means", ABOUT * 3 * world.rounds, partial(_measure, world))]


def _measure(world: World) -> list[Result]:
    world.shape(1, 1)
    contenders = {
        "hpcml": partial(_run, world, ()),
        "hpcml, cuml imported early": partial(_run, world, ('gpu.pre_import=["cuml.dask"]',)),
        LOCAL: partial(_local, world),
    }
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(world.rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            if world.left() > ABOUT:
                rounds[name].append(contenders[name]())
    return [_judged(name, rounds) for name in names if rounds[name]]


def _run(world: World, settings: tuple[str, ...]) -> dict[str, Any]:
    words = ["run", str(world.pool)]
    pool = f"gpu.rmm_pool_size={world.pool >> 30}G"
    run = world.submit(SCRIPTS / "first_fit.py", words, nodes=1, gpus=1, settings=(pool, *settings), timeout=DEADLINE)
    run.must_be(0)
    events = {name: when for name in ("allocated", "workers-ready", "interconnect-checked") if (when := run.when(name))}
    return run.table("out/first.json") | {"submitted": run.submitted, "gone": run.submitted + run.seconds} | events


def _local(world: World) -> dict[str, Any]:
    folder, began = world.folder("first-local"), time.time()
    words = [world.python, str(SCRIPTS / "first_fit.py"), "local", str(world.pool)]
    done = world.command(words, timeout=DEADLINE, cwd=folder)
    if done.status:
        raise HarnessError(last_lines(done.output))
    return read_json(folder / "first.json") | {"submitted": began, "gone": began + done.seconds}


def _judged(name: str, rounds: dict[str, list[dict[str, Any]]]) -> Result:
    figures: dict[str, Any] = {}
    for before, step in zip(("submitted", *STEPS), STEPS, strict=False):
        figures[step] = round(statistics.median([one[step] - one[before] for one in rounds[name]]), 3)
    totals = {who: statistics.median([one["gone"] - one["submitted"] for one in runs]) for who, runs in rounds.items()}
    figures |= {"total_s": round(totals[name], 3), "runs": len(rounds[name]), "each": rounds[name]}
    return result(name, ok=True, figures=figures, ratio=round(totals[name] / totals[LOCAL], 3))
