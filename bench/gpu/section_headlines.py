"""The figures that others published, at the size that suits the GPUs that are here, on hpcml and on a cluster by hand.

Sizes are those of the publications for eight GPUs, times the number of GPUs here over eight: so much data for each GPU,
and the published seconds are what they are compared with. The join is small enough to be as published on any GPU.
scripts/by_hand.py has the work; it runs in an hpcml run and on a LocalCUDACluster, in turns, with the same memory pool: cases "in turns", which
tell what the cluster costs. Cases "by the job" run the workload of the same work, which does it in its own way (large chunks, a direct exchange
of rows): its seconds are those that are judged. Search is bench/workloads/search.py, which times scikit-learn itself.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import ROOT, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result, skipped

EIGHT = 8
ENOUGH = 0.9  # hpcml's speed over that of the cluster by hand
ENOUGH_GAIN = 20.0  # of the job's join over NVLink against the same over TCP
EFFICIENT = 0.9  # of the fit's time on one GPU over that on all, with so many rows for each
SEARCH_ROWS, SEARCH_FEATURES = 350_000, 9  # 28 MB of float64 with the target, as published
CSV_FILE, CSV_ROWS = 1_000_000_000, 20_000  # bytes of a file, and the rows that it repeats
A_JOB = {
    "svd": 45,
    "array": 40,
    "join": 40,
    "join over TCP": 50,
    "csv": 70,
}  # seconds of a job, start and CSV's writing included


class Headline(NamedTuple):
    """A published figure: about how many seconds it takes here, sizes for eight GPUs, which of them grow with the GPUs.

    Attributes
    ----------
    small
        The sizes under --cpu.
    old, most
        The published seconds and on what; the seconds that are asked of the job on eight GPUs of today, None if none are.
    """

    about: float
    sizes: dict[str, int]
    small: dict[str, int]
    grows: tuple[str, ...]
    old: str
    most: float | None


HEADLINES = {
    "svd": Headline(85, {"rows": 10_000_000, "columns": 20_000, "chunk": 20_000},
                    {"rows": 4_000, "columns": 400, "chunk": 1_000}, ("rows",), "10 to 15 s on 16 V100", 4),
    "csv": Headline(60, {"bytes": 10_000_000_000, "block": 256_000_000}, {"bytes": 4_000_000, "block": 1_000_000},
                    ("bytes",), "5 s on 8 V100", 1),
    "array": Headline(60, {"rows": 500_000, "columns": 500_000, "chunk": 10_000},
                      {"rows": 2_000, "columns": 4_000, "chunk": 500}, ("columns",), "19 s on 8 V100", 2.5),
    "join": Headline(70, {"left": 1_000_000_000, "right": 10_000_000, "parts": 16},
                     {"left": 400_000, "right": 4_000, "parts": 4}, (), "1 GB/s over TCP on 8 V100", None),
}  # fmt: skip
OVER_TCP = "join over TCP"
# The workload that does the same, its options, and the phase that is the work.
JOBS = {
    "svd": ("pca_svd", "--rows {rows} --columns {columns} --k 10 --raw --power-iterations 0", "svd"),
    "csv": ("etl", "--data {folder} --by passenger_count --value trip_distance", "aggregate"),
    "array": ("arrays", "--rows {rows} --columns {columns}", "sum"),
    "join": ("join", "--rows {left} --right {right} --shuffle direct", "join"),
}
KMEANS = {"rows": 100_000_000, "features": 32, "k": 16}  # 12 GiB for each GPU
FEW_KMEANS = {"rows": 20_000, "features": 4, "k": 4}
A_FIT = 60  # seconds for a fit: it takes about six, and on eight GPUs the second one once did not end


def cases(world: World) -> list[Case]:
    """Return the jobs, then the same works in turns with the cluster by hand, both by worth."""
    known: dict[str, float] = {}
    quick = 30.0 if world.cpu_only else 0.0
    jobs = [Case(f"{title} by the job", quick or seconds, partial(_by_the_job, world, title, known))
            for title, seconds in A_JOB.items()]  # fmt: skip
    turns = {title: Case(f"{title} in turns", quick or HEADLINES[name_of(title)].about, partial(_in_turns, world, title, known))
             for title in (*HEADLINES, OVER_TCP)}  # fmt: skip
    scaling = Case("kmeans, 1 to N", quick or 120, partial(_weak_scaling, world))
    search = Case("search", quick or 50, partial(_search, world))
    return [*jobs, turns["svd"], turns["array"], turns["join"], turns[OVER_TCP], scaling, turns["csv"], search]


def name_of(title: str) -> str:
    """Return which headline it is, whatever the wire."""
    return "join" if title == OVER_TCP else title


def scaled(world: World, name: str) -> dict[str, Any]:
    """Return the sizes for the GPUs that are here."""
    line = HEADLINES[name]
    if world.cpu_only:
        return dict(line.small)
    return {key: value * world.gpus // EIGHT if key in line.grows else value for key, value in line.sizes.items()}


def size_of(name: str, sizes: dict[str, Any]) -> int:
    """Return the bytes of a headline's data; of the join those of its left side, as published."""
    if name == "csv":
        return int(sizes["bytes"])
    return int(
        sizes["left"] * 16 if name == "join" else sizes["rows"] * sizes["columns"] * (8 if name == "array" else 1)
    )


