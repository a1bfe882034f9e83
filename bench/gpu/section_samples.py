"""What a run's samples and report say of GPUs, against what is known otherwise.

NVML's values as the sampler writes them against nvidia-smi's at the same time; the energy of NVML's counter against the
power over time; the bytes of NVLink against what a script has moved, and against the counters of the interconnect's check;
a run in which a GPU was idle, and one that spilled, whose report must say so; what the sampler costs, by k-means with and
without. Advice is given of runs of five minutes and more: the planted spilling lasts that long, the idle GPU's figures are judged by the same rules.
"""

from __future__ import annotations

import datetime as dt
import itertools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import ROOT, SCRIPTS, Case, HarnessError, Run, World
from results import Result, result, skipped

sys.path.append(str(ROOT))

from hpcml import samples
from hpcml.kinds.dask.report_part import ACCOUNTING
from hpcml.paths import RunPaths
from hpcml.report import advice
from hpcml.samples import GpuSample, NodeSeries

GIB = 1024**3
SECONDS = 60.0  # of the GPUs' work that is compared
SETTLED = 5.0  # seconds at both ends of it that are left out
PLANTED = 310.0  # seconds: of shorter runs the report advises nothing
MOVED = 64 * GIB
LIMIT = 8 * GIB  # of each GPU, beyond which the planted run spills
NEAR = {"use": 10.0, "memory": 0.05, "power": 0.1, "temperature": 5.0}  # points, shares, shares, degrees
NEAR_ENERGY = NEAR_BYTES = 0.1  # shares
COST = 1.05  # k-means with samples over without
PAIRS, K_MEANS = 10, 45.0  # and about how many seconds one takes
KMEANS = ("--k", "8", "--rows", "4000000", "--seed", "5")
FEW = ("--k", "8", "--rows", "60000", "--seed", "5")  # when CPUs stand in for GPUs
SMI = ("nvidia-smi", "--query-gpu=timestamp,uuid,utilization.gpu,memory.used,power.draw,temperature.gpu",
       "--format=csv,noheader,nounits", "--loop-ms=1000")  # fmt: skip


class Shown(NamedTuple):
    """What nvidia-smi showed of a GPU: seconds since 1970, per cent, bytes, W, degrees; None where it has none."""

    t: float
    use: float | None
    memory: float | None
    power: float | None
    temperature: float | None


def cases(world: World) -> list[Case]:
    """Return a case for each comparison; those that need GPUs say so without."""
    pairs = PAIRS if not world.cpu_only else 1
    return [
        Case("against nvidia-smi", SECONDS + 60, partial(_values, world)),
        Case("NVLink bytes", 90, partial(_bytes, world)),
        Case("a GPU that is idle", SECONDS + 30, partial(_idle, world)),
        Case("spilling", PLANTED + 120, partial(_spilling, world)),
        Case("cost", 2 * K_MEANS, partial(_cost, world, pairs)),
    ]


def _run(world: World, way: str, *words: str, settings: Sequence[str] = (), timeout: float = 240) -> Run:
    world.shape(1, world.gpus)
    extra = ["--cpu"] if world.cpu_only else []
    run = world.submit(SCRIPTS / "sampled.py", [way, *words, *extra], nodes=1, gpus=world.gpus, timeout=timeout,
                       settings=["interconnect.require=none", "report.sample_every=1s", *settings])  # fmt: skip
    run.must_be(0)
    return run


def _directory(run: Run) -> Path:
    if run.directory is None:
        raise HarnessError("the run left no directory")
    return run.directory


def series_of(run: Run) -> NodeSeries:
    """Return the samples of a run's only node; HarnessError if there are none, or none of GPUs."""
    found = samples.nodes(RunPaths(_directory(run)).attempt(0))
    if len(found) != 1:
        raise HarnessError(f"there are samples of {len(found)} nodes")
    (series,) = found.values()
    if not series.header.gpus:
        raise HarnessError("the samples have no GPU")
    return series


# -- values and energy -----------------------------------------------------------------------------------------------


