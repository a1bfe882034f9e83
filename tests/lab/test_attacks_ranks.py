"""What another account can try against a run of ranks: floods from its first moment, junk, calls, ports and names it needs."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mallory
from beside import PART, SMALL
from conftest import ALL_NODES, Cluster, together
from hpcml import errors
from lab_state import wait_for
from test_attacks_nodes import (
    ALICE,
    HELPER,
    NODES,
    clean,
    owned,
    read_files_and_processes,
    refused,
    send_junk_to_link,
)
from test_ranks_on_nodes import ALLREDUCE, MPI, kinds_of_pmi, library

pytestmark = pytest.mark.lab

FOUR = ("--nodes", "4", *PART, "--ranks", "2")
# The ranks meet, and stay for a while.
MEET = """
import json, os, socket, time
import helper
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(place, backlog=size)
    met = set()
    while len(met) < size - 1: met |= {server.accept()[0].recv(9)} - {b""}  # nothing: a stranger
else:
    while True:
        try: master = socket.create_connection(place); break
        except ConnectionRefusedError: time.sleep(0.05)
    master.sendall(str(rank).encode())
time.sleep(5)
print("said", helper.value())
"""
WAITS = """
import hpcml, os, time
(hpcml.run.out / os.environ["RANK"]).write_text(os.environ["MASTER_PORT"])
while not (hpcml.run.out / "enough").exists(): time.sleep(0.1)
"""
LISTENS = """
import hpcml, os, socket, time
(hpcml.run.out / (os.environ["RANK"] + ".new")).write_text(os.environ["MASTER_PORT"])
(hpcml.run.out / (os.environ["RANK"] + ".new")).rename(hpcml.run.out / os.environ["RANK"])
while not (hpcml.run.out / "enough").exists(): time.sleep(0.1)
if os.environ["RANK"] == "0": socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
time.sleep(1000)
"""


@contextlib.contextmanager
def beside(cluster: Cluster, nodes: tuple[str, ...], code: str, *words: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Have mallory run a program on nodes while something else runs; she must win nothing."""
    started = [
        cluster.lab.popen(["python3", "-c", code, *words], node=node, user="mallory", stdin=subprocess.PIPE)
        for node in nodes
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "planted\n"
        yield started
        done = together(started, 180)
        found = [(node, refused(one.stdout)["tries"], one.stderr) for node, one in zip(nodes, done, strict=True)]
        assert all(count for _, count, _ in found), found
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(scope="module", autouse=True)
def _planted_is_removed(cluster: Cluster) -> Iterator[None]:
    clean(cluster)
    yield
    clean(cluster)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


def address_of(cluster: Cluster, node: str) -> str:
    return cluster.run("hostname", "-I", node=node).stdout.split()[0]


def test_floods_from_its_first_moment_and_planted_names_end_no_run(cluster: Cluster) -> None:
    """From each node and the login node, until the run has ended. No good node is remembered as a bad one."""
    cluster.write("helper.py", HELPER)
    file = cluster.lab.home("mallory") / "ports"
    cluster.run("rm", "-f", str(file), user="mallory")
    place = address_of(cluster, "n1")
    with (
        beside(cluster, ("n1",), mallory.WATCH, "/tmp", ALICE),
        beside(cluster, (*ALL_NODES, "login"), mallory.SWARM, ALICE, place, str(file)),
    ):
        run = cluster.submit(MEET, *FOUR, "--nodelist", ",".join(ALL_NODES), timeout=400)
    assert run.code == 0, (run.err, run.status, {path.name: path.read_text() for path in run.directory.glob("logs/*")})
    assert run.log("script.log").splitlines()[-1] == "said alices"
    assert not owned(cluster)
    dry = cluster.run(*cluster.command(MEET, "--dry-run", *FOUR))
    assert run.directory.name not in dry.stderr, dry.stderr


def test_calls_at_the_socket_of_mpi_s_tasks_keep_no_task_out(cluster: Cluster) -> None:
    kind = next((kind for kind in ("pmix", "pmi2") if kind in kinds_of_pmi(cluster)), "")
    if not kind:
        pytest.skip("this Slurm has no kind of PMI")
    with beside(cluster, NODES, mallory.CALLS):
        run = cluster.submit(ALLREDUCE, *MPI, "--mpi", kind, arguments=(library(cluster, kind),), timeout=300)
    assert run.code == 0, (run.err, run.log("script.log"))


def test_who_listens_on_rank_0_s_port_is_named(cluster: Cluster) -> None:
    _, directory = cluster.detach(LISTENS, *SMALL, "--ranks", "1")
    cluster.wait_event(directory, "ranks-running", 90)
    path = directory / "out/0"
    assert wait_for(path.exists, 90)
    place = json.loads((directory / "attempts/0/link.json").read_text())["places"][0][0]
    words = ["python3", "-c", mallory.SQUAT, place]
    thief = cluster.lab.popen(words, node="n1", user="mallory", stdin=subprocess.PIPE)
    try:
        assert thief.stdout is not None
        assert thief.stdout.readline() == "planted\n"
        assert int(path.read_text()) in json.loads(thief.stdout.readline())
        (directory / "out/enough").touch()
        end = cluster.wait_status(directory, 90)
    finally:
        thief.communicate("", timeout=60)
    assert (end["exit_status"], end["by"], end["state"]) == (errors.PORT_TAKEN, "hpcml", "FAILED"), end
    listens = f"account hpcml-mallory listens on port {path.read_text()} of n1, the run's MASTER_PORT; rank 0 on n1"
    assert end["message"].startswith(listens), end
    assert "--exclusive" in end["hint"]
    assert "Account hpcml-mallory listens on port" in cluster.run("hpcml", "why", directory.name).stdout


# -- while a run is up --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(cluster: Cluster) -> Iterator[Path]:
    """A run that survives what is tried until the last test of the module."""
    _, directory = cluster.detach(WAITS, *SMALL, "--ranks", "1")
    cluster.wait_event(directory, "ranks-running", 90)
    assert wait_for(lambda: len(list((directory / "out").iterdir())) == 2, 90)
    yield directory
    (directory / "out/enough").touch()
    assert cluster.wait_status(directory)["exit_status"] == 0
    assert list(directory.glob("attempts/*/secret/*")) == []


def test_junk_at_the_agents_port(cluster: Cluster, waiting: Path) -> None:
    """With texts beyond ASCII; from the first node, another one and outside."""
    send_junk_to_link(cluster, waiting)
    assert not json.loads((waiting / "status.json").read_text() if (waiting / "status.json").exists() else "{}")


def test_files_and_processes_of_ranks(cluster: Cluster, waiting: Path) -> None:
    read_files_and_processes(cluster, waiting, "rank")


def test_no_key_of_ranks_in_what_is_public(cluster: Cluster, waiting: Path) -> None:
    key = (waiting / "attempts/0/secret/link.key").read_bytes()
    keys = [key.hex(), hmac.new(key, b"rapidsmpf", hashlib.sha256).hexdigest()]
    job = json.loads((waiting / "submission.json").read_text())["job"]
    asked = [["scontrol", "show", "job", "-dd", job], ["squeue", "-j", job, "-O", "ALL"], ["scontrol", "show", "step", job],
             ["scontrol", "write", "batch_script", job, "-"], ["ps", "-eww", "-o", "args"], ["ps", "eww", "-e"]]  # fmt: skip
    for node in (*NODES, "login"):
        for words in asked:
            done = cluster.lab.exec(words, node=node, user="mallory")
            assert not [one for one in keys if one in done.stdout + done.stderr], f"{words} on {node}"
    logs = b"".join(path.read_bytes() for path in (waiting / "logs").iterdir())
    assert not [one for one in (key, *map(str.encode, keys)) if one in logs]
