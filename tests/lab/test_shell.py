"""A shell in a run: on its node, with its cluster, and gone when it ends."""

from __future__ import annotations

import pytest

from beside import SMALL
from conftest import BUSY, Cluster
from terminals import Terminal

pytestmark = pytest.mark.lab

TALK = "echo on-$(hostname); python -c 'from distributed import Client; print(6 * Client().submit(sum, [3, 4]).result())'; exit 5\n"


def test_a_shell_on_a_node(cluster: Cluster) -> None:
    _, directory = cluster.detach(BUSY, *SMALL)
    cluster.wait_event(directory, "driver-started")
    wrong = cluster.run("hpcml", "shell", "last")
    assert wrong.returncode == 64
    assert "needs a terminal" in wrong.stderr
    for node in ("n1", "n2"):
        with Terminal(cluster.lab, f"hpcml shell last {node}", cwd=cluster.work) as shell:
            shell.shown("$ ")
            shell.type(TALK)
            shell.shown(f"on-{node}\n")
            shell.shown("\n42\n")
            shell.ended()
    assert "has no node" in cluster.run("script", "-qec", "hpcml shell last n4", "/dev/null").stdout