def _values(world: World) -> list[Result]:
    if world.cpu_only:
        return [skipped("against nvidia-smi", "it needs GPUs")]
    with world.started(SMI) as shown:
        run = _run(world, "busy", "--seconds", str(SECONDS))
        text = shown.output()
    begin, end = run.when("script-started"), run.when("script-ended")
    if begin is None or end is None:
        raise HarnessError("the script left no times")
    series = series_of(run)
    found = compared(series, read_smi(text), begin + SETTLED, end - SETTLED)
    figures: dict[str, Any] = {f"{name}_apart": apart for name, apart in found.items()}
    wrong = [f"{name} is not known on both sides" for name in NEAR if found.get(name) is None]
    wrong += [
        f"{name} is {apart:.3g} apart" for name, apart in found.items() if apart is not None and apart > NEAR[name]
    ]
    report = run.table("report.json")
    page = (_directory(run) / "report.html").read_text()
    lines = [title for title in ("GPU use", "GPU memory", "GPU power") if f">{title}" not in page]
    wrong += [f"the report has no line of {title}" for title in lines]
    if len(report.get("devices", ())) != world.gpus:
        wrong.append(f"the report tells of {len(report.get('devices', ()))} GPUs")
    ratio = energy_ratio(series)
    off = ratio is None or abs(ratio - 1) > NEAR_ENERGY
    error = "" if not off else "the counter does not tell" if ratio is None else f"the counter says {ratio:.3f} of it"
    return [
        result("against nvidia-smi", ok=not wrong, figures=figures, error="; ".join(wrong)),
        result("energy", ok=not off, figures={"energy_kwh": report.get("figures", {}).get("energy_kwh")}, ratio=ratio, error=error),
    ]  # fmt: skip


