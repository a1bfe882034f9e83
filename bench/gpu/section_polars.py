"""The same queries on the same files in two runs of hpcml: by dask_cudf, and by the engine of ``hpcml.polars_engine()``.

Both runs have all GPUs and are started anew for every round, in turns; each query is asked twice, and the second time
counts. P2P, which is slow on GPUs, has one round more, if time is left. The answers must be Polars'
own on CPUs, to the last digit. Beside the queries there is a large join, by dask_cudf with each of the two ways to
shuffle that dask-cuda 26.10 leaves it: explicit communication is not in it any more.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result, skipped

ROWS, FEW_ROWS = 100_000_000, 200_000  # of the largest table, for each GPU
ABOUT, EXAMPLE = 45, 30  # seconds of a round, of the example
DEADLINE = 180
BY = ("dask", "polars")
OTHER_WAYS = {"join": ["join", "join, p2p"]}  # of dask_cudf; the first is what is compared
SETTINGS = ["interconnect.require=none"]
PDSH = 50  # seconds of one time of upstream's queries, by all three
SCALE = 50  # TPC-H's scale factor for each GPU
UPSTREAM = "cudf_polars.streaming.benchmarks.pdsh"
SAME = """
import pathlib, sys, polars
from polars.testing import assert_frame_equal
folders = [pathlib.Path(one) for one in sys.argv[1:]]
names = sorted(path.name for path in folders[0].glob("*.parquet"))
for name in names:
    assert_frame_equal(*(polars.read_parquet(one / name) for one in folders), check_row_order=False, rel_tol=1e-6)
