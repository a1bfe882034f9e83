"""`hpcml doctor` on the lab: nothing is wrong with it, and faults that only a real Slurm and its nodes have are found."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import lab_ssh
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import wait_for
from laptop import Outside

pytestmark = pytest.mark.lab

PATIENT = ("--json", "--deadline", "100s")  # the machine may be busy
Found = dict[str, dict[str, Any]]


def findings(done: subprocess.CompletedProcess[str], status: int) -> Found:
    assert done.returncode == status, done.stderr + done.stdout
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


def expect(found: Found, planted: dict[str, tuple[str, str, str]]) -> None:
    """Each check tells its colour, names the fault, and says what to do."""
    for check, (state, words, remedy) in planted.items():
        one = found[check]
        assert one["state"] == state, (check, one)
        assert words in one["sentence"], one
        assert remedy in one["remedy"], one


def own_runs(cluster: Cluster) -> tuple[str, str]:
    """Options for a folder of runs in which no other test's have failed."""
    return "--set", f"paths.runs={cluster.work}/doctor-runs"


@pytest.fixture(autouse=True)
def _nobody_failed(cluster: Cluster) -> Iterator[None]:
    """No node is remembered for what another test did to it."""
    forget = ("rm", "-f", str(cluster.home / ".hpcml/nodes/lab.json"))
    cluster.run(*forget)
    yield
    cluster.run(*forget)


def test_nothing_is_wrong_with_the_lab(cluster: Cluster) -> None:
    """As a healthy machine: each node has a disk."""
    place = "/tmp/hpcml-doctor"
    options = (*PATIENT, *own_runs(cluster), "--set", f"paths.scratch={place}")
    with contextlib.ExitStack() as mounted:
        for node in ALL_NODES:
            disk = cluster.write(f"disk-{node}/.keep", "").parent
            mounted.enter_context(cluster.covered(node, f"mkdir -p {place}; mount --bind {disk} {place}", place))
        done = cluster.run("hpcml", "doctor", "--node", *options, timeout=240)
    found = findings(done, 0)
    assert {one["state"] for one in found.values()} == {"green", "n/a"}, done.stdout
    for check in ("request", "start", "partition", "slurm-config", "file-system", "job", "interface", "clocks"):
        assert found[check]["state"] == "green", found[check]
    for check in ("account", "budget", "certificate", "image", "ports", "gpu-distance", "driver"):
        assert found[check]["state"] == "n/a", found[check]
    assert found["job"]["facts"]["nodes"] == ["n1", "n2"]
    left = cluster.run("ls", "-A", f"{cluster.work}/doctor-runs").stdout.split()
    assert [name for name in left if not name.startswith(".lib-")] == [], "the job's run stays"


def test_a_partition_that_is_down(cluster: Cluster) -> None:
    """What cannot start is cancelled when the doctor's patience or life ends, and told as not looked at."""
    cluster.run("scontrol", "update", "partition=boost", "state=down", user="root")
    queue = ("squeue", "--me", "--noheader", "--name=doctor")
    try:
        ended = cluster.lab.popen(["hpcml", "doctor", "--node", *PATIENT, *own_runs(cluster)], cwd=str(cluster.work))
        assert wait_for(lambda: bool(cluster.run(*queue).stdout), 40)
        ended.terminate()
        _, said = ended.communicate(timeout=120)
        assert ended.returncode == 130, said
        assert cluster.run(*queue).stdout == ""
        done = cluster.run("hpcml", "doctor", "--node", "--patience", "3s", *PATIENT, *own_runs(cluster))
    finally:
        cluster.run("scontrol", "update", "partition=boost", "state=up", user="root")
    found = findings(done, errors.UNFIT)
    expect(
        found,
        {
            "partition": ("red", "partition boost is DOWN", "another --partition"),
            "job": ("n/a", "did not end within 3.0 s", "--patience"),
            "interface": ("n/a", "see the check 'job'", ""),
        },
    )
    assert cluster.run("squeue", "--me", "--noheader").stdout == ""


def test_faults_of_nodes(cluster: Cluster) -> None:
    leave = "head -c 4M /dev/zero > /dev/shm/left-over; touch -d '2 days ago' /dev/shm/left-over"
    cluster.run("sh", "-c", leave, node="n2")
    settings = (*own_runs(cluster), "--set", "network.interface=ib7", "--set", "runtime.container=shifter")
    done = cluster.run("hpcml", "doctor", "--node", *PATIENT, *settings, timeout=240)
    cluster.run("rm", "-f", "/dev/shm/left-over", node="n2")
    expect(
        findings(done, errors.UNFIT),
        {
            "job": ("green", "a run started on n1, n2", ""),
            "interface": ("red", "interface ib7 has no IPv4 address on n1, n2", "network.interface = 'eth0'"),
            "shared-memory": ("yellow", "1 old files of yours in /dev/shm of n2", "rm /dev/shm/left-over"),
            "scratch": ("yellow", "/tmp of n1 is a tmpfs", "paths.scratch"),
            "container": ("n/a", "the container program shifter is missing on n1, n2", ""),
        },
    )


def test_a_job_that_fails_is_told_as_why_tells_it(cluster: Cluster) -> None:
    broken = ("--set", "runtime.python=/nowhere/python", "--nodes", "1")
    done = cluster.run("hpcml", "doctor", "--node", *PATIENT, *own_runs(cluster), *broken, timeout=240)
    found = findings(done, errors.UNFIT)
    expect(
        found, {"job": ("red", "the job that checks the nodes failed", ""), "ports": ("n/a", "see the check 'job'", "")}
    )
    assert found["job"]["remedy"]


def test_from_a_laptop(outside: Outside) -> None:
    """Certificate and login node are the laptop's own matter."""
    words = ["hpcml", "--host", "lab", "doctor", *PATIENT]
    lab_ssh.certify(outside.lab.places, "alice", seconds=300)
    try:
        done = outside.lab.exec(words, node=lab_ssh.LAPTOP, timeout=120)
        wrong = outside.lab.exec([*words, "--nodes", "2"], node=lab_ssh.LAPTOP, timeout=120)
    finally:
        lab_ssh.certify(outside.lab.places, "alice")
    expect(
        findings(done, 0),
        {
            "start": ("green", "Slurm would start a job", ""),
            "certificate": ("yellow", "your ssh certificate expires", "Get a new certificate"),
            "login-node": ("green", "lab responds", ""),
        },
    )
    assert (wrong.returncode, "Add --node" in wrong.stderr) == (errors.USAGE, True)