def write_csv(folder: Path, size: int, file: int = CSV_FILE) -> None:
    """Write taxi-like CSV files of about so many bytes in all; rows repeat, since only their reading is timed."""
    folder.mkdir(parents=True)
    block = "".join(map(_taxi_line, range(CSV_ROWS)))
    count = -(-size // file)
    times = max(size // count // len(block), 1)
    for number in range(count):
        with (folder / f"part-{number:05d}.csv").open("w") as out:
            out.write("pickup,dropoff,passenger_count,trip_distance,pickup_zone,dropoff_zone,payment,fare,tip,total\n")
            for _ in range(times):
                out.write(block)


def _taxi_line(row: int) -> str:
    day = f"2019-01-{row % 28 + 1:02d} {row % 23:02d}"
    times = f"{day}:{row % 30:02d}:00,{day}:{row % 30 + 29:02d}:30"
    trip = f"{row % 6 + 1},{row % 997 / 50:.2f},{row % 263 + 1},{row % 257 + 1},{'card' if row % 3 else 'cash'}"
    return f"{times},{trip},{row % 991 / 10:.2f},{row % 89 / 10:.2f},{row % 99}\n"


@contextlib.contextmanager
def _data(world: World, name: str) -> Iterator[dict[str, Any]]:
    """Give the sizes for the GPUs that are here; for the CSV files, which are there meanwhile, their ``folder`` too."""
    sizes = scaled(world, name)
    if name != "csv":
        yield sizes
        return
    written = world.folder("csv") / "data"
    write_csv(written, sizes["bytes"])
    try:
        yield {**sizes, "folder": str(written)}
    finally:
        shutil.rmtree(written)


def _in_turns(world: World, title: str, known: dict[str, float]) -> list[Result]:
    name = name_of(title)
    wire = "tcp" if world.cpu_only or title == OVER_TCP else "ucx"
    with _data(world, name) as sizes:
        found = both(world, name, sizes, world.gpus, wire, rounds=1 if title == OVER_TCP else world.rounds)
    return [judged(world, title, HEADLINES[name], found, known)]


def _by_the_job(world: World, title: str, known: dict[str, float]) -> list[Result]:
    """Run the workload of the same work once: so its first use of libraries is part of its seconds where the job has it there."""
    name = name_of(title)
    script, words, phase = JOBS[name]
    if not (ROOT / f"bench/workloads/{script}.py").exists():
        return [skipped(f"{title}: the job", f"bench/workloads/{script}.py is not here")]
    world.shape(1, world.gpus)
    settings = ["interconnect.require=none", *([] if world.cpu_only else ["gpu.device_memory_limit=none"])]
    with _data(world, name) as sizes:
        run = world.submit(ROOT / f"bench/workloads/{script}.py", words.format(**sizes).split(), nodes=1, gpus=world.gpus,
                           settings=settings, protocol="tcp" if title == OVER_TCP and not world.cpu_only else "",
                           timeout=2 * HEADLINES[name].about)  # fmt: skip
    run.must_be(0)
    return [judged_job(world, title, run.table("out/result.json")["seconds"][phase], known)]


def judged_job(world: World, title: str, seconds: float, known: dict[str, float]) -> Result:
    """Return the result of a headline's job: its seconds, over TCP the gain of the same job over NVLink.

    ``known`` has the seconds by title of what ran before; those of this job are put beside them.
    """
    name, own = name_of(title), f"{title}: the job"
    line, gib = HEADLINES[name], size_of(name, scaled(world, name)) / 2**30
    known[own] = seconds
    figures = {"size": f"{gib:,.3g} GiB", "job_s": seconds, "gib_s": gib / seconds, "old": line.old,
               "scaled": f"{world.gpus}/{EIGHT}" if line.grows else "1"}  # fmt: skip
    wrong = []
    if title == OVER_TCP and "join: the job" in known:
        gain = figures["gain"] = seconds / known["join: the job"]
        if gain < ENOUGH_GAIN:
            wrong.append(f"NVLink is {gain:.1f} times as fast as TCP, {ENOUGH_GAIN:g} times is expected")
    if line.most is not None and seconds > line.most:
        wrong.append(f"{seconds:.1f} s, at most {line.most:g} s are expected")
    if world.cpu_only:
        wrong = []
    return result(own, ok=not wrong, figures=figures, error="; ".join(wrong))


def judged(
    world: World, title: str, line: Headline, found: dict[str, dict[str, Any]], known: dict[str, float]
) -> Result:
    """Return a headline's result in turns; with CPUs in place of GPUs only that both clusters give the same answer."""
    ours, theirs = found["hpcml"], found["local"]
    ratio = theirs["seconds"] / ours["seconds"]
    figures = {"size": f"{ours['gib']:,.3g} GiB", "hpcml_s": ours["seconds"], "local_s": theirs["seconds"],
               "first_s": ours["first"], "gib_s": ours["gib"] / ours["seconds"], "old": line.old,
               "scaled": f"{world.gpus}/{EIGHT}" if line.grows else "1", "profile": ours["profile"], "local_profile": theirs["profile"]}  # fmt: skip
    wrong = []
    if abs(ours["answer"] - theirs["answer"]) > 1e-3 * max(abs(theirs["answer"]), 1e-9):
        wrong.append(f"the answer is {ours['answer']}, on the cluster by hand {theirs['answer']}")
    known[title] = ours["seconds"]
    if title == OVER_TCP and "join" in known:
        figures["gain"] = ours["seconds"] / known["join"]
    if not world.cpu_only and title != OVER_TCP and ratio < ENOUGH:  # over TCP hpcml encrypts, the other does not
        wrong.append(f"hpcml has {ratio:.2f} of the other's speed, {ENOUGH} is expected")
    return result(title, ok=not wrong, figures=figures, ratio=round(ratio, 3), error="; ".join(wrong))


def both(
    world: World, name: str, sizes: dict[str, Any], gpus: int, protocol: str, *, rounds: int = 1
) -> dict[str, dict[str, Any]]:
    """Run the work on both clusters in turns, each started anew; return the quickest of each."""
    world.shape(1, gpus)
    found: dict[str, list[dict[str, Any]]] = {"local": [], "hpcml": []}
    for number in range(rounds):
        for where in list(found)[:: -1 if number % 2 else 1]:
            if number == 0 or world.left() > 60:
                found[where].append(_one(world, where, name, sizes, gpus, protocol))
    return {where: min(many, key=lambda one: float(one["seconds"])) for where, many in found.items()}


def _one(world: World, where: str, name: str, sizes: dict[str, Any], gpus: int, protocol: str) -> dict[str, Any]:
    folder = world.folder(f"{name}-{where}")
    file, script = folder / "result.json", SCRIPTS / "by_hand.py"
    deadline = (
        max(2 * HEADLINES[name].about, 90) if name in HEADLINES else 60 + 2 * A_FIT
    )  # two fits, and one that hangs
    words = ["local" if where == "local" else "run", name, "--result", str(file), "--sizes", json.dumps(sizes)]
    words += ["--devices", ",".join(map(str, range(gpus))), "--protocol", protocol]
    words += ["--cpu"] if world.cpu_only else ["--pool", str(world.pool * 3 // 2)]
    words += [] if name in HEADLINES else ["--limit", str(A_FIT)]
    if where == "local":
        done = world.command([world.python, str(script), *words], timeout=deadline, cwd=folder)
        why = f"exit status {done.status}\n{last_lines(done.output)}"
    else:
        settings = [f"workers.per_node={gpus}"] if world.cpu_only else [
            f"gpu.rmm_pool_size={world.pool * 3 // 2 >> 30}G", "gpu.device_memory_limit=none"]  # fmt: skip
        run = world.submit(script, words, nodes=1, gpus=gpus, settings=[*settings, "interconnect.require=none"],
                           protocol="" if world.cpu_only else protocol, timeout=deadline)  # fmt: skip
        why = run.why()
    if not file.exists():
        raise HarnessError(f"{name} on {where}: {why}")
    found = read_json(file)
    if "hung" in found:
        at = "\n".join(f"== {address}\n{last_lines(text)}" for address, text in found["stacks"].items())
        fits = ", ".join(f"{seconds:.1f} s" for seconds in found["done"]) or "none"
        raise HarnessError(
            f"{name} on {where}, {gpus} GPUs: {found['hung']} did not end in {A_FIT} s; before it: {fits}\n{at}"
        )
    return found


def _weak_scaling(world: World) -> list[Result]:
    sizes = dict(FEW_KMEANS if world.cpu_only else KMEANS)
    counts = sorted({1, world.gpus})
    wire = "tcp" if world.cpu_only else "ucx"
    found: dict[int, dict[str, dict[str, Any]]] = {count: {} for count in counts}
    results = []
    for count, where in [*((count, "hpcml") for count in counts), (world.gpus, "local")]:
        world.shape(1, count)
        try:  # a fit that hangs leaves the figures of the others
            found[count][where] = _one(world, where, "kmeans", sizes, count, wire)
        except HarnessError as error:
            results.append(failure(f"kmeans, {count}" + (" by hand" if where == "local" else ""), str(error)))
    for count in counts:
        if "hpcml" not in found[count]:
            continue
        ours, theirs = found[count]["hpcml"], found[count].get("local", {"seconds": None})
        efficiency = found[1]["hpcml"]["seconds"] / ours["seconds"] if found[1] else None
        figures = {"size": f"{ours['gib']:,.3g} GiB", "hpcml_s": ours["seconds"], "local_s": theirs["seconds"], "first_s": ours["first"],
                   "gib_s": ours["gib"] / ours["seconds"], "profile": ours["profile"], "efficiency": efficiency, "old": "-", "scaled": f"{count} × {sizes['rows']:,} rows"}  # fmt: skip
        slow = efficiency is not None and efficiency < EFFICIENT and not world.cpu_only
        wrong = f"{efficiency:.0%} of one GPU's speed on each" if slow else ""
        results.append(result(f"kmeans, {count}", ok=not wrong, figures=figures, error=wrong,
                              ratio=theirs["seconds"] and round(theirs["seconds"] / ours["seconds"], 3)))  # fmt: skip
    return results


def compiled(world: World) -> int:
    """Return how many kernels that CuPy compiled are in its folder: where a setting, the environment or its default says."""
    setting = [word.partition("=")[2] for word in world.options if word.startswith("environment.CUPY_CACHE_DIR=")]
    folder = Path([*setting, world.environment.get("CUPY_CACHE_DIR") or Path.home() / ".cupy/kernel_cache"][0])
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _search(world: World) -> list[Result]:
    """bench/workloads/search.py's grid over Ridge on 28 MB, and scikit-learn's own search on the same host, folds and candidates."""
    if not (ROOT / "bench/workloads/search.py").exists():
        return [skipped("search", "bench/workloads/search.py is not here")]
    world.shape(1, world.gpus)
    rows = 2_000 if world.cpu_only else SEARCH_ROWS
    before = compiled(world)
    words = ["--model", "ridge", "--compare", "--rows", str(rows), "--features", str(SEARCH_FEATURES)]
    run = world.submit(ROOT / "bench/workloads/search.py", words, nodes=1, gpus=world.gpus, timeout=180)
    run.must_be(0)
    metrics = run.table("out/result.json")
    ours, theirs = metrics["seconds"]["search"], metrics["scikit_learn"]["seconds"]
    figures = {"size": f"{rows * (SEARCH_FEATURES + 1) * 8 / 2**20:.3g} MiB", "hpcml_s": ours, "sklearn_s": theirs,
               "old": "77 s on a GPU, 4.9 s on CPUs", "scaled": "1",
               "kernels": None if world.cpu_only else "new machine" if compiled(world) > before else "kernels kept"}  # fmt: skip
    slow = (
        f"the search takes {ours:.2f} s, scikit-learn's {theirs:.2f} s" if ours > theirs and not world.cpu_only else ""
    )
    return [result("search", ok=not slow, figures=figures, ratio=round(theirs / ours, 3), error=slow)]
