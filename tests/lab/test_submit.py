"""The user's path on a real Slurm: submit, watch, look, and the same result as on a laptop."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from beside import PART, SMALL
from conftest import ALL_NODES, Cluster, directory_of
from hpcml import errors
from lab_state import wait_for
from terminals import Terminal
from test_exit_status import CONNECT

pytestmark = pytest.mark.lab


@pytest.mark.beside
def test_kmeans_gives_the_laptop_s_result(cluster: Cluster) -> None:
    """`hpcml submit --nodes 4 --wait jobs/workloads/kmeans.py --k 8` on four nodes, and the same script on the local site."""
    folder = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    script = (f"{folder}/workloads/kmeans.py", "--k", "8", "--rows", "20000", "--seed", "5")
    places = (("--nodes", "4", *PART), ("--site", "local"))
    commands = [("hpcml", "submit", *place, "--wait", *script) for place in places]
    metrics, centres = [], []
    for done in cluster.run_together(commands, timeout=300):
        assert done.returncode == 0, done.stderr + done.stdout
        out = directory_of(done) / "out"
        assert (out / "kmeans.png").stat().st_size > 10_000
        assert list((out / "assignments").glob("*.parquet"))
        metrics.append(json.loads((out / "result.json").read_text())["inertia"])
        lines = (out / "centres.csv").read_text().splitlines()[1:]
        centres.append([[float(word) for word in line.split(",")] for line in lines])
    assert len(centres[0]) == 8
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)
    for left, right in zip(*centres, strict=True):
        assert left == pytest.approx(right, rel=1e-6, abs=1e-9)


@pytest.mark.beside
def test_a_script_that_only_says_client(cluster: Cluster) -> None:
    script = "from distributed import Client\nclient = Client()\nprint(len(client.scheduler_info(n_workers=-1)['workers']), client.submit(sum, [1, 2]).result())\n"
    ended = cluster.submit(script, "--nodes", "4", *PART)
    assert ended.code == 0, ended.err
    assert "4 3" in ended.out


@pytest.mark.beside
def test_a_script_that_never_touches_dask(cluster: Cluster) -> None:
    ended = cluster.submit("import socket\nprint('on', socket.gethostname())\n", *SMALL)
    assert ended.code == 0, ended.err
    assert "on n1" in ended.out


@pytest.mark.beside
def test_relative_paths_are_the_user_s_folder_s(cluster: Cluster) -> None:
    cluster.write("data/stars.txt", "sirius\n")
    script = cluster.write("data/read.py", "import hpcml\nread = lambda: open('stars.txt').read()\n"
                           "print(read(), hpcml.connect().submit(read, workers=['n2']).result())\n")  # fmt: skip
    done = cluster.run("hpcml", "submit", *SMALL, "--wait", script.name, cwd=cluster.work / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sirius") == 2


def test_thirty_two_workers(cluster: Cluster) -> None:
    script = "import hpcml\nprint('workers', len(hpcml.connect().scheduler_info(n_workers=-1)['workers']))\n"
    ended = cluster.submit(script, "--nodes", "4", "--set", "workers.per_node=8")
    assert ended.code == 0, ended.err
    assert "workers 32" in ended.out


@pytest.mark.beside
def test_client_restart_gives_the_workers_back(cluster: Cluster) -> None:
    script = ("import hpcml, os\nc = hpcml.connect()\na = set(c.run(os.getpid).values())\nc.restart()\n"
              "b = set(c.run(os.getpid).values())\nprint(len(b), a & b)\n")  # fmt: skip
    ended = cluster.submit(script, "--nodes", "4", *PART)
    assert ended.code == 0, ended.err + ended.log("worker-n2.log")
    assert "4 set()" in ended.out


@pytest.mark.beside
def test_arguments_arrive_unchanged(cluster: Cluster) -> None:
    words = ("--k", "8", "--", "a b", "", "$HOME", "it's", 'say "no"', "back\\slash", "line\nbreak", "--help", "é")
    ended = cluster.submit(
        "import sys, json\nprint(json.dumps(sys.argv[1:]))\n", "--nodes", "1", *PART, arguments=words
    )
    assert json.loads(ended.out) == list(words)


@pytest.mark.beside
@pytest.mark.parametrize("folder", ["plain", "with space", "it's", 'say "no" %j', "naïve-ß"])
def test_paths_of_every_kind(cluster: Cluster, folder: str) -> None:
    """The runs' folder holds spaces, quotes and per cent signs; the script's dollars and backslashes as well."""
    script = cluster.write(
        f"{folder}/$HOME back\\slash/my script.py",
        "import hpcml\nprint(hpcml.connect().submit(sum, [20, 22]).result())\n",
    )
    runs = cluster.work / folder / "runs"
    done = cluster.run("hpcml", "submit", *SMALL, "--wait", str(script), cwd=script.parent,
                       env={"HPCML_PATHS__RUNS": str(runs)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout
    assert directory_of(done).parent == runs
    assert {path.name for path in directory_of(done).glob("logs/*")} == {
        "job.log", "driver.log", "scheduler.log", "worker-n1.log", "worker-n2.log"}  # fmt: skip


@pytest.mark.beside
def test_gpus_are_asked_for_and_seen(cluster: Cluster) -> None:
    """The lab's GPUs are null devices: Slurm hands them out, and the nodes are refused in words."""
    for style in ("gres", "gpus-per-node"):
        ended = cluster.submit("print('the script ran')", *SMALL, "--gpus-per-node", "4", "--set",
                               f"slurm.gpu_request={style}")  # fmt: skip
        assert ended.code == errors.WORKERS_NEVER_CAME
        assert "the script ran" not in ended.out
        assert ": no GPU can be seen" in ended.err
        probes = [json.loads(path.read_text()) for path in ended.directory.glob("attempts/0/probe/*.json")]
        assert {probe["visible_devices"] for probe in probes} == {"0,1,2,3"}


