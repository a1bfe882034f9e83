"""Ranks on this machine: what each gets, how the first failure ends the others, and what is left of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from homes import Here, here, report
from hpcml import errors

pytestmark = pytest.mark.local

__all__ = ["here"]

# Rank 0 is the master of a world that all ranks join by the variables alone, over MASTER_ADDR and MASTER_PORT.
MEET = """
import json, os, socket, sys
import hpcml
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.socket() as probe:
    in_use = rank == 0 and probe.connect_ex(place) == 0  # accelerate refuses such a port
if rank == 0:
    server = socket.create_server(place, backlog=size)
    joined = [server.accept()[0] for _ in range(size - 1)]
    told = [json.loads(one.makefile().readline()) for one in joined]
else:
    told = []
    while True:
        try:
            master = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            pass
me = {"rank": rank, "in_use": in_use, "processors": sorted(os.sched_getaffinity(0)), "folder": os.getcwd(),
      "argv": sys.argv[1:], "variables": dict(os.environ)}
if rank:
    master.sendall(json.dumps(me).encode() + b"\\n")
    sys.exit()
(hpcml.run.out / "ranks.json").write_text(json.dumps([me, *told]))
print("met", size)
"""
# Rank 2 fails as Gloo does where another rank does not come; the others would wait for ever, rank 1 with a child that
# answers no signal.
FAILS = """
import os, subprocess, time
rank = int(os.environ["RANK"])
print(f"rank {rank} speaks", flush=True)
if rank == 1:
    subprocess.Popen(["sh", "-c", "trap '' TERM; echo $$ >new; mv new child; while :; do sleep 1; done"])
if rank != 2:
    time.sleep(1)  # a younger process is not asked for its stacks
    open(f"old{rank}", "w").close()
while rank == 2 and not all(map(os.path.exists, ("child", "old0", "old1", "old3"))): time.sleep(0.05)
if rank == 2:
    raise RuntimeError("Timed out waiting 7ms for recv operation to complete")
while True: time.sleep(1)
"""
# Both ranks fail at once, each in its own way.
DIFFER = """
import os, time
rank = os.environ["RANK"]
open(f"at{rank}", "w").close()
while not all(map(os.path.exists, ("at0", "at1"))): time.sleep(0.01)
if rank == "0":
    raise ValueError("bad batch")
os._exit(7)
"""
# Rank 1 ends with a number that once meant something to hpcml's agent.
ENDS = """
import os, sys, time
with open("began", "a") as file:
    file.write(os.environ["RANK"] + "\\n")
while os.environ["RANK"] == "0" and open("began").read().count("\\n") < 2: time.sleep(0.05)
if os.environ["RANK"] == "1":
    sys.exit(3)
while True: time.sleep(1)
"""
# What saves when it is told to: rank 0 decides, and the others follow it by a file.
STOPS = """
import os, sys, time
import hpcml
rank, folder = int(os.environ["RANK"]), hpcml.run.checkpoint_dir
saved = hpcml.run.saved("step.txt")
if saved:
    print("continued at", saved.read_text(), flush=True)
    sys.exit()
while rank == 0 and not hpcml.run.should_stop(): time.sleep(0.05)
if rank == 0:
    hpcml.run.save("step.txt", lambda path: path.write_text("7"))
