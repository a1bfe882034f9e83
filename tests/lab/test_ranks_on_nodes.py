"""Ranks on four nodes: one world by an address that all reach, ends of single ranks and nodes, and another account.

No lower tier has more than one node, a cgroup's memory, or Slurm's own variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from pathlib import Path

import pytest

import mallory
from beside import PART, SMALL
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import wait_for
from test_losses import roles

pytestmark = [pytest.mark.lab, pytest.mark.beside]

FOUR = ("--nodes", "4", *PART, "--ranks", "2")
MPI = (*SMALL, "--ranks", "2")
# Rank 0 waits for the others at MASTER_ADDR; each tells what it is by both sets of variables.
MEET = """
import json, os, socket, sys
import hpcml
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
names = ("PROCID", "NTASKS", "LOCALID", "NODEID", "STEP_NUM_TASKS")
me = {"rank": [rank, size, int(os.environ["LOCAL_RANK"]), int(os.environ["NODE_RANK"]), size],
      "slurm": [int(os.environ["SLURM_" + name]) for name in names], "host": os.uname().nodename,
      "processors": len(os.sched_getaffinity(0)), "place": place, "interface": os.environ["NCCL_SOCKET_IFNAME"],
      "pmi": [name for name in os.environ if name.startswith(("PMI", "PMIX"))]}
if rank:
    while True:
        try:
            master = socket.create_connection(place)
            break
        except ConnectionRefusedError: pass
    master.sendall(json.dumps(me).encode() + b"\\n")
    sys.exit()
in_use = socket.socket().connect_ex(place) == 0
server = socket.create_server(place, backlog=size)
told = [json.loads(server.accept()[0].makefile().readline()) for _ in range(size - 1)]
(hpcml.run.out / "ranks.json").write_text(json.dumps({"ranks": [me, *told], "in_use": in_use}))
"""
# Rank 3 takes more memory than there is; the others wait for ever, and rank 6 has a child in another session.
FAILS = """
import os, subprocess, sys, time
rank = int(os.environ["RANK"])
if rank == 6:
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; echo $$ >$0.new; mv $0.new $0; sleep 1000",
                      sys.argv[1]])
while rank == 3 and not os.path.exists(sys.argv[1]): time.sleep(0.05)
if rank == 3:
    taken = [bytes(1) * (32 << 20) for _ in range(64)]
    sys.exit("there was enough")
time.sleep(1000)
"""
# Rank 3 starts a program that takes more memory than there is.
HAS_A_CHILD = """
import os, subprocess, sys, time
if os.environ["RANK"] == "3":
    subprocess.run([sys.executable, "-c", "taken = [bytes(1) * (32 << 20) for _ in range(64)]"], check=True)
