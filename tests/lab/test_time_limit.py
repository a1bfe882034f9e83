"""What waits for the clock, all at once: the time limit, and a suspension, which is no hang.

Slurm's shortest time limit is a minute, and it looks twice a minute.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from beside import PART, SMALL
from conftest import Cluster, Ended, directory_of, left_of_containers
from hpcml import errors
from hpcml.node.process_helpers import MOST
from lab_state import wait_for
from test_exit_status import CONNECT, SAVES, WAIT, slurm_exit
from test_losses import TWO_BY_TWO, output, roles, start

pytestmark = [pytest.mark.lab, pytest.mark.beside(at_once=8)]

STAYS = (
    CONNECT + "while not hpcml.run.should_stop():\n    time.sleep(0.2)\nprint('told', flush=True)\ntime.sleep(300)\n"
)

# Each rank saves; its loaders are forks of it and must not save too (EgoVerse#621).
SAVES_ONCE = """
import multiprocessing, os, time
import hpcml
def save():
    with (hpcml.run.out / os.environ["RANK"]).open("a") as file: file.write(f"{os.getpid() - main}\\n")
main = os.getpid()
hpcml.run.on_stop(save)
with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(time.sleep, [1000, 1000])
"""
TOLD_BEFORE = ("--set", "slurm.signal_lead=30s")
# The two that wait for their limit share two nodes, the others have the other two.
LIMITED = ("--nodes", "2", "--nodelist", "n3,n4", *PART, "--time", "1")
SALLOC = ("salloc", "--quiet", "--nodes=2", "--nodelist=n3,n4", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=900M",
          "--time=1")  # fmt: skip


def test_the_time_limit_inside_an_image(cluster: Cluster, image: Path) -> None:
    """The script is told before (should_stop), then ended by Slurm; the run says it was the time limit."""
    stays = cluster.submit(STAYS, *LIMITED, *TOLD_BEFORE, "--image", str(image), timeout=200)
    assert stays.code == errors.TIME_LIMIT, stays.err
    assert "told" in stays.out
    assert stays.status["message"] == "the time limit was reached"
    assert "Increase --time" in stays.err
    assert slurm_exit(cluster, stays.directory).startswith("TIMEOUT")
    cluster.wait_gone(stays.directory, 60)
    assert wait_for(lambda: not left_of_containers(cluster), 10), left_of_containers(cluster)


def test_the_time_limit_of_an_allocation(cluster: Cluster) -> None:
    """`hpcml run` tells the script before, as Slurm does in a submission, and the run says what ended it."""
    _, _, *words = cluster.command(STAYS, *TOLD_BEFORE)
    done = cluster.run(*SALLOC, "hpcml", "run", *words, timeout=200)
    stays = Ended(done.returncode, done.stdout, done.stderr, directory_of(done))
    assert "told" in stays.out
    assert stays.status["message"] == "the time limit was reached"
    assert stays.status["exit_status"] == errors.TIME_LIMIT


def test_each_rank_saves_once_before_the_time_limit(cluster: Cluster) -> None:
    """Slurm's signal reaches the ranks' main processes of every node, never their loaders."""
    saves = cluster.submit(SAVES_ONCE, *SMALL, "--ranks", "1", "--time", "1", *TOLD_BEFORE, timeout=200)
    assert saves.code == errors.STOPPED, saves.err
    assert saves.status["message"] == errors.MEANING[errors.STOPPED]
    assert [(saves.directory / "out" / rank).read_text() for rank in "01"] == ["0\n", "0\n"]


DEAF = """setsid sh -c 'trap "" TERM HUP INT; exec sleep 29870' </dev/null >/dev/null 2>&1 & exec sleep 29871"""


def test_what_an_editor_started_ends_at_the_time_limit(cluster: Cluster) -> None:
    _, directory = cluster.detach("import time; time.sleep(300)", *SMALL, "--time", "1")
    cluster.wait_event(directory, "script-started", 60)
    done = cluster.run("hpcml", "ssh-config", "--json", directory.name)
    name = json.loads(done.stdout)["hosts"][0]["name"]
    place = cluster.lab.places.home("alice") / ".hpcml" / "ssh" / "nodes.conf"
    editor = cluster.lab.popen(["ssh", "-F", str(place), name, DEAF])

    def staying() -> list[str]:
        return [line for _, line in cluster.lab.processes("alice") if line.startswith("sleep 2987")]

    assert wait_for(lambda: len(staying()) == 2, 40)
    cluster.wait_status(directory, 200)
    assert wait_for(lambda: not staying(), 40), staying()
    editor.communicate(timeout=60)
    cluster.wait_gone(directory, 60)
    assert not list(directory.glob("attempts/0/secret/*"))


def at_rest(pids: list[int]) -> bool:
    """Whether none of these processes, which look around every second, has run for some."""

    def switches() -> list[str]:
        return [Path(f"/proc/{pid}/status").read_text().partition("\nvoluntary_ctxt_switches:")[2] for pid in pids]

    before = switches()
    time.sleep(4)  # a control group that is frozen shows no other state than one that waits
    return switches() == before


def test_a_suspended_job_does_not_hang(cluster: Cluster) -> None:
    """Slurm stops all of it at once; a deadline passes when the run itself has run for so long, and no worker is lost."""
    deadline, stopped_for = 40, 50  # so long may pass until the job is suspended
    options = ("answer=15s", "workers=45s", f"idle={deadline}s", f"idle_notice={deadline}s")
    asked = [word for option in options for word in ("--set", f"deadlines.{option}")]
    directory = start(cluster, SAVES + WAIT, *TWO_BY_TWO, *asked)
    began = cluster.wait_event(directory, "script-started")["time"]
    job = json.loads((directory / "submission.json").read_text())["job"]
    assert cluster.run("scontrol", "suspend", job, user="root", node="ctl").returncode == 0
    of_run = [*roles(cluster, directory, "supervisor", "n1"), *roles(cluster, directory, "scheduler", "n1")]
    assert len(of_run) == 2
    assert wait_for(lambda: at_rest(of_run), 30)
    stopped = time.time()
    time.sleep(stopped_for)  # longer than all deadlines
    assert cluster.job(job)["JobState"] == "SUSPENDED"
    assert not (directory / "status.json").exists()
    resumed = time.time()
    assert cluster.run("scontrol", "resume", job, user="root", node="ctl").returncode == 0
    status = cluster.wait_status(directory, 90)
    assert status["exit_status"] == errors.IDLE, status
    ended = cluster.wait_event(directory, "ending")["time"]
    assert ended - began - (resumed - stopped) > deadline - MOST, status
    assert not [words for words in status["warnings"] if "answered" in words], status
    events = {json.loads(line)["event"] for line in (directory / "events.jsonl").read_text().splitlines()}
    assert not events & {"worker-removed", "workers-lost", "worker-task-stopped"}
    assert "saved with the cluster" in output(directory), "it computes afterwards"
