"""Parts of a run of ranks on two nodes that are stopped, killed or cut off: the right node is named, and nothing stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beside import SMALL
from conftest import Cluster
from hpcml import errors
from lab_nodes import call
from lab_paths import namespace
from lab_state import wait_for
from test_losses import parents, roles, shell
from test_ranks_on_nodes import kinds_of_pmi

pytestmark = [pytest.mark.lab]

# No rank ends by SIGTERM, and no test waits for the grace: ranks of lost nodes are killed, and not waited for.
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n"
GRACE = ("--set", "deadlines.script_grace=600s")
RANKS = (*SMALL, "--ranks", "2", "--set", "deadlines.teardown=2s")


def start(cluster: Cluster, text: str, *options: str) -> Path:
    _, directory = cluster.detach(text, *RANKS, *options)
    cluster.wait_event(directory, "ranks-running", 90)
    return directory


def left(cluster: Cluster, directory: Path) -> list[str]:
    return [
        line
        for _, line in cluster.processes()
        if str(directory) in line or "hpcml.kinds" in line or "hpcml.node" in line
    ]


def ended(cluster: Cluster, directory: Path) -> tuple[int, str]:
    end = cluster.wait_status(directory)
    why = json.loads(cluster.run("hpcml", "why", directory.name, "--json").stdout)
    assert why["failed"], why
    return end["exit_status"], end["message"]


@pytest.mark.beside
def test_a_supervisor_that_is_stopped_ends_the_run(cluster: Cluster) -> None:
    directory = start(cluster, DEAF, *GRACE, "--set", "deadlines.answer=8s")
    os.kill(roles(cluster, directory, "supervisor", "n1")[0], signal.SIGSTOP)
    cluster.wait_gone(directory, 90)
    end = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (end["state"], end["exit_status"]) == ("FAILED", errors.ROLE_LOST), end
    assert "supervisor process on n1 did not answer for" in end["message"]
    assert "(the process is stopped: SIGSTOP)" in end["message"]


@pytest.mark.beside
@pytest.mark.parametrize(("killed", "words"), [
    ("agent", "the ranks on n2 were lost: the process that starts the ranks exited with status 137 (killed by SIGKILL)"),
    ("step.sh", "the ranks on n2 were lost: the ranks' parent process was killed (srun: error: n2: task 1: Killed)"),
    ("srun", "the job step 'rank' ended"),
])  # fmt: skip
def test_a_lost_agent_ends_the_run_with_what_killed_it(cluster: Cluster, killed: str, words: str) -> None:
    directory = start(cluster, "import time\ntime.sleep(1000)\n", *GRACE)
    (agent, *_) = roles(cluster, directory, "rank", "n2")
    if killed == "srun":
        pid = rank_step(cluster, directory)
    else:
        pid = agent if killed == "agent" else shell(cluster, directory, "rank", "n2")
    os.kill(pid, signal.SIGKILL)
    status, message = ended(cluster, directory)
    assert (status, message[: len(words)]) == (errors.ROLE_LOST, words)
    cluster.wait_gone(directory, 90)


def rank_step(cluster: Cluster, directory: Path) -> int:
    """Return the srun of the agents: the first of the steps that the batch script has started."""
    driver = roles(cluster, directory, "supervisor", "n1")[0]
    words = Path(f"/proc/{driver}/environ").read_bytes().split(b"\0")
    steps = next(word.partition(b"=")[2] for word in words if word.startswith(b"HPCML_STEPS="))
    assert parents(int(steps.split()[0]))
    return int(steps.split()[0])


@contextlib.contextmanager
def cut_off(node: str) -> Iterator[None]:
    """Cut a node's network; its file system is not behind it."""
    place = namespace(node)
    call(["ip", "-n", place, "link", "set", "eth0", "down"])
    try:
        yield
    finally:
        call(["ip", "-n", place, "link", "set", "eth0", "up"])


@pytest.mark.parametrize(("node", "words"), [
    ("n1", "the network interface eth0 of n1 is down: no other node has answered for 8 s"),
    ("n2", "n2 has not answered for 8 s"),
])  # fmt: skip
def test_a_node_without_network_is_named_and_no_rank_goes_on(cluster: Cluster, node: str, words: str) -> None:
    """Slurm cannot reach the node: its agent ends the ranks itself."""
    directory = start(cluster, DEAF, "--set", "deadlines.script_grace=2s", "--set", "deadlines.answer=8s")
    with cut_off(node):
        status, message = ended(cluster, directory)
        assert wait_for(lambda: not roles(cluster, directory, "rank", "n2"), 60)
        assert wait_for(lambda: not any("-u -c" in line for _, line in cluster.processes()), 60), cluster.processes()
    assert (status, message) == (errors.ROLE_LOST, words)
    cluster.wait_gone(directory, 120)


# Rank 0 ends with 0, deaf to signals until then, and rank 1 never ends.
HALF = """
import os, pathlib, signal, time
import hpcml
mark = hpcml.run.out / "ended"
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark.touch()
    os._exit(0)
while not mark.exists(): time.sleep(0.05)
print("waits", flush=True)
time.sleep(1000)
"""


def test_whatever_ends_a_run_whose_rank_0_has_ended_it_is_no_success(cluster: Cluster) -> None:
    """The others were killed, whoever did it, and are named unless the supervisor was killed."""
    half = (*SMALL, "--ranks", "1")
    hold = cluster.run("hpcml", "hold", "--json", *SMALL, "--time", "10", "--name", "half")
    assert hold.returncode == 0, hold.stderr
    waiting = [cluster.detach(HALF, *half)[1] for _ in range(3)]
    waiting += [cluster.detach(HALF, *half, "--mpi", kind)[1] for kind in ("pmi2",) if kind in kinds_of_pmi(cluster)]
    done = cluster.run("hpcml", "run", "--in", "half", "--detach", "--json", "--ranks", "1", *cluster.command(HALF)[2:])
    assert done.returncode == 0, done.stderr
    held = Path(json.loads(done.stdout)["directory"])
    seen: dict[str, tuple[int, tuple[int, ...]]] = {}

    def end(directory: Path, how: str) -> None:
        assert wait_for(lambda: any("waits" in log.read_text() for log in directory.glob("logs/rank-*-1.log")), 120)
        if how == "scancel":
            cluster.run("scancel", (directory / "job").readlink().name)
        elif how == "scancel --signal":
            cluster.run("scancel", "--signal=TERM", (directory / "job").readlink().name)
        elif how.startswith("SIG"):
            os.kill(roles(cluster, directory, "supervisor", "n1")[0], signal.Signals[how])
        else:
            assert cluster.run("hpcml", "cancel", directory.name).returncode == 0
        status = cluster.run("hpcml", "status", directory.name, "--json")
        assert wait_for(lambda: said(directory)["over"], 120), status.stdout
        facts = said(directory)
        seen[how] = facts["exit_status"], tuple(facts["killed_ranks"])
        if facts["killed_ranks"]:
            assert "rank 1 was killed before it finished" in facts["message"]
            assert "rank 1 was killed before it finished" in cluster.run("hpcml", "why", directory.name).stdout

    def said(directory: Path) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
        return facts | {"over": facts["phase"] == "ended"}

    for directory, how in zip(waiting, ("scancel", "scancel --signal", "SIGKILL", "with MPI"), strict=False):
        end(directory, how)
    end(held, "in a hold")
    assert seen.pop("SIGKILL")[0]
    assert seen == dict.fromkeys(seen, (errors.CANCELLED, (1,)))
