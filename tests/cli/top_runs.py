"""Runs for the tests of ``hpcml top``: their files as the nodes and the scheduler write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcml import kinds, samples
from hpcml.kinds.dask.samples import SCHEMA, DaskSample, Moved, Tasks, ThreadSeconds, WorkerSample
from hpcml.paths import RunPaths
from hpcml.runs import directories, top_view
from hpcml.runs.status import Status
from hpcml.samples import DiskTraffic, Gpu, GpuSample, NodeHeader, NodeSample, Pressure, Scope, Traffic
from hpcml.schedulers import Submission

NOW = 1_790_000_000.0
GIB = 1 << 30
ID = "kmeans-20260921-130000-1a2b"


def lines(path: Path, tables: Sequence[object], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(table) + end for table in tables))


def node_tables(name: str, gpus: int = 0, use: float = 50.0, count: int = 3, late: float = 0.0) -> list[Any]:
    """Return a node's file: a header and samples of every 5 s, the last ``late`` seconds before now."""
    header = NodeHeader(
        name,
        NOW - 900,
        5.0,
        48,
        512 * GIB,
        Scope("cgroup", "cgroup", "cgroup"),
        tuple(Gpu(number, f"GPU-{number}", "NVIDIA H200", 141 * GIB, 700) for number in range(gpus)),
        ("eth0",),
        ("mlx5_0/1",),
    )
    tables: list[Any] = [header.as_json()]
    for number in range(count):
        passed = 5.0 * number
        nvlink = Traffic(1e9 + passed * 2**30, 1e9 + passed * 2**30)
        gpu = GpuSample(use, 71 * GIB, 540, 61, 1980, 0, nvlink, Traffic(10240, 10240), 5e3)
        tables.append(
            NodeSample(
                NOW - late - 5.0 * (count - 1 - number),
                48 * use / 100,
                100 * GIB,
                0,
                Pressure(0, 0, 0),
                net=Traffic(1e9 + passed * 2**20, 2e9),
                ib=Traffic(passed * 3 * 2**30, 0),
                disk=DiskTraffic(0, passed * 2**20),
                gpus=(gpu,) * gpus,
            )
        )
    return tables


def dask_tables(workers: Sequence[str], known: Sequence[int] = (2000,) * 8) -> list[Any]:
    """Return the scheduler's file: 40 tasks are done a second."""
    tables: list[Any] = [samples.header(SCHEMA, t=NOW - 900, every=5.0)]
    for number, all_of_them in enumerate(known):
        passed = 5 * number
        tables.append(
            DaskSample(
                NOW - 5.0 * (len(known) - 1 - number),
                Tasks(all_of_them, 200 + 40 * passed, 16, 9, 0, 3),
                ThreadSeconds(9.5, 1.0),
                Moved(passed * 2**30, passed * 2**20),
                dict.fromkeys(workers, WorkerSample(4, 8 * GIB, GIB, 97.5)),
            )
        )
    return tables


class Written:
    """A run's directory with samples in it."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / ID)
        self.attempt = self.paths.attempt(0)
        self.paths.logs.mkdir(parents=True)
        self.run = directories.Run(ID, self.paths, Submission())

    def node(self, name: str, tables: Sequence[object]) -> Path:
        path = self.attempt.samples_of(name)
        lines(path, tables)
        return path

    def view(self, status: Status, limit: int = 3600, cause: str = "") -> top_view.View:
        """Return what is shown, read from the files."""
        return top_view.view(
            status.changed(time_limit=limit), top_view.Reader(kinds.get("dask")).look(self.run, 0), NOW, cause
        )


def status(nodes: Sequence[str], phase: str = "running", workers: int = 0, **facts: object) -> Status:
    times = {"allocated": NOW - 735, "scheduler-up": NOW - 730, "workers-ready": NOW - 728, "script-started": NOW - 725}
    values: dict[str, Any] = {
        "phase": phase, "message": "the script runs", "job": "1234567", "nodes": tuple(nodes), "node_count": len(nodes),
        "workers": workers, "expected": workers, "times": {} if phase == "queued" else times} | facts  # fmt: skip
    return Status.of(ID, "leonardo", **values)


def cpu_run(folder: Path) -> top_view.View:
    """Two nodes without GPUs."""
    run = Written(folder)
    for name, use in (("lrdn0001", 93.0), ("lrdn0002", 41.0)):
        run.node(name, node_tables(name, use=use))
    names = [f"lrdn000{node}-{worker}" for node in (1, 2) for worker in range(4)]
    lines(run.attempt.samples_of_kind("dask"), dask_tables(names))
    run.paths.script_log.write_text("".join(f"step {step}, loss {1 / step:.4f}\n" for step in range(1, 40)))
    return run.view(status(("lrdn0001", "lrdn0002"), workers=8))


def gpu_run(folder: Path, nodes: int = 2, late: str = "") -> top_view.View:
    """Nodes of four GPUs each, of different use."""
    run = Written(folder)
    names = [f"n{number:03d}" for number in range(1, nodes + 1)]
    for number, name in enumerate(names):
        late_by = 600.0 if name == late else 0.0
        run.node(name, node_tables(name, 4, use=97.0 - 90.0 * number / max(1, nodes - 1), late=late_by))
    lines(
        run.attempt.samples_of_kind("dask"), dask_tables([f"{name}-{worker}" for name in names for worker in range(4)])
    )
    run.paths.script_log.write_text("".join(f"step {step}\n" for step in range(1, 40)))
    return run.view(status(names, workers=4 * nodes, warnings=("a worker on n001 was lost and started again",)))