while not (folder / "step.txt").exists(): time.sleep(0.05)
hpcml.run.stop()
"""


def test_all_ranks_meet_by_their_variables_alone(here: Here) -> None:
    options = ("--nodes", "2", "--ranks", "2", "--env", "GLOO_SOCKET_IFNAME=^lo", "--env", "OMP_NUM_THREADS=3")
    done = here.run("submit", "--wait", *options, here.script(MEET), "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "met 4\n"
    status = here.json("status")
    run = Path(status["directory"])
    ranks = json.loads((run / "out/ranks.json").read_text())
    assert sorted(one["rank"] for one in ranks) == [0, 1, 2, 3]
    assert {(tuple(one["argv"]), one["folder"], one["in_use"]) for one in ranks} == {
        (("--lr", "0.1"), str(here.folder), False)
    }
    variables = {one["rank"]: one["variables"] for one in ranks}
    places = {rank: (one["NODE_RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for rank, one in variables.items()}
    assert places == {0: ("0", "0", "2"), 1: ("0", "1", "2"), 2: ("1", "0", "2"), 3: ("1", "1", "2")}
    assert {one["OMP_NUM_THREADS"] for one in variables.values()} == {"3"}
    assert {one["GLOO_SOCKET_IFNAME"] for one in variables.values()} == {"lo"}
    assert not any(name.startswith(("HPCML_STEPS", "HPCML_BATCH", "PET_")) for name in variables[0])
    allowed, shares = os.sched_getaffinity(0), [set(one["processors"]) for one in ranks]
    if len(allowed) >= len(ranks):
        assert sum(map(len, shares)) == len(set().union(*shares))
    else:
        assert all(share == allowed for share in shares)

    assert (status["workers"], status["expected"], status["state"]) == (4, 4, "COMPLETED")
    assert (status["address"], status["protocol"]) == ("127.0.0.1", "")
    assert "TCPStore, Gloo, NCCL, UCX or MPI can connect" in status["security"]
    assert any("ignores GLOO_SOCKET_IFNAME=^lo and uses lo" in one for one in status["warnings"])
    assert report(run)["ledger"]["paid"] > 0
    assert "Dask" not in (run / "report.html").read_text()
    assert list((run / "attempts/0/secret").iterdir()) == []


def test_the_first_rank_that_fails_is_named_and_nothing_is_left(here: Here) -> None:
    done = here.submit(FAILS, "--nodes", "2", "--ranks", "2")
    assert done.returncode == 1
    status = here.status()
    assert status["message"] == "rank 2 on local exited with status 1"
    assert (status["rank"], status["node"], status["log"]) == (2, "local", "rank-local-2.log")
    assert (Path(status["directory"]) / "logs/script.log").read_text() == "rank 0 speaks\n"
    assert "RuntimeError: Timed out waiting 7ms for recv" in done.stdout
    assert "rank 0 speaks" in done.stdout
    together = here.run("logs").stdout.splitlines()
    assert {f"rank {rank} | rank {rank} speaks" for rank in range(4)} <= set(together)
    assert here.run("logs", "last", "rank:3").stdout == "rank 3 speaks\n"
    answer = here.json("why")
    assert "in time; rank 2 on local waited for it" in answer["cause"]
    assert (answer["rank"], answer["node"], answer["log"]) == (2, "local", "logs/rank-local-2.log")
    assert (answer["ranks"], answer["occurrences"]) == ([2], 1)
    assert "3 processes at my script.py:13 <module>: rank 0 (local), rank 1 (local), rank 3 (local)" in [
        line["text"] for line in answer["evidence"]
    ]
    here.until(lambda: not [line for line in here.processes().values() if "while :" in line])


def test_a_rank_that_fails_at_once_in_another_way_is_named_beside_the_first(here: Here) -> None:
    done = here.submit(DIFFER, "--ranks", "2")
    clauses = ["raised ValueError: bad batch", "exited with status 7"]
    status, answer = here.status(), here.json("why")
    other = 1 - status["rank"]
    also = {"rank": other, "node": "local", "status": [1, 7][other], "clause": clauses[other]}
    assert (status["others"], answer["others"]) == ([also], [also])
    assert done.returncode == [1, 7][status["rank"]]
    for command in ("status", "why"):
        assert f"also       rank {other} on local {clauses[other]}\n" in here.run(command).stdout


# Rank 0 ends at once, and rank 1 never.
HALF = """
import os, time
if os.environ["RANK"] == "0":
    with open("first", "w") as file:
        file.write(str(os.getpid()))
    os.rename("first", "ended")
    os._exit(0)