def test_submit_from_inside_a_job(cluster: Cluster) -> None:
    """What the outer job set (SLURM_*, SBATCH_*) does not reach the inner one."""
    script = cluster.write("inner.py", "import hpcml\nprint('inner', hpcml.run.nodes)\n")
    outer = cluster.write(
        "outer.sh", f"#!/bin/bash\nexport SBATCH_PARTITION=nowhere\nhpcml submit --nodes 2 --detach --json {script}\n"
    )
    done = cluster.run(
        *("sbatch", "--parsable", "--wait", "-N1", "-n1", "--mem=100M"),
        *(f"--output={cluster.work}/outer.log", f"--error={cluster.work}/outer.err", str(outer)),
    )
    assert done.returncode == 0, (cluster.work / "outer.log").read_text()
    directory = Path(json.loads((cluster.work / "outer.log").read_text())["directory"])
    assert cluster.wait_status(directory)["exit_status"] == 0
    assert "inner 2" in (directory / "logs/driver.log").read_text()


def test_the_comment_finds_the_job(cluster: Cluster) -> None:
    job, directory = cluster.detach("import time\ntime.sleep(20)\n", "--nodes", "1")
    cluster.wait_event(directory, "driver-started")
    said = cluster.run("squeue", "--me", "--noheader", "--format=%i|%k").stdout
    assert f"{job}|hpcml:{directory.name}" in said


def test_a_pending_job_says_why(cluster: Cluster) -> None:
    hold = "import time\ntime.sleep(60)\n"
    first, _ = cluster.detach(hold, "--nodes", "4")
    cluster.detach(hold, "--nodes", "4", "--name", "second")
    said = re.compile("PENDING: (waiting for free nodes|other jobs go first)")
    shown = ("hpcml", "status", "second")
    assert wait_for(lambda: bool(said.search(cluster.run(*shown).stdout)), 40, 0.3), cluster.run(*shown).stdout
    rows = cluster.run("hpcml", "ls").stdout
    assert first in rows
    assert "PENDING" in rows


def test_ctrl_c_detaches_and_the_run_goes_on(cluster: Cluster) -> None:
    """On a terminal: live progress, Ctrl-C, and the words that lead back."""
    script = "import hpcml, time\nhpcml.connect()\nprint('started', flush=True)\nwhile not (hpcml.run.out / 'go').exists(): time.sleep(0.1)\nprint('done')\n"
    command = shlex.join(cluster.command(script, *SMALL, "--name", "terminal"))
    with Terminal(cluster.lab, command, cwd=cluster.work) as terminal:
        terminal.shown("started\n")
        terminal.type("\x03")
        assert terminal.ended() == 130, terminal.text
    assert "Detached; the run goes on" in terminal.text
    assert "\x1b[K" in terminal.text
    directory = cluster.directory("terminal")
    cluster.run("touch", str(directory / "out/go"))
    assert cluster.wait_status(directory)["exit_status"] == 0
    logs = cluster.run("hpcml", "logs", "terminal")
    assert logs.stdout == "started\ndone\n"