assert len(names) == 22, names
"""


def cases(world: World) -> list[Case]:
    """Return the queries, and the example of jobs/, for each shape that uses all GPUs."""
    return [
        Case(f"{nodes} × {count}: {name}", about, partial(measure, world, nodes, count))
        for nodes, count in world.shapes()
        for name, about, measure in (
            ("example", EXAMPLE, _example),
            ("queries", 2 * ABOUT, _queries),
            ("pdsh", PDSH * (world.rounds + 1), _pdsh),
        )
        if name == "queries" or not world.cpu_only  # the others would look for cuDF-Polars
    ]


def _example(world: World, nodes: int, count: int) -> list[Result]:
    """Run jobs/query.py on GPUs, and on CPUs."""
    world.shape(nodes, count)
    title, script = f"{nodes} × {count}: example", ROOT / "jobs/query.py"
    folder = world.folder("query-on-cpus")
    done = world.command([world.python, str(script)], timeout=DEADLINE, cwd=folder)
    if done.status:
        raise HarnessError(f"on CPUs: exit status {done.status}\n{last_lines(done.output)}")
    run = world.submit(script, nodes=nodes, gpus=count, timeout=DEADLINE)
    run.must_be(0)
    on_cpus, found = read_json(folder / "out/result.json"), run.table("out/result.json")
    same = all(found[name] == on_cpus[name] for name in ("regions", "best"))
    lines = {
        "line": run.fact("interconnect-checked").get("line", ""),
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
    turns = [(ABOUT * bool(number), by, cpu) for number in range(world.rounds) for by in BY[:: -1 if number % 2 else 1]]
    for seconds, by, options in [*turns, (4 * ABOUT, "dask", [*cpu, "--p2p"])]:
        if errors or world.left() < seconds:
            continue
        try:
            found[by].append(_run(world, nodes, count, by, folder, options))
        except HarnessError as error:
            errors.append(f"{by}: {error}")
            print(f"{nodes} × {count}: {errors[-1]}", flush=True)
    title = f"{nodes} × {count}: "
    if not all(found.values()):
        return [failure(f"{title}queries", "; ".join(errors) or "no time was left")]
    return [_compared(title, name, right[name], found, rows) for name in right]


def _pdsh(world: World, nodes: int, count: int) -> list[Result]:
    """Upstream's 22 queries on a run, on a cluster that upstream starts itself, and by ranks.

    Each is started once and asks every query once more than there are rounds; the first time does not count.
    """
    title = f"{nodes} × {count}: pdsh"
    program = os.environ.get("HPCML_TPCHGEN") or shutil.which("tpchgen-cli")
    if not program:
        return [skipped(title, "no tpchgen-cli (HPCML_TPCHGEN)")]
    world.shape(nodes, count)
    scale = int(os.environ.get("HPCML_PDSH_SCALE") or SCALE * world.gpus)
    data = world.folder("tpch")
    began = time.monotonic()
    words = [program, "parquet", "-s", str(scale), "--parts", str(16 * world.gpus), "--output-dir", str(data)]
    made = world.command(words, timeout=DEADLINE)
    if made.status:
        raise HarnessError(f"tpchgen-cli: exit status {made.status}\n{last_lines(made.output)}")
    figures: dict[str, Any] = {"scale": scale, "data_s": round(time.monotonic() - began, 1)}
    found: dict[str, list[dict[int, float]]] = {name: [] for name in ("run", "by hand", "ranks")}
    errors: dict[str, str] = {}
    answers = {name: world.folder(f"pdsh-{name.replace(' ', '-')}") for name in found}
    for name in found:
        output = answers[name] / "out.jsonl"
        words = ["all", "--path", str(data), "--suffix", "", "--iterations", str(world.rounds + 1)]
        words += ["--output", str(output)]
        words += ["--results-directory", str(answers[name])] if name != "ranks" else []
        try:
            _ask(world, name, nodes, count, words)
            found[name] = _durations(output)
        except (HarnessError, OSError, KeyError, ValueError) as error:
            errors[name] = str(error)[-1500:]
    for name, rounds in found.items():
        key = name.replace(" ", "_")
        figures[f"{key}_rounds"] = len(rounds)
        if rounds:
            sums = [sum(one.values()) for one in rounds]
            figures |= {
                f"{key}_s": round(statistics.median(sums), 3),
                f"{key}_spread": f"{min(sums):.2f} to {max(sums):.2f}",
            }
            figures[f"{key}_each"] = {
                query: round(statistics.median(one[query] for one in rounds), 4) for query in rounds[0]
            }
    seconds = [figures[f"{name}_s"] for name in ("by_hand", "ranks") if f"{name}_s" in figures]
    ratio = round(min(seconds) / figures["run_s"], 3) if seconds and "run_s" in figures else None
    same = _same_answers(world, answers["run"], answers["by hand"])
    figures["same"] = same
    good = ratio is not None and same and not errors
    return [
        result(title, ok=good, figures=figures, ratio=ratio, error="; ".join(f"{a}: {b}" for a, b in errors.items()))
    ]


def _ask(world: World, name: str, nodes: int, count: int, words: list[str]) -> None:
    if name == "by hand":
        command = [world.python, "-m", UPSTREAM, *words, "--frontend", "dask", "--num-gpus", str(nodes * count)]
        done = world.command(command, timeout=DEADLINE, cwd=world.folder("by-hand"))
        if done.status:
            raise HarnessError(f"exit status {done.status}\n{last_lines(done.output)}")
        return
    ranks = name == "ranks"
    options = ["--set", "gpu.gds=off", *(["--ranks", "gpu"] if ranks else [])]
    run = world.submit(SCRIPTS / "pdsh.py", ["spmd" if ranks else "dask", *words], nodes=nodes, gpus=count,
                       settings=SETTINGS, options=options, timeout=DEADLINE)  # fmt: skip
    run.must_be(0)


def _durations(path: Path) -> list[dict[int, float]]:
    """Return the seconds of each query for each time but the first, from what upstream's benchmark wrote."""
    records = json.loads(path.read_text().splitlines()[-1])["records"]
    times = {int(query): [float(one["duration"]) for one in many[1:]] for query, many in records.items()}
    return [dict(zip(times, one, strict=True)) for one in zip(*times.values(), strict=True)]


def _same_answers(world: World, by_run: Path, by_hand: Path) -> bool:
    """Whether a run and a cluster by hand gave the same answers to all queries, but for the last digits of sums."""
    done = world.command([world.python, "-c", SAME, str(by_run), str(by_hand)], timeout=DEADLINE)
    print(done.output, flush=True)
    return not done.status


def _alone(world: World, words: list[str]) -> None:
    done = world.command([world.python, str(SCRIPTS / "queries.py"), *words], timeout=DEADLINE)
    if done.status:
        raise HarnessError(f"{words[0]}: exit status {done.status}\n{last_lines(done.output)}")


def _run(world: World, nodes: int, count: int, by: str, folder: Path, more: list[str]) -> dict[str, Any]:
    path = folder / f"{by}.json"
    path.unlink(missing_ok=True)
    words = [by, str(folder), "--result", str(path), *more]
    run = world.submit(SCRIPTS / "queries.py", words, nodes=nodes, gpus=count, settings=SETTINGS,
                       timeout=DEADLINE)  # fmt: skip
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
