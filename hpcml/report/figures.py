"""The figures of a run that rules of advice speak of; what is not known is not among them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hpcml.report import series
from hpcml.report.ending import number
from hpcml.report.ledger import Ledger, Phases
from hpcml.report.series import Node
from hpcml.units import parse_memory

HOT = 0x8 | 0x20 | 0x40 | 0x80  # NVML: slowed down by hardware, by heat (software, hardware), by the power brake


def figures_of(
    counted: Ledger, phases: Phases, found: Mapping[str, Node], job: Mapping[str, Any], memory: float
) -> dict[str, float]:
    """Return the figures of a run; shares are in percent.

    ``job`` is what was planned of it, ``memory`` the bytes that were asked for on each node, 0 if that is not known.
    """
    figures = {"seconds": phases.end - phases.began, "paid_hours": counted.paid}
    if limit := number(job.get("time_limit")):
        figures["time_used"] = min(100.0, 100 * figures["seconds"] / limit)
    figures |= _shares(counted) if counted.paid else {}
    if phases.script is not None:
        figures |= _of_the_script(counted.unit, found, phases.script, phases.script_end or phases.end)
    gpus = [gpu.columns for node in found.values() for gpu in node.gpus]
    hot = [[bool(int(bits) & HOT) for bits in columns["throttle"] if bits is not None] for columns in gpus]
    if any(hot):
        figures["throttled"] = max(100 * sum(one) / len(one) for one in hot if one)
    energy = [one for columns in gpus if (one := series.increase(columns["energy"])) is not None]
    if energy:
        figures["energy_kwh"] = sum(energy) / 3.6e6
    return figures | _memory(found, memory)


def _shares(counted: Ledger) -> dict[str, float]:
    figures = {
        "useful": counted.share("useful"),
        "bring_up": counted.share("starting", "importing"),
        "idle_tail": counted.share("tail"),
        "not_known": counted.share("unknown"),
    }
    if counted.parts["unknown"] > counted.paid / 2:
        return figures
    figures |= {
        "without_tasks": counted.share("script"),
        "transfers": counted.share("transfers"),
        "spilling": counted.share("spilling"),
    }
    return figures | ({"tasks_without_gpu": counted.share("tasks")} if counted.unit == "GPU" else {})


def _of_the_script(unit: str, found: Mapping[str, Node], begin: float, end: float) -> dict[str, float]:
    """Return what GPUs or cores did while the script ran."""
    gpus = [_between(node.t, gpu.columns["use"], begin, end) for node in found.values() for gpu in node.gpus]
    if known := [use for use in gpus if use]:
        means = [statistics.fmean(use) for use in known]
        middle = statistics.median(means)
        figures = {
            "gpus": float(len(known)),
            "gpus_unused": float(sum(not any(use) for use in known)),
            "gpu_use": 100 * statistics.fmean(means),
        }
        return figures | ({"imbalance": 100 * (middle - min(means)) / middle} if middle > 0 and len(means) > 1 else {})
    nodes = [(node.cores, _between(node.t, node.columns["cpu"], begin, end)) for node in found.values()]
    cores = sum(cores for cores, use in nodes if use)
    if unit != "core" or not cores:
        return {}
    return {"cpu_use": min(100.0, 100 * sum(statistics.fmean(use) for _, use in nodes if use) / cores)}


def _between(t: Sequence[float], column: Sequence[float | None], begin: float, end: float) -> list[float]:
    return [value for at, value in zip(t, column, strict=False) if value is not None and begin <= at <= end]


def _memory(found: Mapping[str, Node], asked: float) -> dict[str, float]:
    """Return the highest memory of a node in bytes, what was asked for, and how much of it that is."""
    peak = max((size for node in found.values() for size in node.columns["memory"] if size is not None), default=None)
    if peak is None:
        return {}
    gpus = any(node.gpus for node in found.values())  # their jobs take memory as the GPUs are
    return {
        "memory_peak": peak,
        **({"memory_asked": asked} if asked else {}),
        **({"memory_used": 100 * peak / asked} if asked and not gpus else {}),
    }


def memory_in_plan(plan: Mapping[str, Any]) -> float:
    """Return the bytes that the batch script asks for on each node, 0 if it leaves them to Slurm."""
    directives = plan.get("directives")
    for option in directives if isinstance(directives, list) else ():
        word = " ".join(map(str, option)) if isinstance(option, list) else str(option)
        name, _, value = word.replace("=", " ").partition(" ")
        if name == "--mem":
            try:
                return float(parse_memory(value.strip()))
            except ValueError:
                return 0.0
    return 0.0
