"""A module by its name and any program in the place of a script, on nodes and in an image."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

MODULE = """
import sys
from . import part
from distributed import Client
client = Client()
print(sum(client.gather(client.map(part.h, range(4)))), sys.argv[1:])
"""
PROGRAM = """#!/bin/bash
cat "$(dirname "$0")/data.txt"
python3 -c 'from distributed import Client; print(Client().submit(sum, [1, 2]).result())' || exit 1
echo "$@"
exit 7
"""


def submit(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("hpcml", "submit", "--wait", *words, cwd=cluster.work / "forms", timeout=200)


def put(cluster: Cluster) -> None:
    for name, text in {
        "pack/train.py": MODULE, "pack/part.py": "def h(x):\n    return 10 * x\n", "bin/data.txt": "data\n", "bin/run": PROGRAM,
    }.items():  # fmt: skip
        cluster.write(f"forms/{name}", text)
    cluster.run("chmod", "755", str(cluster.work / "forms/bin/run"))


def test_a_module_on_two_nodes(cluster: Cluster) -> None:
    put(cluster)
    done = submit(cluster, "--nodes", "2", "-m", "pack.train", "--k", "8")
    assert (done.returncode, done.stdout) == (0, "60 ['--k', '8']\n"), done.stderr


def test_a_program_in_an_image(cluster: Cluster, image: Path) -> None:
    """Its interpreter is the image's, and so is the Python that it starts."""
    put(cluster)
    done = submit(cluster, "--nodes", "2", "--image", str(image), "--", "bin/run", "a", "--b")
    assert (done.returncode, done.stdout) == (7, "data\n3\na --b\n"), done.stderr


def test_a_program_on_the_node_s_path(cluster: Cluster) -> None:
    put(cluster)
    done = submit(cluster, "--", "bash", "-c", 'echo "$DASK_SCHEDULER_ADDRESS"; pwd; exit 3')
    assert done.returncode == 3, done.stderr
    address, folder = done.stdout.splitlines()
    assert address.startswith("tls://")
    assert folder == str(cluster.work / "forms")