def read_smi(text: str) -> dict[str, list[Shown]]:
    """Return what nvidia-smi wrote, by the GPUs' UUIDs; a line that is cut short is left out."""

    def number(word: str) -> float | None:
        try:
            return float(word)
        except ValueError:
            return None  # [N/A]

    found: dict[str, list[Shown]] = {}
    for words in (line.split(", ") for line in text.splitlines()):
        if len(words) != 6:
            continue
        at = dt.datetime.strptime(words[0], "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp()
        use, memory, power, temperature = map(number, words[2:])
        size = None if memory is None else memory * 2**20
        found.setdefault(words[1], []).append(Shown(at, use, size, power, temperature))
    return found


def compared(
    series: NodeSeries, shown: Mapping[str, Sequence[Shown]], begin: float, end: float
) -> dict[str, float | None]:
    """Return how far the means of both are apart at most, over all GPUs; None where one of them says nothing."""
    apart: dict[str, float | None] = {}
    for name, near in NEAR.items():
        found: list[float] = []
        for place, gpu in enumerate(series.header.gpus):
            ours = _mean(getattr(one.gpus[place], name) for one in series.samples if begin <= one.t <= end and one.gpus)
            theirs = _mean(getattr(one, name) for one in shown.get(gpu.uuid, ()) if begin <= one.t <= end)
            if ours is None or theirs is None:
                found = []
                break
            found.append(abs(ours - theirs) / (1 if near > 1 else max(theirs, 1e-9)))
        apart[name] = max(found, default=None)
    return apart


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def energy_ratio(series: NodeSeries) -> float | None:
    """Return the rise of NVML's energy counters over the power between samples, of all GPUs; None if not known."""
    counted = drawn = 0.0
    for place in range(len(series.header.gpus)):
        known: list[tuple[float, GpuSample]] = [(one.t, one.gpus[place]) for one in series.samples if one.gpus]
        for (then, before), (now, after) in itertools.pairwise(known):
            if None in (before.energy, after.energy, before.power, after.power):
                continue
            counted += (after.energy or 0) - (before.energy or 0)
            drawn += (now - then) * ((before.power or 0) + (after.power or 0)) / 2
    return round(counted / drawn, 4) if counted and drawn else None


# -- bytes -----------------------------------------------------------------------------------------------------------


def _bytes(world: World) -> list[Result]:
    if world.cpu_only or world.gpus < 2:
        return [skipped("NVLink bytes", "it needs two GPUs")]
    run = _run(world, "move", "--bytes", str(MOVED))
    told = run.table("out/result.json")
    sampled = received(series_of(run), told["began"])
    figures = {"moved_gib": told["bytes"] / GIB, "sampled_gib": None if sampled is None else sampled / GIB,
               "fabric_gib": None if told["fabric_bytes"] is None else told["fabric_bytes"] / GIB}  # fmt: skip
    wrong = []
    for name, other in (("the script moved", told["bytes"]), ("the interconnect's counters say", told["fabric_bytes"])):
        if sampled is None or not other:
            wrong.append("a counter does not tell")
        elif abs(sampled / other - 1) > NEAR_BYTES:
            wrong.append(f"the samples have {sampled / GIB:.1f} GiB, {name} {other / GIB:.1f}")
    ratio = round(sampled / told["bytes"], 4) if sampled else None
    return [result("NVLink bytes", ok=not wrong, figures=figures, ratio=ratio, error="; ".join(wrong))]


def received(series: NodeSeries, began: float) -> float | None:
    """Return the bytes that all GPUs received over NVLink since then, None where a counter does not tell."""
    total = 0.0
    for place in range(len(series.header.gpus)):
        known = [(one.t, one.gpus[place].nvlink.received) for one in series.samples if one.gpus]
        before = [value for at, value in known if at <= began and value is not None]
        after = [value for at, value in known if at > began and value is not None]
        if not before or not after:
            return None
        total += after[-1] - before[-1]
    return total


# -- advice ----------------------------------------------------------------------------------------------------------


def _idle(world: World) -> list[Result]:
    if world.cpu_only:
        return [skipped("a GPU that is idle", "it needs GPUs")]
    run = _run(world, "idle", "--seconds", str(SECONDS), timeout=3 * SECONDS)
    return [_advised("a GPU that is idle", run, "gpu-unused")]


def _spilling(world: World) -> list[Result]:
    if world.cpu_only:
        return [skipped("spilling", "it needs GPUs")]
    settings = (f"gpu.device_memory_limit={LIMIT >> 30}G",)
    words = ("--seconds", str(PLANTED), "--bytes", str(int(1.5 * world.gpus * LIMIT)))
    return [_advised("spilling", _run(world, "spill", *words, settings=settings, timeout=3 * PLANTED), "spilling")]


def _advised(name: str, run: Run, rule: str) -> Result:
    """Return whether a run's report gives the advice that was planted; of a short run, whether its figures would."""
    report = run.table("report.json")
    told = [one["rule"] for one in report.get("advice", ())]
    known = report.get("figures", {})
    if known.get("seconds", PLANTED) < advice.SHORTEST:
        told = [
            one.rule
            for one in advice.advise((*advice.RULES, *ACCOUNTING.rules), {**known, "seconds": advice.SHORTEST}, {})
        ]
    figures = {"advice": ", ".join(told), **{key: known.get(key) for key in ("gpus_unused", "spilling")}}
    error = "" if rule in told else f"the report does not name {rule}: {', '.join(told) or 'it advises nothing'}"
    return result(name, ok=not error, figures=figures, error=error)


# -- cost ------------------------------------------------------------------------------------------------------------


def _cost(world: World, pairs: int) -> list[Result]:
    seconds: list[dict[str, float]] = []
    for number in range(pairs):
        if seconds and world.left() < 2 * K_MEANS:
            break
        pair = {}
        for every in ("5s", "0s")[:: -1 if number % 2 else 1]:
            world.shape(1, world.gpus)
            run = world.submit(ROOT / "bench/workloads/kmeans.py", FEW if world.cpu_only else KMEANS, nodes=1, gpus=world.gpus,
                               settings=["interconnect.require=none", f"report.sample_every={every}"])  # fmt: skip
            run.must_be(0)
            pair[every] = run.table("out/result.json")["seconds"]["fit"]
        seconds.append(pair)
    ratios = [pair["5s"] / max(pair["0s"], 1e-9) for pair in seconds]
    ratio = round(statistics.median(ratios), 4)
    figures = {"pairs": len(seconds), "with_s": statistics.median(pair["5s"] for pair in seconds),
               "without_s": statistics.median(pair["0s"] for pair in seconds), "each": seconds}  # fmt: skip
    wrong = ratio > COST and not world.cpu_only
    return [
        result("cost", ok=not wrong, figures=figures, ratio=ratio, error=f"{ratio:.3f} of without" if wrong else "")
    ]
