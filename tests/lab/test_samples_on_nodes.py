"""Samples of a run on four nodes: each node's own, from its job's control group, and the kernel's kills."""

from __future__ import annotations

from pathlib import Path

import pytest

import lab_cgroups
from conftest import ALL_NODES, Cluster
from hpcml import files, samples
from hpcml.paths import RunPaths

pytestmark = pytest.mark.lab

MIB = 1 << 20

HOLD = """
import time
import hpcml
client = hpcml.connect()
workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
held = client.submit(lambda: bytearray(300 << 20), workers=workers[:1])
print(client.submit(len, held, workers=workers[1:2]).result())
time.sleep(3)
"""


@pytest.fixture(autouse=True)
def _as_alice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read here is hers, and only she and root would read it."""
    monkeypatch.setattr(files, "is_ours", lambda _: True)


def test_each_node_s_own(cluster: Cluster) -> None:
    ended = cluster.submit(HOLD, "--nodes", "4")
    assert ended.code == 0, ended.err
    attempt = RunPaths(ended.directory).attempt(0)
    found = samples.nodes(attempt)
    assert sorted(found) == sorted(ALL_NODES)
    begin, end = ended.times()["allocated"], ended.times()["torn-down"]
    for name, series in found.items():
        assert series.header.node == name
        assert len(series.samples) >= 3
        assert all(begin - 5 < sample.t < end + 5 for sample in series.samples)
        assert series.events == ()
        if lab_cgroups.available():  # version 1 with memory alone: a job's processors are counted with the node's
            assert series.header.memory_of == "cgroup"
    if lab_cgroups.available():
        most = {name: max(sample.memory or 0 for sample in series.samples) for name, series in found.items()}
        assert sum(used > 350 * MIB for used in most.values()) in (1, 2, 3)  # those that hold or got the bytes
        assert all(used < 3000 * MIB for used in most.values())
    dask = samples.dask(attempt)
    assert dask is not None
    assert dask.samples[-1].metrics["transfer_bytes"] >= 300 * MIB
    assert {worker for sample in dask.samples for worker in sample.workers} == set(ALL_NODES)


def test_inside_an_image(cluster: Cluster, image: Path) -> None:
    """The same files of /proc and /sys are read there."""
    ended = cluster.submit(
        "import hpcml\nhpcml.connect().submit(sum, [1]).result()\n", "--nodes", "2", "--image", str(image)
    )
    assert ended.code == 0, ended.err
    for series in samples.nodes(RunPaths(ended.directory).attempt(0)).values():
        assert series.header.memory_of == ("cgroup" if lab_cgroups.available() else "host")
        assert series.header.interfaces
        assert all(sample.memory and sample.net[0] is not None for sample in series.samples)


def test_the_kernel_s_kills(cluster: Cluster) -> None:
    if not lab_cgroups.available():
        pytest.skip("the lab's nodes have no control groups here")
    text = (
        "import subprocess, sys, time\n"
        "hog = \"data = bytearray(b'x') * (2 << 30)\"\n"
        "print(subprocess.run([sys.executable, '-c', hog]).returncode)\ntime.sleep(8)\n"  # until the next sample
    )
    ended = cluster.submit(text, "--nodes", "1", "--memory-per-node", "900M", "--cpus-per-node", "2")
    assert ended.out.startswith("-9\n"), ended.err  # Slurm adds a line of its own
    (series,) = samples.nodes(RunPaths(ended.directory).attempt(0)).values()
    assert series.header.memory is not None
    assert 890 * MIB < series.header.memory < 910 * MIB
    kills = [event.kills for event in series.events if event.event == "oom"]
    assert kills
    assert sum(filter(None, kills)) >= 1
