"""The image copied to the nodes' own disks: by sbcast or by each node, for the user alone, and gone when the run is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import ALL_NODES, Cluster, left_of_containers
from hpcml import errors
from lab_state import wait_for

pytestmark = pytest.mark.lab

# Where each role's image lies, and how its folder looks from the node's own side.
WHERE = """
import hpcml, json, os, pathlib
def facts():
    image = os.environ["APPTAINER_CONTAINER"]
    return {"image": image, "folder": oct(pathlib.Path(image).parent.stat().st_mode & 0o777)}
with hpcml.connect() as client:
    print(json.dumps({"driver": facts(), "scheduler": client.run_on_scheduler(facts), **client.run(facts)}), flush=True)
"""
WAIT = "import time; time.sleep(300)"
# A copy in the lab's /tmp is memory, and counts as the job's. Making it is work for one machine: two nodes show most things.
SIZE = ("--nodes", "2", "--cpus-per-node", "4")
NODES = ALL_NODES[:2]


def _copies(cluster: Cluster, folder: str = "/tmp") -> list[str]:
    found = []
    for node in ALL_NODES:
        listed = cluster.run("sh", "-c", f"ls -d {folder}/hpcml-[0-9]*-* 2>/dev/null", node=node).stdout.split()
        found += [f"{node}:{path}" for path in listed]
    return found


def _staged(image: Path, mode: str) -> tuple[str, ...]:
    return (*SIZE, "--image", str(image), "--set", f"runtime.stage={mode}")


def _every_role_has_a_copy(directory: Path, nodes: int) -> None:
    found = json.loads(_said(directory)[-1])
    assert len(found) == 2 + nodes
    job = json.loads((directory / "submission.json").read_text())["job"]
    for role, facts in found.items():
        assert facts["image"].startswith(f"/tmp/hpcml-{job}-"), role
        assert facts["folder"] == "0o700", role


def _said(directory: Path) -> list[str]:
    path = directory / "logs/script.log"
    return [line for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def test_every_role_runs_from_its_node_s_copy(cluster: Cluster, image: Path) -> None:
    ended = cluster.submit(WHERE, *_staged(image, "sbcast"), "--nodes", "4")
    assert ended.code == 0, ended.err
    _every_role_has_a_copy(ended.directory, 4)
    assert "copied to the nodes by sbcast" in ended.err
    cluster.wait_idle(30)  # the run's own end is written a moment before
    assert _copies(cluster) == []


def test_each_node_makes_its_own_copy_which_goes_when_the_run_is_cancelled(cluster: Cluster, image: Path) -> None:
    """Copies, containers and mounts of a run whose script has begun."""
    job, directory = cluster.detach(WHERE + WAIT, *_staged(image, "copy"))
    assert wait_for(lambda: bool(_said(directory)), 90)
    _every_role_has_a_copy(directory, len(NODES))
    assert cluster.wait_event(directory, "image-staged")["mode"] == "copy"
    cluster.run("scancel", job)
    cluster.wait_idle(40)
    assert wait_for(lambda: not _copies(cluster), 5), _copies(cluster)  # scancel frees nodes before it has looked
    assert wait_for(lambda: not left_of_containers(cluster), 40), left_of_containers(cluster)


def test_a_node_whose_disk_is_too_small(cluster: Cluster, image: Path) -> None:
    for node in NODES:
        cluster.run("mkdir", "-m", "1777", "/tmp/small", node=node, user="root")
    words = ("--set", "runtime.stage_to=/tmp/small", "--nodelist", "n1,n2")
    with cluster.covered("n2", "mount -t tmpfs -o size=100m,mode=1777 small /tmp/small", "/tmp/small"):
        ended = cluster.submit("import dask\nprint('the script ran')", *_staged(image, "sbcast"), *words)
    assert ended.code == errors.IMAGE, ended.err
    assert f"N2: 100 MiB are free in /tmp/small, but the image has {image.stat().st_size >> 20}" in ended.err
    assert "runtime.stage_to" in ended.err
    assert "the script ran" not in ended.out
    cluster.wait_idle(30)
    assert _copies(cluster, "/tmp/small") == []
    for node in NODES:
        cluster.run("rmdir", "/tmp/small", node=node, user="root")
