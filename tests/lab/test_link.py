"""The link of agents and supervisor on two nodes: behind a port filter, flooded, cut, in runs of every kind."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mallory
from beside import SMALL
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import PATIENCE, wait_for
from test_attacks_nodes import ALICE, clean, owned
from test_attacks_ranks import address_of, beside
from test_losses import WAITS, output, roles, start
from test_ranks_ends import cut_off
from tests.said import in_order

pytestmark = pytest.mark.lab

PYTHON = "/tmp/hpcml-link-python"  # of n2: its agent begins when the filter is there
GO = "/tmp/hpcml-link-go"
SUM = "import hpcml\nclient = hpcml.connect()\nprint(sum(client.gather(client.map(lambda x: x, range(100)))))\n"
MEET = """
import os, socket, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.create_server(place)
    print("met", server.accept()[0].recv(9), flush=True)
else:
    while True:
        try: master = socket.create_connection(place); break
        except ConnectionRefusedError: time.sleep(0.05)
    master.sendall(b"hello")
"""
KINDS = {"dask": (SUM, ()), "late": ("import time\ntime.sleep(8)\n", ()), "ranks": (MEET, ("--ranks", "1"))}
LOST = 90.0  # seconds by which a node without network is noticed: Dask's 30 s and those of the link
LATER = 5.0  # seconds by which a start may be later without the link, on a quiet machine


@contextlib.contextmanager
def filtered(cluster: Cluster, directory: Path, target: str) -> Iterator[None]:
    """Let nobody on other nodes connect to the supervisor's port."""
    path = directory / "attempts/0/link.json"
    assert wait_for(path.exists, 60)
    ports = {str(port) for _, port in json.loads(path.read_text())["places"]}
    rules = [("INPUT", "-p", "tcp", "!", "-i", "lo", "--dport", port, "-j", *target.split()) for port in sorted(ports)]
    for rule in rules:
        done = cluster.run("/usr/sbin/iptables", "-A", *rule, node="n1", user="root")
        assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        for rule in rules:
            cluster.run("/usr/sbin/iptables", "-D", *rule, node="n1", user="root")


def begun(cluster: Cluster, directory: Path) -> float:
    """Return when the script began, by the events."""
    event = cluster.wait_event(directory, "script-started", 120)
    return float(event["time"])


