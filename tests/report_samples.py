"""Runs with made-up samples, to try the report on: their events, samples and plan as hpcml writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import samples
from hpcml.kinds.dask.samples import SCHEMA, DaskSample, Moved, Tasks, ThreadSeconds, WorkerSample
from hpcml.paths import RunPaths
from hpcml.samples import DiskTraffic, Gpu, GpuSample, NodeHeader, NodeSample, Pressure, Scope, Traffic

BEGAN = 1_790_000_000.0
GIB = 1024**3
REPAIRED = {"state": "untried", "library": "distributed", "version": "2026.9.0", "tried": "==2026.7.1"}


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
    queries: bool = False  # an engine of cuDF-Polars did the work


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
        "kind": "dask",
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
        (script - 3, "repairs", {"repairs": {"closing": REPAIRED}}),
        (script - 2.9, "interconnect-checking", {}),
        (script - 0.2, "interconnect-checked", {"line": "UCX: cuda_ipc over NVLink within nodes 140 GiB/s; NCCL: P2P/CUMEM within nodes; 261 GiB/s", "ok": True, "problem": ""}),
        (script, "script-started", {"pid": 1}),
        *([(script + 1, "polars-engine", {})] if shape.queries else []),
        (end - 1.5, "script-ended", {"exit_status": 0}),
        (end, "torn-down", {"seconds": 1.5, "killed": 0}),
    ]  # fmt: skip
    lines = [json.dumps({"time": at, "attempt": 0, "event": name, **facts}) for at, name, facts in events]
    paths.events.write_text("\n".join(lines) + "\n")
    facts = {"over": True, "state": shape.state, "time": end, "attempt": 0, "exit_status": 0, "phase": "script", "by": "script",
             "message": "the script exited with status 0", "hint": "", "cause": "", "quote": [], "warnings": []}  # fmt: skip
    paths.status.write_text(json.dumps({**facts, **status}))
    if shape.samples:
        times = sample_times(BEGAN + 7, end, shape.every)
        for number, name in enumerate(nodes):
            rows = _node(shape, name, number, times, script, end)
            attempt.samples_of(name).write_bytes(b"".join(map(samples.line, rows)))
        rows = _dask(shape, nodes, [at for at in times if script - 4 <= at], script, end)
        attempt.samples_of_kind("dask").write_bytes(b"".join(map(samples.line, rows)))
    return paths


def sample_times(begin: float, end: float, every: float) -> list[float]:
    """Return the times of samples: each second in the first minute, then as often as ``every`` says."""
    found = [begin + place for place in range(max(1, int(min(60, end - begin))))]
    at = found[-1] + every
    while at < end:
        found.append(round(at, 2))
        at += every
    return found


def _node(shape: Shape, name: str, number: int, times: Sequence[float], script: float, end: float) -> list[Any]:
    chance = random.Random(number)
    gpus = tuple(Gpu(place, f"GPU-{place}", "NVIDIA H200", 141 * GIB, 700) for place in range(shape.gpus))
    header = NodeHeader(name, times[0], shape.every, shape.cores, 480 * GIB, Scope("cgroup", "cgroup", "cgroup"), gpus,
                        ("eth0",), ("mlx5_0/1",))  # fmt: skip
    rows: list[Any] = [header.as_json()]
    energy, wire = [0.0] * shape.gpus, 0.0
    before = times[0]
    for at in times:
        running = script <= at <= end - 1.5
        wire += (at - before) * 2e9 * running * shape.transfer
        row = []
        for place in range(shape.gpus):
            use = max(0.0, min(100.0, shape.use(number * shape.gpus + place, at - script))) if running else 0.0
            power = 90 + 5.2 * use + chance.random() * 10
            energy[place] += power * (at - before)
            memory = int(60 * GIB + 20 * GIB * math.sin(at / 300)) if running else GIB
            nvlink, pcie = Traffic(int(wire), int(wire)), Traffic(2000 << 10, 1000 << 10)
            row.append(
                GpuSample(
                    round(use), memory, round(power, 1), 40 + use // 5, 1980, 0, nvlink, pcie, round(energy[place], 1)
                )
            )
        cpu = (
            shape.cores * max(0.0, min(100.0, shape.use(number, at - script))) / 100
            if running and not shape.gpus
            else shape.cores * 0.1 * running
        )
        rows.append(
            NodeSample(
                at,
                round(cpu, 2),
                int((20 + 60 * running) * GIB),
                0,
                Pressure(0, 0, 0),
                net=Traffic(int(wire / 50), int(wire / 50)),
                ib=Traffic(int(wire), int(wire)),
                disk=DiskTraffic(int(wire / 9), 0),
                gpus=tuple(row),
            )
        )
        before = at
    return rows


def _dask(shape: Shape, nodes: Sequence[str], times: Sequence[float], script: float, end: float) -> list[Any]:
    names = [f"{node}-{place}" for node in nodes for place in range(shape.gpus)] if shape.gpus > 1 else list(nodes)
    rows: list[Any] = [samples.header(SCHEMA, t=times[0], every=shape.every)]
    work, before, done = 0.0, times[0], 0
    for at in times:
        tasks = shape.busy(at - script) if script <= at <= end - 1.5 - shape.tail else 0
        work += (at - before) * len(names) * bool(tasks)
        done += tasks
        spilled = int(shape.spill * work * 1e7)
        seconds = ThreadSeconds(
            work * (1 - shape.transfer - shape.spill), work * shape.transfer, work * shape.spill, 0.0, 0.0
        )
        worker = WorkerSample(tasks // len(names) + bool(tasks), 40 * GIB, spilled, 100)
        rows.append(
            DaskSample(
                at, Tasks(done, done, tasks, 0, 0, 0), seconds, Moved(work * 1e8, spilled), dict.fromkeys(names, worker)
            )
        )
        before = at
    return rows