def test_logs_follow_until_the_end(cluster: Cluster) -> None:
    cluster.detach(
        "import time\nfor i in range(5):\n    print('step', i, flush=True)\n    time.sleep(0.4)\n", "--name", "steps"
    )
    done = cluster.run("hpcml", "logs", "-f", "steps")
    assert done.stdout.splitlines() == [f"step {i}" for i in range(5)]
    worker = cluster.run("hpcml", "logs", "steps", "worker")
    assert "==> worker-n1.log <==" in worker.stdout
    assert "Registered to" in worker.stdout


def test_nothing_is_left_on_the_nodes(cluster: Cluster) -> None:
    """Scratch folders are removed when a run ends by itself."""

    def scratch() -> set[tuple[str, str]]:
        return {(node, name) for node in ALL_NODES for name in cluster.run("ls", "/tmp", node=node).stdout.split()}

    before = scratch()
    ended = cluster.submit("import hpcml\nhpcml.connect()\n", "--nodes", "4")
    assert ended.code == 0
    cluster.wait_idle(20)
    assert scratch() <= before


def test_tasks_still_running_do_not_hold_the_nodes(cluster: Cluster) -> None:
    tasks = (
        "futures = client.map(time.sleep, [600] * 8)\nwhile not any(client.processing().values()): time.sleep(0.05)\n"
    )
    ended = cluster.submit(CONNECT + tasks + "print('leaving')\nos._exit(0)\n", *SMALL)
    assert ended.code == 0
    cluster.wait_gone(ended.directory)


def test_check_asks_the_live_controller(cluster: Cluster) -> None:
    script = cluster.write("ok.py", "pass\n")
    done = cluster.run("hpcml", "submit", "--check", "--nodes", "4", str(script))
    assert done.returncode == 0, done.stderr
    assert "Slurm would take it" in done.stdout
    before = [line.split()[0] for line in cluster.run("hpcml", "ls").stdout.splitlines()]
    refused = cluster.run("hpcml", "submit", "--check", "--partition", "nowhere", str(script))
    assert refused.returncode == 65
    assert "There is no such partition" in refused.stderr
    assert [line.split()[0] for line in cluster.run("hpcml", "ls").stdout.splitlines()] == before


@pytest.mark.parametrize("sent", [True, False])
def test_a_lost_answer(cluster: Cluster, sent: bool) -> None:
    """sbatch's answer does not arrive: the job is found by its comment if it exists, and never sent twice."""
    real = cluster.run("sh", "-c", "command -v sbatch").stdout.strip()
    send = f'{real} "$@" >/dev/null' if sent else ":"
    fake = cluster.write("bin/sbatch", f"#!/bin/sh\necho x >>{cluster.work}/calls\n{send}\n"
                         "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\nexit 1\n")  # fmt: skip
    cluster.run("chmod", "755", str(fake))
    cluster.run("rm", "-f", f"{cluster.work}/calls")
    path = f"{fake.parent}:{cluster.run('printenv', 'PATH').stdout.strip()}"
    looks = ("--set", "slurm.timeout=5s")  # for so long the job is looked for
    command = cluster.command("print('ran once')\n", "--nodes", "1", "--wait", *looks, name=f"lost{sent}")
    done = cluster.run(*command, env={"PATH": path}, timeout=120)
    assert (cluster.work / "calls").read_text() == "x\n"
    jobs = cluster.run("squeue", "--me", "--noheader", "--states=all", "--format=%k").stdout
    assert jobs.count(f"hpcml:lost{sent}") == int(sent)
    if sent:
        assert done.returncode == 0, done.stderr
        assert "ran once" in done.stdout
        assert "found again by its comment" in done.stderr
    else:
        assert done.returncode == 76
        assert "It is not known whether Slurm took the job" in done.stderr


