"""Failures of time, files, memory and nodes, staged side by side on a real Slurm: `hpcml why` names the cause of each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import ALL_NODES, Cluster
from lab_state import wait_for
from staged import record
from test_exit_status import why
from test_losses import environment

pytestmark = pytest.mark.lab

CONNECT = "import hpcml, os, subprocess, sys, time\nclient = hpcml.connect()\n"
WAITS = f"{CONNECT}time.sleep(300)\n"
GO = f"{CONNECT}while not (hpcml.run.out / 'go').exists():\n    time.sleep(0.1)\n"
EACH = "for worker in client.scheduler_info(n_workers=-1)['workers']:\n    client.submit(f, workers=[worker], pure=False).result()\n"
SHARED = """from multiprocessing.shared_memory import SharedMemory
def fill():
    shared = SharedMemory(create=True, size=10**8)
    shared.buf[:] = bytes(10**8)
"""
FILES = "def f(n):\n    open(f'{}/{{n}}', 'w').close()\n"
PLACE = Path("/tmp/hpcml-test-why")  # node-local: each node has its own
PYTHON, HANGS, OLD, TOOLS = PLACE / "python", PLACE / "hangs", PLACE / "old", PLACE / "tools"
FULL, FROZEN, DIES = PLACE / "full", PLACE / "frozen", PLACE / "dies"
SMALL = ("--cpus-per-node", "2", "--memory-per-node", "950M")  # several fit on a node beside each other
ONE = ("--nodes", "1", *SMALL)
N3 = (*ONE, "--nodelist", "n3")
N4 = (*ONE, "--nodelist", "n4")
BOTH = ("--nodes", "2", "--nodelist", "n3,n4", *SMALL)
LIMITED = ("--time", "30", "--set", "slurm.signal_lead=5s")  # until each is as far as it is to come: see `limit`
SAID_FROZEN = "has been blocked on a file system for"


def awaiting(role: str, deadline: str) -> tuple[str, ...]:
    """Return options of a run whose role never gets beyond its start."""
    hangs = ("--set", f"runtime.python={HANGS}", "--set", f"environment.HPCML_TEST_HANGS={role}")
    return (*hangs, "--set", f"deadlines.{deadline}=900s")


class Stage(NamedTuple):
    """A failure: the script, its options, and what the cause says.

    ``limit`` is a line of the run's diary, in part: when it is there, the run's time limit comes.
    """

    script: str
    options: tuple[str, ...]
    says: str
    nodes: tuple[str, ...] = ()
    limit: str = ""


STAGES = {
    "time limit in the tear-down": Stage(
        f"{GO}sys.exit(3)\n", (*ONE, *LIMITED, "--set", "deadlines.teardown=300s"), "exited with status 3",
        limit="script-ended",
    ),
    "file system frozen": Stage(
        f"{GO}open('{FROZEN}/mount/data', 'rb').read()\n", (*N3, *LIMITED), "the script was blocked on a file system", ("n3",),
        limit=SAID_FROZEN,
    ),
    "file system's program has ended": Stage(
        f"{GO}open('{DIES}/mount/data', 'rb').read()\n", N3, "program that provides a mounted file system"
    ),
    "/dev/shm full, task": Stage(f"{CONNECT}{SHARED}client.submit(fill).result()\n", N4, "/dev/shm is full", ("n4",)),
    "no inodes, script": Stage(f"{FILES.format(FULL)}for n in range(99):\n    f(n)\n", N4, "can hold no more files"),
    "no inodes, task": Stage(
        f"{CONNECT}{FILES.format(FULL)}client.gather(client.map(f, range(99)))\n", N4, "can hold no more files", ("n4",)
    ),
    "module missing on one node": Stage(
        f"{CONNECT}def f():\n    sys.path.insert(0, '{TOOLS}')\n    import hpcml_test_tool\n{EACH}", BOTH,
        "a process of the run could not import hpcml_test_tool", ("n4",),
    ),
    "other versions on one node": Stage("import dask\n", (*BOTH, "--set", f"runtime.python={OLD}"), "missing in the workers on n4"),
    "wrong interface": Stage("import dask\n", (*BOTH, "--set", "network.interface=ib7"), "interface ib7 has no IPv4 address"),
    "scheduler out of memory": Stage(
        f"{CONNECT}client.run_on_scheduler(lambda: [bytearray(10**7) for _ in range(10**4)])\n",
        ("--nodes", "1", "--memory-per-node", "900M", "--cpus-per-node", "2", "--set", "workers.memory_limit=300M"),
        "the scheduler was killed because the node's memory limit was reached",
    ),
}  # fmt: skip


def interpreters(cluster: Cluster) -> None:
    """Put interpreters in place: one that hangs in a role, and what n4 alone lacks or has in another version."""
    plain = 'exec "$(command -v python)" "$@"'
    for node in ALL_NODES:
        cluster.program(node, HANGS, f'case "$*" in *"$HPCML_TEST_HANGS") sleep 1000;; esac\n{plain}')
        cluster.program(node, OLD, 'exec /usr/bin/python3 "$@"' if node == "n4" else plain)
        if node != "n4":
            cluster.program(node, TOOLS / "hpcml_test_tool.py", "")  # to Python, its first line is a comment


@contextmanager
def mounted(cluster: Cluster, place: Path) -> Iterator[int]:
    """Mount a file system on n3 whose program is a process: yield its pid."""
    made = cluster.run("sh", "-ec", f"umount --lazy {place}/mount 2>/dev/null || true; mkdir -p {place}/in {place}/mount; chmod 755 {place} {place}/mount; "
         f"head -c 9000000 /dev/urandom > {place}/in/data; mksquashfs {place}/in {place}/image -quiet -noappend", node="n3", user="root")  # fmt: skip
    assert made.returncode == 0, made.stderr
    with cluster.lab.popen(
        ["squashfuse", "-f", "-o", "allow_other", f"{place}/image", f"{place}/mount"], node="n3", user="root"
    ) as program:
        try:
            there = ("test", "-e", f"{place}/mount/data")
            assert wait_for(lambda: cluster.run(*there, node="n3").returncode == 0, 30)
            yield program.pid
        finally:
            program.kill()
            cluster.run("umount", "--lazy", f"{place}/mount", node="n3", user="root")


@contextmanager
def staged(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Make the nodes such that the stages fail; yield the programs of n3's two file systems."""
    with ExitStack() as stack:
        for node in ALL_NODES:
            stack.callback(cluster.run, "rm", "-rf", str(PLACE), node=node, user="root")
        interpreters(cluster)
        stack.enter_context(cluster.covered("n4", "mount -t tmpfs -o size=1m none /dev/shm", "/dev/shm"))
        small = f"mkdir -p {FULL}; mount -t tmpfs -o nr_inodes=8,mode=777 none {FULL}"
        stack.enter_context(cluster.covered("n4", small, str(FULL)))
        pids = [stack.enter_context(mounted(cluster, place)) for place in (FROZEN, DIES)]
        yield pids[0], pids[1]


