"""Data larger than the GPUs' memory: half as much again is spilled and said to be, ten times is refused with the nodes it needs.

bench/workloads/pca_svd.py keeps the matrix as it is stored and passes over it twice, so that all of it comes back from the
hosts' memory in each pass. With CPU workers in place of GPUs it is spilled to disk. What such copies cost on this
machine is measured by themselves.
"""

from __future__ import annotations

import re
import statistics
from functools import partial
from typing import Any

from harness import ROOT, SCRIPTS, Case, Run, World
from results import Result, result, skipped

COLUMNS = 20_000
MORE, MUCH_MORE = 1.5, 10
HOST = "100G"  # for each worker's spilled data: for hosts of 128 GiB for each GPU
FITS = 81_559  # MiB of a GPU: such a host holds the rest of 1.5 times as much; of larger ones no more is used
SHARE = 0.8  # of a GPU's memory: where the worker begins to spill
SMALL = 1500  # MiB of a CPU worker's memory
ABOUT, SOON = 170, 60  # seconds
PASSES = 130  # seconds for one round of both ways
LIMIT = 12 << 30  # bytes that a worker keeps on its GPU, in the case of the passes
WAYS = {"passes: as dask-cuda": ("gpu.spill_pinned=none", "gpu.spill_order=lru"), "passes: pinned": ("gpu.spill_order=lru",),
        "passes: pinned, a part kept": ()}  # fmt: skip
REFUSED = 2  # the jobs' exit status for data that cannot fit


def cases(world: World) -> list[Case]:
    """Return cases for what copies cost, for what is refused, and for what is spilled."""
    return [
        Case("copies", 20, lambda: [world.measured("copies", "host_copies.py", timeout=SOON)]),
        Case("kinds", SOON, partial(_kinds, world)),
        Case("10 times", SOON if not world.cpu_only else 20, lambda: [_refused(world)]),
        Case("passes", PASSES if not world.cpu_only else 60, partial(_passes, world)),
        Case("1.5 times", ABOUT if not world.cpu_only else 60, lambda: [_spilled(world)]),
    ]


def _kinds(world: World) -> list[Result]:
    """Have values of every kind go to pinned memory and come back."""
    if world.cpu_only:
        return [skipped("kinds", "it needs a GPU")]
    found = world.measured("kinds", "spill_kinds.py", timeout=SOON)
    if wrong := found["figures"].get("not_as_before"):
        found |= {"ok": False, "error": f"not as before: {', '.join(wrong)}"}
    return [found]


def _passes(world: World) -> list[Result]:
    """Run passes over 1.5 times what is kept on the GPUs, each way in turns."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    world.shape(1, world.gpus)
    limit = LIMIT if not world.cpu_only else LIMIT >> 8
    words = ["--bytes", str(int(MORE * world.gpus * limit)), *(["--cpu"] if world.cpu_only else [])]
    for number in range(world.rounds):
        if number and world.left() < PASSES:
            break
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            settings = ["interconnect.require=none", f"gpu.device_memory_limit={limit >> 20}M", *WAYS[way]]
            run = world.submit(SCRIPTS / "spill_passes.py", words, nodes=1, gpus=world.gpus, timeout=PASSES,
                               settings=settings, options=options(world))  # fmt: skip
            run.must_be(0)
            found[way].append(run.table("out/result.json"))
    slow = statistics.median(pass_seconds(one) for one in found[next(iter(WAYS))])
    same = {one["centres_sum"] for many in found.values() for one in many}
    results = []
    for way, many in found.items():
        wrong = [] if all(one["same"] for one in many) else ["bytes came back that were not those that left"]
        wrong += [f"the ways disagree on the centres: {sorted(same)}"] if max(same) - min(same) > 1e-3 else []
        figures = {"data_gib": many[0]["bytes"] / 2**30, "rounds": len(many), "kept_gib": world.gpus * limit / 2**30,
                   "load_s": statistics.median(one["load_s"] for one in many),
                   "pass_s": statistics.median(pass_seconds(one) for one in many), **copies(many), "each": many}  # fmt: skip
        results.append(
            result(way, ok=not wrong, figures=figures, ratio=round(slow / figures["pass_s"], 2), error="; ".join(wrong))
        )
    return results


def pass_seconds(one: dict[str, Any]) -> float:
    """Return the median seconds of the passes but the first, which comes upon what the loading has left."""
    return float(statistics.median(one["passes_s"][1:]))


def copies(many: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return GiB of each later pass each way, and GiB a second: medians of runs."""
    found: dict[str, float | None] = {}
    for short, name in (("out", "device-to-host"), ("back", "host-to-device")):
        moved = [(last[0] - first[0], last[1] - first[1], len(one["passes_s"]) - 1)
                 for one in many for first, last in [(one["moved"][1][name], one["moved"][-1][name])]]  # fmt: skip
        found[f"{short}_gib"] = statistics.median(size / count for size, _, count in moved) / 2**30
        found[f"{short}_gib_s"] = (
            statistics.median(size / seconds if seconds else 0 for size, seconds, _ in moved) / 2**30 or None
        )
    found["pinned_gib"] = max(one["moved"][-1]["pinned"][0] for one in many) / 2**30
    return found