@pytest.fixture(scope="module")
def held(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Options by which the agent of n2 begins only when a test lets it."""
    if cluster.run("/usr/sbin/iptables", "-L", node="n1", user="root").returncode:
        pytest.skip("no iptables")
    hold = f'case "$SLURMD_NODENAME $*" in "n2 "*worker|"n2 "*rank) while [ ! -e {GO} ]; do sleep 0.05; done;; esac'
    for node in ("n1", "n2"):
        cluster.program(node, PYTHON, f'{hold}\nexec "$(command -v python)" "$@"')
    yield ("--set", f"runtime.python={PYTHON}")
    for node in ("n1", "n2"):
        cluster.run("rm", "-f", PYTHON, GO, node=node)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_starts_behind_a_port_filter(cluster: Cluster, held: tuple[str, ...], kind: str) -> None:
    """Whether the filter refuses or swallows; each start is measured from the moment at which the agent may begin."""
    text, options = KINDS[kind]
    seconds = {}
    for way in ("", "REJECT --reject-with tcp-reset", "DROP"):
        cluster.run("rm", "-f", GO, node="n2")
        _, directory = cluster.detach(text, *SMALL, *options, *held)
        with filtered(cluster, directory, way) if way else contextlib.nullcontext():
            assert wait_for((directory / "attempts/0/link.json").exists, 60)
            cluster.run("touch", GO, node="n2")
            now = time.time()
            seconds[way] = begun(cluster, directory) - now
            assert cluster.wait_status(directory, 120)["exit_status"] == 0, output(directory)
        events = directory / "attempts/0/nodes/n2.events"
        assert events.exists() is bool(way), output(directory)
        warned = "n2 cannot connect to n1" in output(directory)
        assert warned is bool(way and kind == "ranks")
    print(kind, seconds)
    assert max(seconds.values()) - seconds[""] < PATIENCE * LATER, seconds


def test_an_agent_behind_a_filter_that_is_killed_is_known_by_its_files(cluster: Cluster, held: tuple[str, ...]) -> None:
    cluster.run("rm", "-f", GO, node="n2")
    text = "import hpcml, time\nclient = hpcml.connect()\nprint('waiting', flush=True)\ntime.sleep(300)\n"
    _, directory = cluster.detach(text, *SMALL, *held, "--set", "workers.restarts=0")
    with filtered(cluster, directory, "DROP"):
        cluster.run("touch", GO, node="n2")
        begun(cluster, directory)
        (agent, *_) = roles(cluster, directory, "worker", "n2")
        cluster.run("kill", "-KILL", str(agent), node="n2")
        assert cluster.wait_event(directory, "workers-lost", 60)["workers"] == ["n2"]
    assert wait_for(
        lambda: bool(re.search(in_order("n2 lost a worker permanently", "status 137"), output(directory))),
        10,
    )


def test_a_node_of_dask_without_network_is_named(cluster: Cluster) -> None:
    """Dask gives a connection up after 30 s. The link knows before why: its node's agent has not answered."""
    options = ("--set", "deadlines.answer=8s", "--set", "deadlines.script_grace=2s", *SMALL)
    fails, continues = (
        start(cluster, WAITS, "--set", f"workers.on_loss={policy}", *options) for policy in ("fail", "continue")
    )
    with cut_off("n2"):
        cluster.wait_status(fails, LOST)
        assert cluster.wait_event(continues, "workers-lost", LOST)["node"] == "n2"
        end, goes_on = (
            json.loads(cluster.run("hpcml", "status", one.name, "--json").stdout) for one in (fails, continues)
        )
        why = cluster.run("hpcml", "why", fails.name).stdout
    words = "n2 has not answered for 8 s"
    assert (end["exit_status"], end["message"]) == (errors.ROLE_LOST, f"workers were lost: n2: {words}")
    assert words in why
    assert goes_on["warnings"] == [f"n2 lost a worker permanently: {words}; 1 of 2 workers are left."], goes_on
    cluster.run("hpcml", "cancel", continues.name)
    for directory in (fails, continues):
        cluster.wait_gone(directory, 120)


def test_floods_from_its_first_moment_end_no_run_of_dask(cluster: Cluster) -> None:
    """From each node and the login node, at every port that the run opens."""
    clean(cluster)
    file = cluster.lab.home("mallory") / "ports"
    cluster.run("rm", "-f", str(file), user="mallory")
    with beside(cluster, (*ALL_NODES, "login"), mallory.SWARM, ALICE, address_of(cluster, "n1"), str(file)):
        run = cluster.submit(SUM, *SMALL, timeout=400)
    assert run.code == 0, (run.err, run.status, {path.name: path.read_text() for path in run.directory.glob("logs/*")})
    assert run.log("script.log").splitlines()[-1] == "4950"
    assert not owned(cluster)
    clean(cluster)


def test_a_stopped_supervisor_of_dask_is_ended_by_the_agent_of_its_node(cluster: Cluster) -> None:
    text = "import hpcml, time\nclient = hpcml.connect()\nprint('waiting', flush=True)\ntime.sleep(300)\n"
    _, directory = cluster.detach(text, *SMALL, "--set", "deadlines.answer=8s")
    begun(cluster, directory)
    cluster.run("kill", "-STOP", str(roles(cluster, directory, "supervisor", "n1")[0]), node="n1")
    cluster.wait_gone(directory, 90)
    end = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (end["state"], end["exit_status"]) == ("FAILED", errors.ROLE_LOST), end
    assert "supervisor process on n1 did not answer for" in end["message"]