def stop_workers_step(cluster: Cluster, directory: Path) -> None:
    """Stop the srun of a run's workers, so that its tear-down lasts."""
    drivers = [pid for pid, line in cluster.processes() if line.endswith("hpcml.kinds supervisor")]
    found = [words for pid in drivers if (words := environment(pid)).get("HPCML_RUN_DIR") == str(directory)]
    os.kill(int(found[0]["HPCML_STEPS"].split()[1]), signal.SIGSTOP)


def limit(cluster: Cluster, directory: Path, words: str) -> None:
    """Have a run's time limit come within a minute of when its diary has these words."""
    diary = directory / "events.jsonl"
    assert wait_for(lambda: diary.exists() and words in diary.read_text(), 90), f"no {words}: {directory}"
    cluster.limit(directory)


def answer(cluster: Cluster, directory: Path, seconds: float) -> dict[str, Any]:
    """Return what `hpcml why` says of a run when it has ended."""
    assert wait_for(lambda: why(cluster, directory)["state"] not in ("PENDING", "RUNNING"), seconds, 1), directory
    return why(cluster, directory)


@pytest.fixture(scope="module")
def answers(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What `hpcml why` says of all stages, which ran beside each other."""
    cluster.wait_idle(60)
    with staged(cluster) as (frozen, dies):
        started = {name: cluster.detach(stage.script, *stage.options)[1] for name, stage in STAGES.items()}
        waits = [name for name, stage in STAGES.items() if stage.script.startswith(GO)]
        for name in waits:
            cluster.wait_event(started[name], "script-started", 120)
        os.kill(frozen, signal.SIGSTOP)
        os.kill(dies, signal.SIGKILL)
        stop_workers_step(cluster, started["time limit in the tear-down"])
        for name in waits:
            cluster.run("touch", str(started[name] / "out/go"))
        for name, directory in started.items():
            if STAGES[name].limit:
                limit(cluster, directory, STAGES[name].limit)
        return {name: answer(cluster, directory, 200) for name, directory in started.items()}


@pytest.mark.parametrize("name", STAGES)
def test_a_staged_failure_names_its_cause(answers: dict[str, dict[str, Any]], name: str) -> None:
    stage, found = STAGES[name], answers[name]
    record(name, found, stage.says)
    assert found["known"], found
    assert stage.says in found["cause"]
    assert set(found["nodes"]) >= set(stage.nodes)


def test_a_controller_that_was_away_is_not_the_cause(cluster: Cluster) -> None:
    """The script fails meanwhile: asked then and afterwards, its own error is the cause."""
    _, directory = cluster.detach(f"{GO}raise ValueError('of its own')\n", *ONE)
    cluster.wait_event(directory, "script-started", 60)
    services = cluster.lab.services()
    controller = services.state.daemons["slurmctld"]
    kept = cluster.lab.places.top / "state/job_state"  # of a job that is not in it yet the number is given again
    assert wait_for(lambda: kept.exists() and directory.name.encode() in kept.read_bytes(), 120, 0.2)
    os.kill(controller.pid, signal.SIGKILL)
    try:
        assert wait_for(lambda: not controller.alive, 20)
        cluster.run("touch", str(directory / "out/go"))
        cluster.wait_status(directory)
        meanwhile = why(cluster, directory)
    finally:
        services.start_controller()
    found = why(cluster, directory)
    record("controller restarted", found, "ValueError: of its own")
    assert (meanwhile["cause"], found["cause"]) == ("the script raised ValueError: of its own",) * 2


TWO = ("--nodes", "2", "--cpus-per-node", "1", "--memory-per-node", "780M")
N1_N2 = (*TWO, "--nodelist", "n1,n2")
# The runs that lose n2, and the event until which each has come.
DOWN = {
    "node down while workers are awaited": Stage(WAITS, (*N1_N2, *awaiting("worker", "workers")), "scheduler-up", ("n2",)),
    "node down in the script": Stage(WAITS, N1_N2, "script-started", ("n2",)),
    "node down in the script, on_loss=fail": Stage(WAITS, (*N1_N2, "--set", "workers.on_loss=fail"), "script-started", ("n2",)),
    "node down in the tear-down": Stage(f"{GO}sys.exit(3)\n", (*N1_N2, "--set", "deadlines.teardown=300s"), "script-started"),
    "first node down": Stage(WAITS, (*TWO, "--nodelist", "n2,n3"), "script-started", ("n2",)),
}  # fmt: skip


def test_a_node_that_goes_down_is_the_cause_in_each_phase(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """All of them lose the same node at the same moment; a script that had ended before has its own end."""
    interpreters(cluster)
    started = {name: cluster.detach(stage.script, *stage.options)[1] for name, stage in DOWN.items()}
    for name, stage in DOWN.items():
        cluster.wait_event(started[name], stage.says, 60)
    ending = started["node down in the tear-down"]
    stop_workers_step(cluster, ending)
    cluster.run("touch", str(ending / "out/go"))
    cluster.wait_event(ending, "script-ended", 30)
    cluster.lab.node_down("n2", crash=True, tell=True)
    try:
        for name, stage in DOWN.items():
            found = answer(cluster, started[name], 120)
            says = "node failed" if stage.nodes else "exited with status 3"
            record(name, found, says)
            with subtests.test(name):
                assert (found["known"], found["nodes"]) == (True, list(stage.nodes)), found
                assert says in found["cause"], found
    finally:
        cluster.lab.node_up("n2")
        for node in ALL_NODES:
            cluster.run("rm", "-rf", str(PLACE), node=node, user="root")


CRASHES = """import ctypes, json, os
by_name = {facts["name"]: address for address, facts in client.scheduler_info(n_workers=-1)["workers"].items()}
def crash(how):
    how()
first = client.submit(crash, os.abort, workers=[by_name["n1"]])
while by_name["n1"] in client.scheduler_info(n_workers=-1)["workers"]:
    time.sleep(0.1)
while not json.loads((hpcml.run.out.parent / "attempts/0/nodes/n1.json").read_text())["deaths"]:
    time.sleep(0.1)
time.sleep(5)  # longer than what is not known of the clocks
client.submit(ctypes.string_at, 0, workers=[by_name["n2"]]).result()
"""


def test_the_first_of_two_crashes_is_the_cause_though_a_clock_is_wrong(cluster: Cluster) -> None:
    """The clock of n2's roles is a minute and a half behind; its worker crashes some seconds after n1's."""
    shift = -90
    for node in ALL_NODES:
        lines = f"import time\nreal = time.time\ntime.time = lambda: real() + {shift}"
        cluster.program(node, PLACE / "sitecustomize.py", lines)  # to Python, its first line is a comment
        path = f'PYTHONPATH="{PLACE}:$PYTHONPATH" ' if node == "n2" else ""
        cluster.program(node, PYTHON, f'{path}exec "$(command -v python)" "$@"')
    options = ("--set", f"runtime.python={PYTHON}", "--set", "workers.restarts=0", "--nodelist", "n1,n2")
    ended = cluster.submit(CONNECT + CRASHES, "--nodes", "2", *options)
    for node in ALL_NODES:
        cluster.run("rm", "-rf", str(PLACE), node=node, user="root")
    measured = {event["node"]: event for event in ended.events if event["event"] == "clock"}["n2"]
    assert abs(measured["ahead"] - shift) <= measured["within"] + 0.01, measured
    found = why(cluster, ended.directory)
    record(f"crash of the first of two workers, a clock {shift} s wrong", found, "abort")
    assert (found["rule"], found["nodes"]) == ("abort", ["n1"]), found