def words(world: World, times: float) -> list[str]:
    """Return the options of a matrix of so many times the memory of all GPUs, or of what of it is used."""
    rows = int(times * world.gpus * (SMALL if world.cpu_only else min(world.memory_mib, FITS)) * 2**20 / COLUMNS)
    return ["--rows", str(rows), "--columns", str(COLUMNS), "--raw", "--power-iterations", "0"]


def options(world: World) -> list[str]:
    """Return what a submission needs so that data can be spilled."""
    if world.cpu_only:
        return ["--set", f"workers.memory_limit={SMALL}MiB", "--set", f"workers.per_node={world.gpus}"]
    return ["--set", f"workers.memory_limit={HOST}"]


def _run(world: World, times: float, about: float) -> Run:
    world.shape(1, world.gpus)
    less = [f"gpu.device_memory_limit={int(SHARE * FITS)}M"] if world.memory_mib > FITS else []
    return world.submit(ROOT / "bench/workloads/pca_svd.py", words(world, times), nodes=1, gpus=world.gpus, timeout=2 * about,
                        settings=["interconnect.require=none", *less], options=options(world))  # fmt: skip


def _spilled(world: World) -> Result:
    run = _run(world, MORE, ABOUT)
    run.must_be(0)
    found = run.table("out/result.json")
    place, said = "disk" if world.cpu_only else "host", " ".join(found["notes"])
    wrong = [f"it does not say: {part}" for part in ("it will spill", "Memory was short") if part not in said]
    memory = found["memory"] if world.cpu_only else min(found["memory"], world.gpus * FITS * 2**20)
    figures = {"data_gib": found["stored_bytes"] / 2**30, "memory_gib": memory / 2**30,
               "times": found["stored_bytes"] / memory, "spilled_gib": found["spilled"][place] / 2**30,
               "run_s": sum(found["seconds"].values()), "phases": found["seconds"], "notes": found["notes"]}  # fmt: skip
    if not figures["spilled_gib"]:
        wrong.append("nothing was spilled")
    return result("1.5 times", ok=not wrong, figures=figures, error="; ".join(wrong))


def _refused(world: World) -> Result:
    run = _run(world, MUCH_MORE, SOON)
    log = (run.directory / "logs/script.log").read_text() if run.directory else ""
    sentence = next((line for line in log.splitlines() if "Ask for --nodes" in line), "")
    wrong = [] if run.status == REFUSED else [f"exit status {run.status}: {run.why()}"]
    if not (asked := re.search(r"--nodes (\d+)", sentence)):
        wrong.append("the number of nodes was not said")
    figures = {"nodes_asked": int(asked.group(1)) if asked else None, "line": sentence, "run_s": run.seconds}
    return result("10 times", ok=not wrong, figures=figures, error="; ".join(wrong))
