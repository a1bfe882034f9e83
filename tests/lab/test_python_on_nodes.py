"""The run's Python on nodes: a user's own environments, and those of another account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from tests.said import says

SIZE = ("--cpus-per-node", "1", "--memory-per-node", "900M")
DASK = """
import sys
from dask.distributed import Client
with Client() as client:
    print("both", sys.prefix, *client.run(lambda: sys.prefix).values())
"""
BARE = "import sys; print('rank', sys.prefix, flush=True)\n"
# A conda that would leave a file if it were started, and an environment with the files of a real one.
CONDA = """set -e
mkdir -p "$1/bin" "$1/condabin" "$1/conda-meta" "$1/envs/named/bin" "$1/envs/named/conda-meta"
printf '#!/bin/sh\\ntouch ~/started\\n' >"$1/bin/conda"; chmod 755 "$1/bin/conda"
"""


@pytest.fixture
def mine(cluster: Cluster) -> Iterator[Path]:
    """An environment of alice's without any package, and without hpcml."""
    folder = cluster.work / "mine's own"
    done = cluster.run("python3", "-m", "venv", "--without-pip", str(folder))
    assert done.returncode == 0, done.stderr
    yield folder
    cluster.run("rm", "-rf", str(folder))


def test_an_environment_of_the_user_s_own(cluster: Cluster, mine: Path) -> None:
    """By its path without any package for ranks; with Dask while it is active; by its name; kept by rerun."""
    ended = cluster.submit(BARE, "--nodes", "2", "--ranks", "1", "--python", str(mine), *SIZE)
    assert (ended.code, ended.out.count(f"rank {mine}")) == (0, 1), ended.out + ended.err
    assert f"{mine}/bin/python (--python)" in " ".join(ended.err.split())
    refused = cluster.run(*cluster.command(DASK, "--python", str(mine), *SIZE))
    assert refused.returncode == errors.REFUSED, refused.stderr
    assert "lacks the packages dask, distributed, cryptography" in " ".join(refused.stderr.split())
    active = {"VIRTUAL_ENV": str(mine)}
    unused = cluster.run(*cluster.command(DASK, "--dry-run", *SIZE), env=active)
    assert " ".join(unused.stderr.split()) == says("it lacks dask, distributed, cryptography", "install", "--python")

    own = Path(cluster.run("sh", "-c", 'dirname "$(dirname "$(readlink -f "$(command -v hpcml)")")"').stdout.strip())
    (packages,) = (own / "lib").glob("python3.*/site-packages")
    place = mine / packages.relative_to(own) / "lab.pth"
    cluster.lab.exec(["tee", str(place)], input=f"{packages}\n")
    done = cluster.run(*cluster.command(DASK, "--wait", *SIZE), env=active, timeout=150)
    assert done.returncode == 0, done.stderr
    assert f"both {mine} {mine}" in done.stdout
    again = cluster.run("hpcml", "rerun", "last", "--wait", timeout=150)
    assert f"both {mine} {mine}" in again.stdout, again.stderr
    asked = json.loads(cluster.run("hpcml", "status", "last", "--json").stdout)["asked"]
    assert asked["python_from"] == "VIRTUAL_ENV, the active environment"

    conda = cluster.work / "conda"
    assert cluster.run("sh", "-c", CONDA, "sh", str(conda)).returncode == 0
    cluster.run("ln", "-s", f"{mine}/bin/python", f"{conda}/envs/named/bin/python")
    path = {"CONDA_EXE": f"{conda}/bin/conda"}
    command = cluster.command("import sys; print('named', sys.executable)\n", "--wait", "--python", "named", *SIZE)
    done = cluster.run(*command, env=path, timeout=150)
    assert f"named {conda}/envs/named/bin/python" in done.stdout, done.stderr
    assert cluster.run("test", "-e", f"{cluster.home}/started").returncode == 1


def test_an_environment_that_the_nodes_do_not_have(cluster: Cluster) -> None:
    folder = "/tmp/of-login"
    cluster.run("python3", "-m", "venv", "--without-pip", folder)
    told = f"{folder} is in /tmp, which every node has of its own"
    typed = cluster.run(*cluster.command(BARE, "--dry-run", "--ranks", "1", "--python", folder, *SIZE))
    assert told in " ".join(typed.stderr.split())
    active = cluster.run(*cluster.command(BARE, "--dry-run", *SIZE), env={"VIRTUAL_ENV": folder})
    assert f"because {told}. To use it: --python {folder}" in " ".join(active.stderr.split())
    cluster.run("rm", "-rf", folder)


def test_environments_of_another_account(cluster: Cluster) -> None:
    """One that alice may not enter is refused; one that mallory may change is never used by itself."""
    home = cluster.lab.home("mallory")
    for folder in (home / "closed", Path("/tmp/open")):
        done = cluster.run("python3", "-m", "venv", "--without-pip", "--copies", str(folder), user="mallory")
        assert done.returncode == 0, done.stderr
    cluster.run("chmod", "-R", "go+rX", "/tmp/open", user="mallory")
    for words in (("--python", f"{home}/closed"), ("--set", f"runtime.python={home}/closed/bin/python")):
        done = cluster.run(*cluster.command(BARE, *words, "--ranks", "1", *SIZE))
        assert done.returncode in (errors.USAGE, errors.REFUSED), done.stderr
        assert "Permission denied" in done.stderr
    closed = cluster.run(*cluster.command(BARE, "--dry-run", *SIZE), env={"CONDA_PREFIX": f"{home}/closed"})
    assert "because it has no bin/python that you can read" in " ".join(closed.stderr.split())
    active = cluster.run(*cluster.command(BARE, "--dry-run", *SIZE), env={"VIRTUAL_ENV": "/tmp/open"})
    assert "does not use the active environment /tmp/open, because" in " ".join(active.stderr.split())
    assert "belongs to hpcml-mallory" in active.stderr
    typed = cluster.run(*cluster.command(BARE, "--dry-run", "--python", "/tmp/open", "--ranks", "1", *SIZE))
    assert "belongs to hpcml-mallory: this account can run code as you" in " ".join(typed.stderr.split())
    cluster.run("rm", "-rf", f"{home}/closed", "/tmp/open", user="mallory")
