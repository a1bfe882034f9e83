"""A shell in a run: on its node, with its cluster, and gone when it ends."""

from __future__ import annotations

import pytest

from conftest import BUSY, Cluster

pytestmark = pytest.mark.lab

TALK = (
    "hostname; python -c 'from distributed import Client; print(6 * Client().submit(sum, [3, 4]).result())'; exit 5\n"
)


def test_a_shell_on_a_node(cluster: Cluster) -> None:
    _, directory = cluster.detach(BUSY, "--nodes", "2")
    cluster.wait_event(directory, "driver-started")
    wrong = cluster.run("hpcml", "shell", "last")
    assert wrong.returncode == 64
    assert "needs a terminal" in wrong.stderr
    talk = cluster.write("talk", TALK)
    for node in ("n1", "n2"):
        command = f"(sleep 2; cat {talk}; sleep 10) | SHELL=/bin/sh script -qec 'hpcml shell last {node}' /dev/null"
        done = cluster.run("bash", "-c", command, timeout=240)
        lines = done.stdout.replace("\r", "").splitlines()
        assert node in lines, done.stdout + done.stderr
        assert "42" in lines, done.stdout
    assert "has no node" in cluster.run("script", "-qec", "hpcml shell last n4", "/dev/null").stdout
