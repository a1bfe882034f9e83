"""The image copied to the nodes' own disks: by sbcast or by each node, for the user alone, and gone when the run is."""

from __future__ import annotations

import json
import re
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


def _gone(cluster: Cluster, folder: str = "/tmp") -> None:
    """Check that the job's end is the copies' end; the run's own end is written a moment before."""
    cluster.wait_idle(30)
    assert _copies(cluster, folder) == []


def _staged(image: Path, mode: str, folder: str = "") -> tuple[str, ...]:
    to = ("--set", f"runtime.stage_to={folder}") if folder else ()
    return (*SIZE, "--image", str(image), "--set", f"runtime.stage={mode}", *to)


def _every_role_has_a_copy(directory: Path, nodes: int) -> None:
    found = json.loads(_said(directory)[-1])
    assert len(found) == 2 + nodes
    job = json.loads((directory / "submission.json").read_text())["job"]
    for role, facts in found.items():
        assert facts["image"].startswith(f"/tmp/hpcml-{job}-"), role
        assert facts["folder"] == "0o700", role


def _said(directory: Path) -> list[str]:
    path = directory / "logs/driver.log"
    return [line for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def _cancelled(cluster: Cluster, job: str, directory: Path) -> None:
    """Cancel a run, and check that nothing of it stays on the nodes."""
    assert wait_for(lambda: len(_copies(cluster)) == len(NODES), 20)
    cluster.run("scancel", job)
    cluster.wait_idle(40)
    assert wait_for(lambda: not _copies(cluster), 5), _copies(cluster)  # scancel frees nodes before it has looked
    assert wait_for(lambda: not left_of_containers(cluster), 40), left_of_containers(cluster)
    shown = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (shown["state"], shown["exit_status"]) == ("CANCELLED", errors.CANCELLED)


def test_every_role_runs_from_its_node_s_copy(cluster: Cluster, image: Path) -> None:
    ended = cluster.submit(WHERE, *_staged(image, "sbcast"), "--nodes", "4")
    assert ended.code == 0, ended.err
    _every_role_has_a_copy(ended.directory, 4)
    staged = next(event for event in ended.events if event["event"] == "image-staged")
    assert staged["mode"] == "sbcast"
    assert staged["seconds"] == pytest.approx(ended.times()["image-staged"] - ended.times()["image-staging"], abs=0.2)
    assert "copied to the nodes by sbcast" in ended.err
    assert "phase      staging" in cluster.run("hpcml", "status", "last").stdout
    _gone(cluster)


def test_each_node_makes_its_own_copy_which_goes_when_the_run_is_cancelled(cluster: Cluster, image: Path) -> None:
    """Copies, containers and mounts of a run whose script has begun."""
    job, directory = cluster.detach(WHERE + WAIT, *_staged(image, "copy"))
    assert wait_for(lambda: bool(_said(directory)), 90)
    _every_role_has_a_copy(directory, len(NODES))
    assert cluster.wait_event(directory, "image-staged")["mode"] == "copy"
    _cancelled(cluster, job, directory)


def test_the_copies_go_when_the_run_is_cancelled_while_they_are_made(cluster: Cluster, image: Path) -> None:
    job, directory = cluster.detach(WAIT, *_staged(image, "sbcast"))
    cluster.wait_event(directory, "image-staging", 60)
    _cancelled(cluster, job, directory)


def test_a_node_whose_disk_is_too_small(cluster: Cluster, image: Path) -> None:
    for node in NODES:
        cluster.run("mkdir", "-m", "1777", "/tmp/small", node=node, user="root")
    commands = [
        cluster.command("print('the script ran')", "--wait", *_staged(image, mode, "/tmp/small"), "--nodelist", "n1,n2")
        for mode in ("sbcast", "copy")
    ]
    cover = "mount -t tmpfs -o size=100m,mode=1777 small /tmp/small"
    with cluster.covered("n2", cover, "/tmp/small"):
        ended = cluster.run_together(commands, timeout=150)
    for done in ended:
        assert done.returncode == errors.IMAGE, done.stderr
        assert f"N2: 100 MiB are free in /tmp/small, but the image has {image.stat().st_size >> 20}" in done.stderr
        assert "runtime.stage_to" in done.stderr
        assert "the script ran" not in done.stdout
    _gone(cluster, "/tmp/small")
    for node in NODES:
        cluster.run("rmdir", "/tmp/small", node=node, user="root")


def test_no_sbcast(cluster: Cluster, image: Path) -> None:
    hide = ("mkdir -p /tmp/hidden/upper /tmp/hidden/work; mknod /tmp/hidden/upper/sbcast c 0 0;"
            "mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=/tmp/hidden/upper,workdir=/tmp/hidden/work /usr/bin")  # fmt: skip
    with cluster.covered("n1", hide, "/usr/bin"):
        ended = cluster.submit("print('the script ran')", *_staged(image, "sbcast"))
    cluster.run("rm", "-rf", "/tmp/hidden", node="n1", user="root")
    assert ended.code == errors.IMAGE, ended.err
    assert "N1: there is no sbcast" in ended.err
    assert "runtime.stage = 'copy'" in ended.err
    _gone(cluster)


def test_an_image_that_one_node_does_not_see(cluster: Cluster, image: Path) -> None:
    empty = cluster.write("empty/nothing", "").parent
    with cluster.covered("n2", f"mount --bind {empty} {image.parent}", str(image.parent)):
        ended = cluster.submit("print('the script ran')", *_staged(image, "copy"))
    assert ended.code == errors.IMAGE, ended.err
    assert f"N2: the image does not exist: {image}" in ended.err
    _gone(cluster)


def test_a_disk_that_fills_up_meanwhile(cluster: Cluster, image: Path) -> None:
    """The space that was free is gone when the copy is made: another user's file comes in between."""
    for node in ALL_NODES:
        cluster.run("mkdir", "-m", "1777", "/tmp/small", node=node, user="root")
    cover = "mount -t tmpfs -o size=400m,mode=1777 small /tmp/small"
    with cluster.covered("n2", cover, "/tmp/small"):
        _, directory = cluster.detach("print('the script ran')", *_staged(image, "sbcast", "/tmp/small"))
        cluster.wait_event(directory, "image-staging", 60)
        assert wait_for(lambda: len(_copies(cluster, "/tmp/small")) == len(NODES), 20)
        cluster.run("fallocate", "--length", "300M", "/tmp/small/other", node="n2", user="root")
        status = cluster.wait_status(directory)
        cluster.run("rm", "/tmp/small/other", node="n2", user="root")
    assert status["exit_status"] == errors.IMAGE
    early = r"n2: \d+ MiB are free in /tmp/small, but the image has \d+"  # the file was there before the space was asked for
    late = r"a node's disk is full \(/tmp/small\)|sbcast could not copy the image"
    assert re.match(f"{early}|{late}", status["message"]), status
    cluster.wait_idle(30)
    _gone(cluster, "/tmp/small")
    for node in ALL_NODES:
        cluster.run("rmdir", "/tmp/small", node=node, user="root")


def test_slurm_ends_the_job_while_the_image_is_copied(cluster: Cluster, image: Path) -> None:
    """The batch script itself is gone then; the keepers hang on its pipe."""
    job, directory = cluster.detach("print('the script ran')", *_staged(image, "sbcast"))
    cluster.wait_event(directory, "image-staging", 60)
    assert wait_for(lambda: len(_copies(cluster)) == len(NODES), 20)
    cluster.run("scancel", "--batch", "--signal=KILL", job)
    cluster.wait_idle(60)
    assert wait_for(lambda: not _copies(cluster), 5), _copies(cluster)
    shown = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert shown["phase"] == "ended"
    assert shown["exit_status"] != 0
