"""The same queries on the same files in two runs of hpcml: dask_cudf on Dask's workers, cuDF-Polars on its own mode's.

Both runs have all GPUs and are started anew for every round, in turns; each query is asked twice, and the second time
counts. P2P, which is slow on GPUs, has a part in the first round alone. The answers must be Polars' own on CPUs, to the last digit. Beside the queries there is a large join, by dask_cudf with
each of the two ways to shuffle that dask-cuda 26.10 leaves it: explicit communication is not in it any more.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result

ROWS, FEW_ROWS = 100_000_000, 200_000  # of the largest table, for each GPU
ABOUT, EXAMPLE = 45, 30  # seconds of a round, of the example
DEADLINE = 180
BY = ("dask", "polars")
OTHER_WAYS = {"join": ["join", "join, p2p"]}  # of dask_cudf; the first is what is compared
SETTINGS = ["fabric.require=none"]


def cases(world: World) -> list[Case]:
    """Return the queries, and the example of jobs/, for each shape that uses all GPUs."""
    return [
        Case(f"{nodes} × {count}: {name}", about, partial(measure, world, nodes, count))
        for nodes, count in world.shapes()
        for name, about, measure in (("example", EXAMPLE, _example), ("queries", 2 * ABOUT, _queries))
        if name == "queries" or not world.cpu_only  # the example would look for cuDF-Polars
    ]


def _mode(world: World, by: str) -> list[str]:
    return ["--set", "gpu.mode=polars"] if by == "polars" and not world.cpu_only else []


def _example(world: World, nodes: int, count: int) -> list[Result]:
    """Run jobs/query.py in the mode, and on CPUs."""
    world.shape(nodes, count)
    title, script = f"{nodes} × {count}: example", ROOT / "jobs/query.py"
    folder = world.folder("query-on-cpus")
    done = world.command([world.python, str(script)], timeout=DEADLINE, cwd=folder)
    if done.status:
        raise HarnessError(f"on CPUs: exit status {done.status}\n{last_lines(done.output)}")
    run = world.submit(script, nodes=nodes, gpus=count, options=_mode(world, "polars"), timeout=DEADLINE)
    run.must_be(0)
    on_cpus, found = read_json(folder / "out/result.json"), run.table("out/result.json")
    same = all(found[name] == on_cpus[name] for name in ("regions", "best"))
    lines = {
        "line": run.fact("fabric-checked").get("line", ""),
        "security": run.fact("scheduler-up").get("security", ""),
    }
    figures = {"same": same, "polars_s": found["seconds"], "cpu_s": on_cpus["seconds"], **lines}
    return [result(title, ok=same, figures=figures, error="" if same else "the figures are not those of CPUs")]


def _queries(world: World, nodes: int, count: int) -> list[Result]:
    world.shape(nodes, count)
    folder = world.folder("queries")
    rows = FEW_ROWS if world.cpu_only else ROWS * world.gpus
    cpu = ["--cpu"] if world.cpu_only else []
    _alone(world, ["make", str(folder), str(rows), *cpu])
    _alone(world, ["cpu", str(folder), "--result", str(folder / "cpu.json")])
    right = {name: one["answer"] for name, one in read_json(folder / "cpu.json").items()}
    found: dict[str, list[dict[str, Any]]] = {by: [] for by in BY}
    errors: list[str] = []
    for number in range(world.rounds):
        for by in BY[:: -1 if number % 2 else 1]:
            if errors or (number and world.left() < ABOUT):
                continue
            try:
                slow = ["--p2p"] if by == "dask" and not number else []
                found[by].append(_run(world, nodes, count, by, folder, [*cpu, *slow]))
            except HarnessError as error:
                errors.append(f"{by}: {error}")
    title = f"{nodes} × {count}: "
    if not all(found.values()):
        return [failure(f"{title}queries", "; ".join(errors) or "no time was left")]
    return [_compared(title, name, right[name], found, rows) for name in right]


def _alone(world: World, words: list[str]) -> None:
    done = world.command([world.python, str(SCRIPTS / "queries.py"), *words], timeout=DEADLINE)
    if done.status:
        raise HarnessError(f"{words[0]}: exit status {done.status}\n{last_lines(done.output)}")


def _run(world: World, nodes: int, count: int, by: str, folder: Path, more: list[str]) -> dict[str, Any]:
    path = folder / f"{by}.json"
    path.unlink(missing_ok=True)
    words = [by, str(folder), "--result", str(path), *more]
    run = world.submit(SCRIPTS / "queries.py", words, nodes=nodes, gpus=count, settings=SETTINGS,
                       options=_mode(world, by), timeout=DEADLINE)  # fmt: skip
    run.must_be(0)
    return read_json(path)


def _compared(title: str, name: str, right: Any, found: dict[str, list[dict[str, Any]]], rows: int) -> Result:
    """Return a query's medians over the rounds, and whether every answer was right."""
    figures: dict[str, Any] = {"rows": rows, "rounds": min(map(len, found.values()))}
    wrong = []
    for by, many in found.items():
        for way in OTHER_WAYS.get(name, [name]) if by == "dask" else [name]:
            each = [one["queries"][way] for one in many if way in one["queries"]]
            wrong += [f"{by}, {way}: {one['error']}" for one in each if one["error"]][:1]
            wrong += [f"{by}, {way}: another answer" for one in each if not one["error"] and one["answer"] != right][:1]
            if times := [one["seconds"][-1] for one in each if not one["error"]]:
                key = by if way == name else way.rpartition(" ")[2]
                figures |= {
                    f"{key}_s": statistics.median(times),
                    f"{key}_spread": f"{min(times):.2f} to {max(times):.2f}",
                }
                figures[f"{key}_first_s"] = statistics.median(one["seconds"][0] for one in each if not one["error"])
    figures["same"] = not wrong
    figures["engine_s"] = statistics.median(one.get("engine_s", 0.0) for one in found["polars"])
    ratio = round(figures["dask_s"] / figures["polars_s"], 2) if {"dask_s", "polars_s"} <= figures.keys() else None
    return result(f"{title}{name}", ok=not wrong, figures=figures, ratio=ratio, error="; ".join(wrong))
