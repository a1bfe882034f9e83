"""`hpcml site init` on the lab's own Slurm, and what a job on a node adds to the tables of a machine's."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from lab_state import PATIENCE, wait_for
from site_slurm import Site

pytestmark = pytest.mark.lab

ANSWERS = Path(__file__).resolve().parents[1] / "fixtures/sites"
COMMANDS = {"config": "scontrol show config", "partition": "scontrol --oneliner show partition",
            "node": "scontrol --oneliner show node lrdn0001", "sinfo": "sinfo --format=%P|%D|%c|%Z|%m|%l|%N|%G",
            "qos": "sacctmgr --parsable2 show qos", "assoc": "sacctmgr --parsable2 show assoc",
            "user": "sacctmgr --parsable2 show user"}  # fmt: skip


@pytest.fixture(scope="module")
def profiles(cluster: Cluster) -> Iterator[Path]:
    """Alice's own profiles, and none of them afterwards."""
    folder = cluster.home / ".config/hpcml/profiles"
    cluster.run("rm", "-rf", str(folder))
    yield folder
    cluster.run("rm", "-rf", str(folder))


@pytest.fixture
def shut(cluster: Cluster) -> Iterator[str]:
    """A partition that takes jobs and starts none."""
    words = ("PartitionName=shut_debug", "Nodes=n1", "State=DOWN")
    made = cluster.run("scontrol", "create", *words, node="ctl", user="root")
    assert made.returncode == 0, made.stderr
    yield "shut_debug"
    cluster.run("scancel", "--me", "--quiet")
    cluster.run("scontrol", "delete", words[0], node="ctl", user="root")


def text_of_leonardo(command: str) -> str:
    """Return what the machine of the table answers to a command."""
    program, *words = command.split()
    return Site(str(ANSWERS / "leonardo.toml")).answer(program, words)[1]


def like_leonardo(cluster: Cluster) -> dict[str, str]:
    """Put a machine's answers in the place of the lab's; return the environment that has them."""
    for name, command in COMMANDS.items():
        folder = cluster.write(f"like-leonardo/{name}.txt", text_of_leonardo(command)).parent
    for name in ("sinfo", "scontrol", "sacctmgr", "sbatch"):
        cluster.write(f"like-leonardo/{name}", (ANSWERS / "answer.sh").read_text())
    cluster.run("sh", "-c", f"chmod +x {folder}/s*[a-z]")
    return {"PATH": f"{folder}:{cluster.run('printenv', 'PATH').stdout.strip()}"}


def test_a_node_tells_what_only_it_knows(cluster: Cluster, profiles: Path) -> None:
    """A job of the lab's Slurm in a partition of the machine's name; what it finds stays when it is read again without one."""
    env = like_leonardo(cluster)
    cluster.write("job.py", "print(1)\n")
    assert cluster.run("hpcml", "site", "init", "seen", env=env).returncode == 0
    words = ("PartitionName=boost_usr_prod", "Nodes=n[1-2]", "MaxTime=30", "State=UP")
    assert cluster.run("scontrol", "create", *words, node="ctl", user="root").returncode == 0
    try:
        again = cluster.run("hpcml", "site", "init", "seen", "--refresh", "--probe", "--yes", env=env, timeout=200)
    finally:
        cluster.run("scontrol", "delete", words[0], node="ctl", user="root")
    assert again.returncode == 0, again.stderr
    assert "network.interfaces_seen\n  old: not set\n  new: " in again.stdout, again.stdout
    rows = {
        row["key"]: row for row in json.loads(cluster.run("hpcml", "site", "show", "seen", "--facts", "--json").stdout)
    }
    assert {row.get("confidence") for row in rows.values()} == {"confirmed", "guessed", None}
    chosen = {"description", "extends", "identify.order", "defaults.time", "resources.exclusive"}
    assert {key for key, row in rows.items() if "confidence" not in row} == chosen
    assert "10.79." in rows["network.interfaces_seen"]["value"]
    assert "tmpfs" in rows["paths.node.dev_shm"]["value"]
    assert (
        rows["network.locked_memory"]["source"] == "a job on a node, read by hpcml site init: memlock of the job on n1"
    )
    # The user's own word, and what the node said, stay; what Slurm says otherwise today is shown, and not written unasked.
    text = cluster.run("cat", f"{profiles}/seen.toml").stdout
    mark = "# To show the source of each value"
    cluster.write(f"{profiles}/seen.toml", text.replace(mark, f"[network]\ninterface = 'ib7'\n\n{mark}"))
    limits = text_of_leonardo(COMMANDS["partition"]).replace("MaxTime=1-00:00:00", "MaxTime=12:00:00")
    cluster.write("like-leonardo/partition.txt", limits)
    asked = cluster.run("hpcml", "site", "init", "seen", "--refresh", env=env)
    assert asked.returncode == 64, asked.stderr
    assert 'partitions.boost_usr_prod.max_time\n  old: "1-00:00:00"' in asked.stdout, asked.stdout
    assert '  new: "12:00:00"' in asked.stdout
    assert "network.interface" not in asked.stdout.split("Your own values")[0], asked.stdout
    assert "values are unchanged: network.interface." in asked.stdout, asked.stdout
    assert 'max_time = "1-00:00:00"' in cluster.run("cat", f"{profiles}/seen.toml").stdout
    assert cluster.run("hpcml", "site", "init", "seen", env=env).returncode == 64, "it is there already"


def test_the_lab_s_own_profile_is_taken_by_its_slurm(cluster: Cluster, profiles: Path) -> None:
    cluster.write("job.py", "print(1)\n")
    done = cluster.run("hpcml", "site", "init", "own")
    assert done.returncode == 0, done.stderr
    checked = cluster.run(
        "hpcml", "submit", "--site", "own", "--nodes", "2", "--gpus-per-node", "4", "--check", "job.py"
    )
    assert checked.returncode == 0, checked.stderr


def test_nothing_stays_of_a_job_that_does_not_start(cluster: Cluster, profiles: Path, shut: str) -> None:
    """Neither when the deadline passes nor after Ctrl-C."""
    words = ("hpcml", "site", "init", "never", "--probe", "--partition", shut)
    late = cluster.run(*words, "--deadline", "2s")
    assert (late.returncode, "did not end in time" in late.stderr) == (65, True), late.stderr
    queue = ("squeue", "--noheader", "--me", "--states=PENDING,RUNNING,COMPLETING")
    assert cluster.run(*queue).stdout == ""
    process = cluster.lab.popen(list(words), cwd=cluster.work)
    try:
        assert wait_for(lambda: "site-ini" in cluster.run(*queue).stdout, 60, 0.2)
        deadline = cluster.run("squeue", "--noheader", "--me", "--Format=deadline").stdout
        assert "T" in deadline, "Slurm itself would end its waiting"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60 * PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert (process.returncode, out, "Interrupted" in err) == (130, "", True), err
    assert cluster.run(*queue).stdout == ""
    left = cluster.run("sh", "-c", f"ls -d {cluster.home}/.hpcml/site-init-* {profiles}/never*").stdout
    assert left == ""