while not os.path.exists("ended") or os.path.exists("/proc/" + open("ended").read()): time.sleep(0.05)
open("waits", "w").close()
time.sleep(600)
"""


def test_a_run_that_is_cancelled_after_rank_0_has_ended_is_no_success(here: Here) -> None:
    first = here.started(HALF, "--ranks", "2")
    here.until((here.folder / "waits").exists, 60)
    _, second = here.detach("print(1)", "--after", first.name)
    here.run("cancel", first.name)
    assert here.run("wait", first.name).returncode == errors.CANCELLED
    status = here.status(first.name)
    assert (status["state"], status["killed_ranks"]) == ("CANCELLED", [1])
    shown = here.run("status", first.name).stdout + here.run("why", first.name).stdout
    assert shown.count("rank 1 was killed before it finished") == 2
    assert here.ended(second)["exit_status"] == errors.CANCELLED, "it waited for a run that did not succeed"


def test_a_rank_begins_once_whatever_its_exit_status(here: Here) -> None:
    done = here.submit(ENDS, "--ranks", "2")
    assert done.returncode == 3, done.stderr
    assert here.status()["message"] == "rank 1 on local exited with status 3"
    assert sorted((here.folder / "began").read_text().split()) == ["0", "1"]


def test_ranks_that_save_before_the_limit_continue_in_the_next_attempt(here: Here) -> None:
    for seconds in (15, 60):  # a busy machine may need more time until the ranks run
        done = here.submit(STOPS, "--ranks", "2", "--time", f"{seconds}s", "--until-done", "--max-restarts", "1")
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    assert "continued at 7" in done.stdout
    assert here.status()["attempt"] == 1


def test_a_rank_that_cannot_be_started_says_which_program(here: Here) -> None:
    program = here.folder / "a program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    done = here.run("submit", "--wait", "--ranks", "2", "--", f"./{program.name}")
    assert done.returncode == 127
    assert "be started: No such file or directory" in done.stdout + done.stderr


def test_two_runs_at_once_have_ports_of_their_own(here: Here) -> None:
    (here.folder / "meet.py").write_text(MEET)
    runs = [
        Path(json.loads(here.run("submit", "--json", "--ranks", "2", "meet.py").stdout)["directory"]) for _ in range(2)
    ]
    assert [here.ended(run)["exit_status"] for run in runs] == [0, 0]
    ports = {json.loads((run / "out/ranks.json").read_text())[0]["variables"]["MASTER_PORT"] for run in runs}
    assert len(ports) == 2


def test_a_rank_that_crashes_is_told_once_with_what_it_said_before(here: Here) -> None:
    text = (
        "import os, sys, time\n"
        "if os.environ['RANK'] != '1': time.sleep(100)\n"
        "print('OpenBLAS blas_thread_init: failed to start', sys.argv[1], file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), 11) if sys.argv[1] == 'kill' else os.abort()\n"
    )
    for word, name in (("kill", "SIGSEGV"), ("abort", "SIGABRT")):
        here.run("submit", "--wait", "--ranks", "2", here.script(text), word)
        found = here.json("why")
        said = f"OpenBLAS blas_thread_init: failed to start {word}"
        assert found["cause"] == f"rank 1 on local was killed by {name}; before that it printed: {said}"
        assert (found["occurrences"], found["log"]) == (1, "logs/rank-local-1.log")
        assert found["evidence"][0]["text"] == said


def test_a_program_that_says_why_and_ends_by_a_status(here: Here) -> None:
    program = here.folder / "program"
    for line, status, words in (
        ("./prog: error while loading shared libraries: libcudart.so.12: cannot open shared object file", 127, "libcudart.so.12"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60", 1, "two ranks use the same GPU"),
    ):  # fmt: skip
        program.write_text(f"#!/bin/sh\necho '{line}' >&2\necho ======== >&2\nexit {status}\n")
        program.chmod(0o700)
        assert here.run("submit", "--wait", "--ranks", "1", "--", "./program").returncode == status
        found = here.json("why")
        assert words in found["cause"]
        assert found["cause"].startswith(f"rank 0 on local exited with status {status}: ")
