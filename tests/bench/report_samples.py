"""Runs with made-up samples, to try the report on: their events, samples and plan as hpcml writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.paths import RunPaths

BEGAN = 1_790_000_000.0
GIB = 1024**3


class Shape(NamedTuple):
    """What a made-up run was: nodes, GPUs and cores of each, seconds, and what a GPU or the cores did at a time."""

    nodes: int = 1
    gpus: int = 8
    cores: int = 64
    seconds: float = 3600.0
    bring_up: float = 24.0
    every: float = 5.0
    use: Callable[[int, float], float] = lambda place, at: 80 + 15 * math.sin(at / 60 + place)
    busy: Callable[[float], int] = lambda _: 40
    transfer: float = 0.1  # shares of the tasks' time
    spill: float = 0.0
    tail: float = 10.0  # seconds of the script after the last task
    state: str = "COMPLETED"
    samples: bool = True


# A run with something of everything: it reads for ten minutes, computes, moves data, spills, and ends with a GPU less.
EXAMPLE = Shape(
    use=lambda place, at: 4 if at < 500 else 78 + 14 * math.sin(at / 150 + place) - 50 * (place == 5),
    spill=0.25,
    transfer=0.3,
    tail=240,
    bring_up=40,
)


def write(directory: Path, shape: Shape = Shape(), **status: Any) -> RunPaths:  # noqa: B008 - it does not change
    """Write a run's directory and return its paths."""
    paths = RunPaths(directory)
    attempt = paths.attempt(0)
    (attempt.directory / "samples/nodes").mkdir(parents=True)
    paths.logs.mkdir()
    nodes = [f"n{place + 1}" for place in range(shape.nodes)]
    script, end = BEGAN + shape.bring_up, BEGAN + shape.seconds
    gpu = {"count": shape.gpus} if shape.gpus else None
    inside = {
        "job": {"nodes": shape.nodes, "time_limit": int(1.4 * shape.seconds), "one_machine": False},
        "code": {"script": "/home/me/train.py", "arguments": ["--epochs", "10"], "form": "script"},
        "workers": {"gpu": gpu},
    }
    plan = {
        "name": "train",
        "site": "example",
        "version": "0.1.0",
        "directives": [["--mem", "480000M"]],
        "inside": inside,
    }
    paths.plan.write_text(json.dumps(plan))
    versions = {"python": "3.12.3", "dask": "2026.7.1", "cudf": "26.10.2", "ucx": "1.21.0"}
    events: list[tuple[float, str, dict[str, Any]]] = [
        (BEGAN + 6, "allocated", {"nodes": nodes, "job": "4711", "node": "n1", "began": int(BEGAN)}),
        (BEGAN + 14, "environment-ready", {"versions": versions, "words": "", "differences": []}),
        (BEGAN + 15, "scheduler-up", {"protocol": "ucx", "because": "GPU workers"}),
        (script - 3, "workers-ready", {"count": shape.nodes * max(1, shape.gpus)}),
        (script - 2.9, "fabric-checking", {}),
        (script - 0.2, "fabric-checked", {"line": "UCX: cuda_ipc over NVLink within nodes 140 GiB/s; NCCL: P2P/CUMEM within nodes; 261 GiB/s", "ok": True, "problem": ""}),
        (script, "driver-started", {"pid": 1}),
        (end - 1.5, "driver-ended", {"exit_status": 0}),
        (end, "torn-down", {"seconds": 1.5, "killed": 0}),
    ]  # fmt: skip
    lines = [json.dumps({"time": at, "attempt": 0, "event": name, **facts}) for at, name, facts in events]
    paths.events.write_text("\n".join(lines) + "\n")
    facts = {"over": True, "state": shape.state, "time": end, "attempt": 0, "exit_status": 0, "phase": "driver", "by": "script",
             "message": "the script ended with exit status 0", "hint": "", "cause": "", "quote": [], "warnings": []}  # fmt: skip
    paths.status.write_text(json.dumps({**facts, **status}))
    if shape.samples:
        times = sample_times(BEGAN + 7, end, shape.every)
        for number, name in enumerate(nodes):
            attempt_file = attempt.directory / f"samples/nodes/{name}.jsonl"
            attempt_file.write_text("\n".join(map(json.dumps, _node(shape, name, number, times, script, end))) + "\n")
        rows = _dask(shape, nodes, [at for at in times if script - 4 <= at], script, end)
        (attempt.directory / "samples/dask.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return paths


def sample_times(begin: float, end: float, every: float) -> list[float]:
    """Return the times of samples: each second in the first minute, then as often as ``every`` says."""
    found = [begin + place for place in range(max(1, int(min(60, end - begin))))]
    at = found[-1] + every
    while at < end:
        found.append(round(at, 2))
        at += every
    return found


def _node(
    shape: Shape, name: str, number: int, times: Sequence[float], script: float, end: float
) -> list[dict[str, Any]]:
    chance = random.Random(number)
    gpus = [
        {"index": place, "uuid": f"GPU-{place}", "name": "NVIDIA H200", "memory": 141 * GIB, "power_limit": 700}
        for place in range(shape.gpus)
    ]
    rows: list[dict[str, Any]] = [{"kind": "node", "version": 1, "node": name, "t": times[0], "every": shape.every, "cores": shape.cores,
             "memory": 480 * GIB, "memory_of": "cgroup", "gpus": gpus, "interfaces": ["eth0"], "infiniband": ["mlx5_0/1"]}]  # fmt: skip
    energy, wire = [0.0] * shape.gpus, 0.0
    before = times[0]
    for at in times:
        running = script <= at <= end - 1.5
        wire += (at - before) * 2e9 * running * shape.transfer
        row: list[list[float]] = []
        for place in range(shape.gpus):
            use = max(0.0, min(100.0, shape.use(number * shape.gpus + place, at - script))) if running else 0.0
            power = 90 + 5.2 * use + chance.random() * 10
            energy[place] += power * (at - before) * 1000
            memory = int(60 * GIB + 20 * GIB * math.sin(at / 300)) if running else GIB
            row.append(
                [
                    round(use),
                    memory,
                    round(power, 1),
                    40 + use // 5,
                    1980,
                    0,
                    int(wire / 1024),
                    int(wire / 1024),
                    2000,
                    1000,
                    int(energy[place]),
                ]
            )
        cpu = (
            shape.cores * max(0.0, min(100.0, shape.use(number, at - script))) / 100
            if running and not shape.gpus
            else shape.cores * 0.1 * running
        )
        rows.append({"t": at, "cpu": round(cpu, 2), "memory": int((20 + 60 * running) * GIB), "swap": 0, "pressure": [0, 0, 0],
                     "net": [int(wire / 50), int(wire / 50)], "ib": [int(wire), int(wire)], "disk": [int(wire / 9), 0], "gpus": row})  # fmt: skip
        before = at
    return rows


def _dask(
    shape: Shape, nodes: Sequence[str], times: Sequence[float], script: float, end: float
) -> list[dict[str, Any]]:
    names = [f"{node}-{place}" for node in nodes for place in range(shape.gpus)] if shape.gpus > 1 else list(nodes)
    rows: list[dict[str, Any]] = [{"kind": "dask", "version": 1, "t": times[0], "every": shape.every}]
    work, before, done = 0.0, times[0], 0
    for at in times:
        tasks = shape.busy(at - script) if script <= at <= end - 1.5 - shape.tail else 0
        work += (at - before) * len(names) * bool(tasks)
        done += tasks
        spilled = int(shape.spill * work * 1e7)
        metrics = {"execute": work * (1 - shape.transfer - shape.spill), "transfer": work * shape.transfer, "spill": work * shape.spill,
                   "serialize": 0.0, "other": 0.0, "transfer_bytes": work * 1e8, "spill_bytes": spilled}  # fmt: skip
        workers = {name: [tasks // len(names) + bool(tasks), 40 * GIB, spilled, 100] for name in names}
        rows.append({"t": at, "tasks": {"known": done, "done": done, "processing": tasks, "waiting": 0, "queued": 0, "erred": 0},
                     "workers": workers, "metrics": metrics})  # fmt: skip
        before = at
    return rows