def test_a_controller_that_falls_silent(cluster: Cluster) -> None:
    """slurmctld hangs while sbatch asks and answers too late: the job it made all the same is found, and runs once."""
    pid = cluster.lab.state().daemons["slurmctld"].pid
    command = cluster.command("print('ran once')\n", "--nodes", "1", "--wait", "--name", "silent")
    os.kill(pid, signal.SIGSTOP)
    try:
        process = cluster.lab.popen(command, cwd=str(cluster.work), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(13)  # longer than the lab's MessageTimeout of 10 s: sbatch has given up
        assert process.poll() is None
    finally:
        os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=240)
    jobs = cluster.run("squeue", "--me", "--noheader", "--states=all", "--format=%k").stdout
    assert jobs.count("hpcml:silent") == 1
    assert process.returncode == 0, err
    assert "ran once" in out


def test_a_running_run_is_shown_without_the_controller(cluster: Cluster) -> None:
    _, directory = cluster.detach("import time\ntime.sleep(600)\n", "--nodes", "2", "--name", "alone")
    cluster.wait_event(directory, "driver-started")
    pid = cluster.lab.state().daemons["slurmctld"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        asked = [["hpcml", "status", "alone"], ["hpcml", "ls", "--json", "--last", "1"]]
        done, listed = cluster.run_together(asked, timeout=200)  # both wait for Slurm's own time limit
        assert done.returncode == 0, done.stderr
        assert "state      RUNNING: the script runs" in done.stdout
        assert "nodes      n1, n2" in done.stdout
        assert "(all this is from the run's own files)" in done.stdout
        (row,) = json.loads(listed.stdout)
        assert (row["run"], row["state"]) == (directory.name, "RUNNING")
        assert row["silent"]
    finally:
        os.kill(pid, signal.SIGCONT)
    done = cluster.run("hpcml", "status", "alone")
    assert "own files" not in done.stdout


@pytest.mark.parametrize("per_node", [1, 32])
def test_a_run_has_few_files(cluster: Cluster, per_node: int) -> None:
    """However many workers a node has: quotas and file systems count files."""
    script = "import hpcml\nprint(len(hpcml.connect().scheduler_info(n_workers=-1)['workers']), 'workers')\n"
    ended = cluster.submit(script, "--nodes", "4", "--set", f"workers.per_node={per_node}",
                           "--set", "workers.memory_limit=400MB")  # fmt: skip
    assert f"{4 * per_node} workers" in ended.out, ended.err
    files = [str(path.relative_to(ended.directory)) for path in ended.directory.rglob("*") if path.is_file()]
    own = [name for name in files if not name.startswith("code/")]  # other tests' scripts lie beside this one
    assert len(own) < 40, sorted(own)


def test_numbers_that_slurm_gives_again(cluster: Cluster) -> None:
    """The controller loses its state and begins with the first number: no run believes a job without its comment."""
    cluster.lab.down()
    cluster.lab.up()
    names = ("lost", "mine", "theirs")
    jobs = {name: cluster.detach("print(1)", "--sbatch=--begin=now+1hour", "--name", name)[0] for name in names}
    assert "is being cancelled" in cluster.run("hpcml", "cancel", "mine").stdout
    assert cluster.run("scancel", jobs["theirs"]).returncode == 0
    assert cluster.run("hpcml", "wait", "theirs").returncode == errors.CANCELLED
    cluster.lab.down()
    cluster.lab.up()
    hold = ("sbatch", "--parsable", "--wrap=sleep 600", "--output=/dev/null")
    strangers = [cluster.run(*hold).stdout.strip() for _ in names]
    assert strangers == list(jobs.values()), "the numbers are used again"
    for name, state, words in (
        ("lost", "FAILED", f"job {jobs['lost']} is another one now"),
        ("mine", "CANCELLED", "you cancelled it with hpcml cancel at "),
        ("theirs", "CANCELLED", "the job was cancelled (scancel) before it started"),
    ):
        facts = json.loads(cluster.run("hpcml", "status", name, "--json").stdout)
        assert facts["state"] == state
        assert words in facts["message"]
        rows = json.loads(cluster.run("hpcml", "ls", "--json", "--name", name).stdout)
        assert rows[-1]["state"] == state
        assert "paths.runs" not in cluster.run("hpcml", "why", name).stdout
        assert "has ended already" in cluster.run("hpcml", "cancel", name).stdout
    left = cluster.run("squeue", "--me", "--noheader", "--states=pending,running", "--format=%i").stdout.split()
    assert sorted(left) == sorted(strangers)