time.sleep(1000)
"""
# A real MPI without mpi4py and compiler: constants are numbers in MPICH and objects of the library in Open MPI.
LIBRARIES = {"pmix": "libmpi.so.40", "pmi2": "libmpich.so.12"}
ALLREDUCE = """
import ctypes, os, sys, time
import hpcml
mpi = ctypes.CDLL(sys.argv[1])
names = ("ompi_mpi_comm_world", "ompi_mpi_int", "ompi_mpi_op_sum")
mpich = 0x44000000, 0x4c000405, 0x58000003
world, kind, add = mpich if "mpich" in sys.argv[1] else [ctypes.byref(ctypes.c_void_p.in_dll(mpi, name)) for name in names]
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
assert rank.value == int(os.environ["RANK"])
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(10 ** rank.value)), ctypes.byref(total), 1, kind, add, world)
(hpcml.run.out / str(rank.value)).write_text(f"{size.value} {total.value} {os.uname().nodename}")
if len(sys.argv) > 2 and rank.value == 3: os._exit(int(sys.argv[2]))
if len(sys.argv) > 2: time.sleep(1000)
mpi.MPI_Finalize()
"""
LARGE = ("--nodes", "2", "--nodelist", "n1,n2", "--cpus-per-node", "2", "--memory-per-node", "1800M")  # for PyTorch
ENVIRONMENT = """
import json, os, hpcml
(hpcml.run.out / os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""
TORCHRUN = os.environ.get("HPCML_TEST_TORCHRUN", "torchrun")  # one that alice can start on the nodes
MEETS_AND_WAITS = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
(pathlib.Path(sys.argv[1]) / os.environ["RANK"]).write_text(str(total.item()))
while not os.path.exists(sys.argv[1] + "/end"): time.sleep(0.05)
dist.destroy_process_group()
"""
WAITS = """
import os, time, hpcml
print("here", flush=True)
(hpcml.run.out / os.environ["RANK"]).touch()
time.sleep(1000)
"""


def kinds_of_pmi(cluster: Cluster) -> str:
    return cluster.run("srun", "--mpi=list").stdout


def library(cluster: Cluster, kind: str) -> str:
    """Return the library of an MPI that speaks a kind of PMI, skip where it or Slurm's part is missing."""
    if kind not in kinds_of_pmi(cluster):
        pytest.skip(f"this Slurm has no {kind}")
    try:
        ctypes.CDLL(LIBRARIES[kind])
    except OSError:
        pytest.skip(f"no {LIBRARIES[kind]} here")
    return LIBRARIES[kind]


def test_eight_ranks_on_four_nodes_are_one_world(cluster: Cluster) -> None:
    """Also where a machine's own name is 127.0.1.1 in Debian's /etc/hosts (pytorch#79388).

    And where MpiDefault or SLURM_MPI_TYPE is a kind of PMI, so that each agent is a task of MPI: its PMI is not the ranks'.
    """
    agents = ("--set", 'slurm.srun_extra=["--mpi=pmix"]') if "pmix" in kinds_of_pmi(cluster) else ()
    add = 'cp /etc/hosts /tmp/hosts; echo "127.0.1.1 $(uname -n)" >/tmp/hosts.new; cat /tmp/hosts >>/tmp/hosts.new'
    with contextlib.ExitStack() as covered:
        for node in ALL_NODES:
            covered.enter_context(cluster.covered(node, f"{add}; mount --bind /tmp/hosts.new /etc/hosts", "/etc/hosts"))
        run = cluster.submit(MEET, *FOUR, *agents)
    assert run.code == 0, (run.out, run.err)
    answer = json.loads((run.directory / "out/ranks.json").read_text())
    ranks = {one["rank"][0]: one for one in answer["ranks"]}
    assert sorted(ranks) == list(range(8))
    for number, one in ranks.items():
        assert one["rank"] == one["slurm"] == [number, 8, number % 2, number // 2, 8]
        assert (one["host"], one["processors"]) == (ALL_NODES[number // 2], 1)
    assert {tuple(one["place"]) for one in ranks.values()} == {tuple(ranks[0]["place"])}
    assert not ranks[0]["place"][0].startswith("127.")
    assert not answer["in_use"]
    assert len({one["interface"] for one in ranks.values()}) == 1
    assert not any(one["pmi"] for one in ranks.values())


def test_the_first_rank_that_fails_ends_all(cluster: Cluster) -> None:
    path = cluster.work / "child"
    run = cluster.submit(FAILS, *FOUR, arguments=(str(path),))
    assert run.code == 137, run.err
    assert "on n2 was killed because the node's memory" in run.status["message"]
    found = json.loads(cluster.run("hpcml", "why", run.directory.name, "--json").stdout)
    assert "on n2 was killed because the node's memory" in found["cause"]
    assert (found["rank"], found["node"], found["log"]) == (3, "n2", "logs/rank-n2-3.log")
    assert (found["ranks"], found["nodes"], found["occurrences"]) == ([3], ["n2"], 1)
    assert "fewer ranks on each node" in found["next_step"]
    assert wait_for(lambda: not any(line.endswith(str(path)) for _, line in cluster.processes()), 30)


def test_a_child_of_a_rank_that_the_kernel_killed_is_out_of_memory(cluster: Cluster) -> None:
    run = cluster.submit(HAS_A_CHILD, *MPI)
    assert run.code == 1, run.err
    found = json.loads(cluster.run("hpcml", "why", run.directory.name, "--json").stdout)
    assert (found["rule"], found["rank"], found["node"]) == ("oom-kill", 3, "n2"), found
    assert found["cause"].startswith("a process that rank 3 on n2 started was killed because the node's memory limit")
    assert found["options"][:1] == ["--memory-per-node"]


@pytest.mark.parametrize("kind", LIBRARIES)
def test_ranks_of_mpi_find_each_other_through_slurm(cluster: Cluster, kind: str) -> None:
    run = cluster.submit(ALLREDUCE, *MPI, "--mpi", kind, arguments=(library(cluster, kind),))
    assert run.code == 0, (run.err, run.log("script.log"), run.log("mpi-n2.log"))
    answers = [path.read_text() for path in sorted((run.directory / "out").iterdir())]
    assert answers == [f"4 1111 {node}" for node in ("n1", "n1", "n2", "n2")]


def test_the_first_rank_of_mpi_that_fails_is_named(cluster: Cluster) -> None:
    """Slurm kills the tasks of a step whose PMIx client has gone: the other ranks, and what would tell of the first."""
    run = cluster.submit(ALLREDUCE, *MPI, "--mpi", "pmix", arguments=(library(cluster, "pmix"), "7"))
    assert run.code == 7, run.err
    assert "rank 3 on n2 exited with status 7" in run.status["message"]
    assert wait_for(lambda: not any(str(run.directory) in line for _, line in cluster.processes()), 30)


def test_another_account_gets_no_word_in_and_a_lost_agent_is_named(cluster: Cluster) -> None:
    _, directory = cluster.detach(WAITS, *FOUR)
    cluster.wait_event(directory, "ranks-running")
    places = json.loads((directory / "attempts/0/link.json").read_text())["places"]
    code = (
        "import socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)\n"
        "s.recv(64); s.sendall(b'0' * 64 + b' ' + b'0' * 32 + b' n2\\n' + b'{\"event\": \"rank-ended\"}\\n')\n"
        "print(len(s.recv(64)))\n"
    )
    for address, port in places:
        for user in ("mallory", "alice"):
            done = cluster.run("python3", "-c", code, address, str(port), node="n2", user=user)
            assert done.stdout.strip() == "0" or "reset" in done.stderr, (done.stdout, done.stderr)
    read = cluster.run("cat", str(directory / "attempts/0/secret/link.key"), node="n2", user="mallory")
    assert "Permission denied" in read.stderr

    # stacks that are asked for before the ranks are there cost a busy machine more than the ranks do
    assert wait_for(lambda: len(list((directory / "out").iterdir())) == 8, 240)

    def all_wait_in_the_script() -> bool:
        groups = json.loads(cluster.run("hpcml", "stacks", directory.name, "--json").stdout)["groups"]
        waits = [[one["name"] for one in group["processes"]] for group in groups if "<module>" in group["place"]]
        return waits == [[f"rank {number}" for number in range(8)]]

    assert wait_for(all_wait_in_the_script, 240), cluster.run("hpcml", "stacks", directory.name).stdout
    (agent,) = (pid for pid in roles(cluster, directory, "rank", "n3")[:1])
    cluster.run("kill", f"-{signal.SIGKILL}", str(agent), node="n3")
    end = cluster.wait_status(directory)
    assert (end["exit_status"], "n3" in end["message"]) == (errors.ROLE_LOST, True), end
    assert wait_for(lambda: not any("script" in line and "-u -c" in line for _, line in cluster.processes()), 30)


def test_no_variable_of_a_rank_names_a_rendezvous_that_unpickles(cluster: Cluster) -> None:
    for ranks in ("node", "2"):
        run = cluster.submit(ENVIRONMENT, *SMALL, "--ranks", ranks)
        assert run.code == 0, run.err
        for path in (run.directory / "out").iterdir():
            variables = json.loads(path.read_text())
            assert "c10d" not in variables.values()
            assert variables.get("PET_RDZV_BACKEND") == ("static" if ranks == "node" else None)


def test_another_account_finds_no_rendezvous_of_torchrun_to_replace(cluster: Cluster) -> None:
    """Set HPCML_TEST_TORCHRUN to a torchrun that all accounts can start."""
    if cluster.run("sh", "-c", f"{TORCHRUN} --help", node="n1").returncode:
        pytest.skip(f"no PyTorch: {TORCHRUN} does not start")
    script, place = cluster.write("meets.py", MEETS_AND_WAITS), cluster.work / "met"
    cluster.run("mkdir", "-p", str(place))
    words = (TORCHRUN, "--nproc-per-node", "1", str(script), str(place))
    done = cluster.run("hpcml", "submit", "--detach", "--json", *LARGE, "--ranks", "node", "--", *words)
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    try:
        met = wait_for(lambda: len(list(place.iterdir())) == 2, 240)
        assert met, (directory / "logs/script.log").read_text()
        done = cluster.run("python3", "-c", mallory.STORES, directory.name, node="n1", user="mallory")
        assert done.returncode == 0, done.stderr
        stores = json.loads(done.stdout)
    finally:
        cluster.run("touch", str(place / "end"))
    end = cluster.wait_status(directory, 120)
    assert end["exit_status"] == 0, end
    assert {path.read_text() for path in place.iterdir() if path.name != "end"} == {"2.0"}
    assert stores, "mallory found no TCPStore"
    assert not any(store["rendezvous"] for store in stores), stores
