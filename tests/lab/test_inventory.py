"""What runs of every kind open on the nodes, and attacks on each socket that another account can connect to.

inventory.py and hpcml/listeners.py have all that is allowed. What has no row there fails; so does a row that no run shows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import inventory
import mallory
from beside import PART, SMALL
from conftest import ALL_NODES, Cluster, together
from hpcml.kinds.ranks.node.rapidsmpf_server import token_of
from lab_state import wait_for
from test_notebooks import Lab, start
from test_ranks_on_nodes import kinds_of_pmi

pytestmark = pytest.mark.lab

NODES = ("login", *ALL_NODES)
PLACES = ("/tmp", "/dev/shm", "/var/tmp")
# Each script says where it listens, and while it goes on it does something over the network whenever the test asks.
COMMON = """
import json, os, pathlib, socket, time
TOP = pathlib.Path("{top}")

def announce(name, row, *places):
    path = TOP / "places" / name
    path.with_suffix(".new").write_text(json.dumps([[row, os.uname().nodename, place] for place in places]))
    path.with_suffix(".new").rename(path)

def dask_places(client):
    info = client.scheduler_info(n_workers=-1)
    return [client.scheduler.address, *info["workers"], *(one["nanny"] for one in info["workers"].values() if one.get("nanny"))]

def serve(name, act):
    done = -1
    while not (TOP / "enough").exists():
        asked = max((int(path.name) for path in (TOP / "asks").iterdir()), default=-1)
        if asked > done:
            act()
            (TOP / "answers" / (str(asked) + "-" + name)).touch()
            done = asked
        time.sleep(0.05)
"""
DASK = """
import hpcml
from distributed import Client
client = hpcml.connect()
stray = socket.create_server(("", 0))
scheduler, *workers = dask_places(client)
announce("{name}", "DASK", scheduler)
announce("{name}-workers", "DASK_TCP" if workers[0].startswith("hpcml-tcp:") else "DASK", *workers)
announce("{name}-stray", "stray", f"tcp://0.0.0.0:{stray.getsockname()[1]}")
def act():
    with Client(client.scheduler.address, security=client.security, set_as_default=False) as another:
        assert sum(another.gather(another.map(abs, range(10), pure=False))) == 45
serve("{name}", act)
stray.close()
if "{name}" == "sweep": hpcml.run.report(loss=1)
"""
RANKS = """
import threading
def turn_away(listener):
    while True: listener.accept()[0].close()
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
meeting = os.environ.get("RRUN_SOCKET_ADDR", "")
if rank == "0":
    ports = []
    for row, place in (("MASTER_PORT", os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]), ("JAX_PORT", os.environ["JAX_COORDINATOR_ADDRESS"])):
        host, port = place.split(":")
        ports.append(socket.create_server((host, int(port))))
        threading.Thread(target=turn_away, args=(ports[-1],), daemon=True).start()
        announce("{name}-" + row, row, "tcp://" + place)
    if meeting: announce("{name}-meeting", "RAPIDSMPF", "tcp://" + meeting)
def act():
    if meeting:
        with socket.create_connection(meeting.rsplit(":", 1), 60) as server:
            server.sendall(f"AUTH rank={rank} nranks={size} token={os.environ['RRUN_SOCKET_TOKEN']}\\n".encode())
            assert server.recv(3) == b"OK\\n"
announce("{name}-" + rank, "", "")
serve("{name}-" + rank, act)
"""
PROGRAM = """
import hpcml
from distributed import Client
def act(): assert sum(client.gather(client.map(abs, range(10), pure=False))) == 45
if __name__ == "__main__":
    asked = {"time": "10m", "cpus_per_node": 1, "memory_per_node": "900M", "set": {"slurm.extra": ["--nodelist=n2"]}}
    with {how} as cluster, Client(cluster) as client:
        client.wait_for_workers(1, 240)
        announce("{name}", "{row}", *dask_places(client))
        announce("{name}-keys", str(getattr(cluster, "directory", "")), "")
        serve("{name}", act)
"""
BATCH = """
rank = os.environ["SLURM_PROCID"]
announce("batch-" + rank, "", "")
serve("batch-" + rank, lambda: print("through srun", flush=True))
"""
BATCH_LINES = """#!/bin/bash
#SBATCH --nodes=2 --nodelist=n3,n4 --ntasks-per-node=1 --cpus-per-task=2 --mem=900M --time=10 --output=%x.txt
srun python task.py
"""
# The lab's GPUs are null devices without a driver: a stand-in for pynvml shows four of them.
NVML = """
class NVMLError(Exception): pass
NVML_NVLINK_MAX_LINKS = 0
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 4
def nvmlDeviceGetHandleByIndex(number): return number
"""
CELL = f"{COMMON}import hpcml; client = hpcml.connect(); print(json.dumps(dask_places(client)))"
ANSWER = {
    "AGENTS": r"[0-9a-f]{32}\n",
    "DASK": r"[\x15\x16].*",
    "DASK_TCP": "",
    "ELASTIC": r"[\x15\x16].*",
    "CONNECT": r"[\x15\x16].*",
    "UCX": ".*",
    "UCX_TCP": ".*",
}


SERVICE = ("--service", "inventory=9")  # to which a bridge leads, whether or not a program listens
ANY_IPV6 = "0" * 32


@dataclass
class Runs:
    """The runs of this module, all of them going on."""

    cluster: Cluster
    top: Path
    directories: dict[str, Path] = field(default_factory=dict)
    programs: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    session: Lab | None = None
    asked: int = 0
    places: dict[tuple[str, int], str] = field(default_factory=dict)  # node and port: the row
    strays: set[tuple[str, int]] = field(default_factory=set)

    def text(self, text: str, name: str, **words: str) -> str:
        for word, value in {"top": str(self.top), "name": name, **words}.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    @property
    def answering(self) -> set[str]:
        ranks = {f"{name}-{rank}" for name in ("mpi", "gpu") for rank in range(4)}
        return {"dask", "tcp", "ucx", "sweep", "elastic", "connect", "batch-0", "batch-1", *ranks}

    def submit(self, name: str, text: str, *options: str) -> None:
        _, self.directories[name] = self.cluster.detach(self.text(COMMON + text, name), "--name", name, *options)

    def program(self, name: str, how: str, row: str) -> None:
        path = self.cluster.write(f"{name}/{name}.py", self.text(COMMON + PROGRAM, name, how=how, row=row))
        self.programs[name] = self.cluster.lab.popen(["python", str(path)], cwd=path.parent)

    def batch(self) -> None:
        """Submit a batch script: hpcml's agents beside a step of its own."""
        self.cluster.write("inventory-batch/task.py", self.text(COMMON + BATCH, "batch"))
        script = self.cluster.write("inventory-batch/batch.sh", BATCH_LINES)
        done = self.cluster.run("hpcml", "submit", "--json", "--detach", *SERVICE, str(script), cwd=script.parent)
        assert done.returncode == 0, done.stderr
        self.directories["batch"] = Path(json.loads(done.stdout)["directory"])

    def lost(self) -> list[str]:
        """Return what has ended, and how."""
        ended = [
            path.read_text()
            for one in self.directories.values()
            if (path := one / "status.json").exists() and '"over": true' in path.read_text()
        ]
        return ended + [f"{name}: {one.communicate()}" for name, one in self.programs.items() if one.poll() is not None]

    def begin(self) -> None:
        """Start all of them."""
        self.cluster.run("mkdir", "-p", *(str(self.top / name) for name in ("places", "asks", "answers")))
        others = ("--nodes", "2", "--nodelist", "n3,n4", *PART)
        self.submit("dask", DASK, *SMALL, *SERVICE)
        self.submit("tcp", DASK, "--nodes", "1", "--nodelist", "n1", *PART, "--set", "network.protocol=tcp")
        self.submit("ucx", DASK, *SMALL, "--set", "network.protocol=ucx")
        self.submit("mpi", RANKS, *others, "--ranks", "2", "--mpi", "pmix", *SERVICE)
        self.submit("gpu", RANKS, *others, "--ranks", "gpu", "--gpus-per-node", "2")
        self.batch()
        self.program("elastic", "hpcml.ElasticCluster(minimum=1, **asked)", "ELASTIC")
        self.program("connect", "hpcml.connect().cluster", "CONNECT")
        script = self.cluster.write("inventory-sweep/sweep.py", self.text(COMMON + DASK, "sweep"))
        name = ("--detach", "--name", self.cluster.work.name)
        words = (*name, "--nodes", "1", "--nodelist", "n2", *PART, "--grid", "k=1,2")
        swept = self.cluster.run("hpcml", "sweep", "sweep.py", *words, cwd=script.parent)
        assert swept.returncode == 0, swept.stderr
        self.directories["sweep"] = Path(next(word for word in swept.stderr.split() if "/.hpcml/runs/" in word))
        self.session = start(self.cluster, "--nodes", "1", "--nodelist", "n1", *PART)

    def learn_all(self) -> None:
        """Wait until all run, and take in where they say that they listen."""
        assert self.session
        for place in json.loads(self.session.cells(self.text(CELL, "jupyter"))):
            self.learn("DASK", "n1", place)
        self.wait_files("places", self.answering | {"gpu-meeting", "elastic-keys"}, 240)
        said = [json.loads(path.read_text()) for path in (self.top / "places").iterdir()]
        for row, node, place in itertools.chain(*said):
            if place:
                self.learn(row, node, place)
        for directory in (*self.directories.values(), self.session.directory):
            link = json.loads((directory / "attempts/0/link.json").read_text())
            for host, port in link["places"]:
                self.learn("AGENTS", link["node"], f"tcp://{host}:{port}")

    def end(self) -> None:
        """Have all of them end, and see that each ends well."""
        assert self.session
        self.cluster.run("touch", str(self.top / "enough"))
        ends = {name: self.cluster.wait_status(directory) for name, directory in self.directories.items()}
        assert {name: end["exit_status"] for name, end in ends.items()} == dict.fromkeys(self.directories, 0), ends
        for done in together(self.programs.values(), 120):
            assert done.returncode == 0, done.stderr
        assert self.session.cells("print(6 * 7)").split() == ["42"]

    def wait_files(self, folder: str, names: set[str], seconds: float) -> None:
        def there() -> bool:
            return names <= {path.name for path in (self.top / folder).iterdir()}

        assert wait_for(lambda: there() or bool(self.lost()), seconds, 0.1), names - {
            path.name for path in (self.top / folder).iterdir()
        }
        assert not self.lost()

    def ask(self) -> None:
        """Have each process of each run do something over the network, and wait until all have."""
        number, self.asked = self.asked, self.asked + 1
        self.cluster.run("touch", str(self.top / "asks" / str(number)))
        self.wait_files("answers", {f"{number}-{name}" for name in self.answering}, 60)

    def learn(self, row: str, node: str, place: str) -> None:
        """Take in an address that a run says is its own."""
        host, _, port = place.rpartition("//")[2].rpartition(":")
        last = int(host.rpartition(".")[2])
        there = node if host.startswith(("127.", "0.")) else "login" if last == 2 else f"n{last - 10}"
        if row == "stray":
            self.strays.add((there, int(port)))
        elif not place.startswith("ucx://"):
            self.places[there, int(port)] = row


@pytest.fixture(scope="module")
def _gpus(cluster: Cluster) -> Iterator[None]:
    stand_in = cluster.write("stand_in.py", NVML)
    place = cluster.run("python", "-c", "import pynvml; print(pynvml.__file__)").stdout.strip()
    if not place:
        pytest.skip("the lab's environment has no nvidia-ml-py: lab.py env")
    with contextlib.ExitStack() as covered:
        for node in ("n3", "n4"):
            covered.enter_context(cluster.covered(node, f"mount --bind {stand_in} {place}", place))
        yield


@pytest.fixture(scope="module")
def runs(cluster: Cluster, _gpus: None) -> Iterator[Runs]:
    """One run of each kind: on one or two nodes each, all at the same time."""
    for module in ("jupyterlab", "distributed_ucxx"):
        if cluster.run("python", "-c", f"import {module}").returncode != 0:
            pytest.skip(f"the lab's environment has no {module}: lab.py env")
    if "pmix" not in kinds_of_pmi(cluster):
        pytest.skip("this Slurm has no pmix")
    made = Runs(cluster, cluster.work / "inventory")
    try:
        made.begin()
        made.learn_all()
        yield made
        made.end()
    finally:
        cluster.run("scancel", "--me", "--quiet")
        for process in made.programs.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the runs of this module outlive its tests."""


def secrets_of(runs: Runs) -> dict[str, list[str]]:
    """Return how each secret of the runs may be written, by what it is."""
    elastic = json.loads((runs.top / "places/elastic-keys").read_text())[0][0]
    assert runs.session
    folders = [
        Path(elastic),
        *(one / "attempts/0" for one in runs.directories.values()),
        runs.session.directory / "attempts/0",
    ]
    found: dict[str, list[str]] = {}
    for path in (path for folder in folders for path in (folder / "secret").iterdir() if path.name != "tls-cert.pem"):
        found.setdefault(path.name, []).extend(inventory.forms(path.read_bytes()))
        if path.name == "link.key":
            found.setdefault("the token of link.key", []).append(token_of(path.read_bytes()))
    return found


@dataclass
class Node:
    """What root finds on a node."""

    name: str
    sockets: list[dict[str, Any]]
    files: list[dict[str, Any]]
    leaks: list[dict[str, Any]]
    processes: dict[int, dict[str, Any]]

    def role(self, pid: int) -> str:
        return inventory.role(pid, self.processes)

    def roles(self, one: dict[str, Any]) -> set[str]:
        return {self.role(pid) for pid in one["pids"]}

    def words(self, one: dict[str, Any]) -> list[str]:
        return [" ".join(self.processes[pid]["words"])[-200:] for pid in one["pids"] if pid in self.processes]


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, runs: Runs) -> list[Node]:
    asked, found = json.dumps([PLACES, secrets_of(runs)]), []
    for node in NODES:
        words = ["python3", "-c", inventory.LOOK, "hpcml-alice"]
        done = cluster.lab.exec(words, node=node, user="root", input=asked)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        found.append(Node(node, **{**facts, "processes": {int(pid): one for pid, one in facts["processes"].items()}}))
    return found


@pytest.fixture(scope="module")
def rows(runs: Runs, nodes: list[Node]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """All sockets with their nodes, by the name of their row; "" has those without one."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    ucx = str(runs.directories["ucx"])
    for node in nodes:
        for one in node.sockets:
            place, roles = (node.name, one["port"]), node.roles(one)
            if place in runs.strays and roles == {"script"}:
                row = inventory.THE_SCRIPT_S
            else:
                is_ucx = any(node.processes[pid]["run"] == ucx for pid in one["pids"])
                row = inventory.judge(one, roles, runs.places.get(place, ""), ucx=is_ucx)
            found.setdefault(row, []).append((node.name, {**one, "roles": sorted(roles), "words": node.words(one)}))
    return found


def test_every_socket_has_a_row_and_every_row_a_socket(rows: dict[str, list[Any]]) -> None:
    without = json.dumps(rows.get("", []), indent=1)
    assert without == "[]", "add a row to hpcml/listeners.py and tests/lab/inventory.py"
    seen = {name for name, known in inventory.SOCKETS.items() if not known.seen_by}
    assert seen - rows.keys() == set()


def test_a_port_of_the_script_is_told_apart(runs: Runs, rows: dict[str, list[Any]]) -> None:
    """Each script of a Dask run opens a port of its own: no process of hpcml holds it."""
    assert len(rows[inventory.THE_SCRIPT_S]) == len(runs.strays) == 4


def test_the_agents_of_a_batch_script_run_beside_it(nodes: list[Node], runs: Runs) -> None:
    """So what they open is among what the other tests judge."""
    batch = str(runs.directories["batch"])
    found = {
        (node.name, node.role(pid)) for node in nodes for pid, one in node.processes.items() if one["run"] == batch
    }
    assert {("n3", "supervisor"), ("n3", "agent"), ("n4", "agent")} <= found
    assert not (runs.directories["batch"] / "status.json").exists()


def test_every_name_in_a_shared_folder_has_a_row(nodes: list[Node]) -> None:
    known = [(node.name, one, inventory.judge_file(one["path"], one["mode"])) for node in nodes for one in node.files]
    assert [(node, one) for node, one, row in known if row is None] == []
    assert {one for one in inventory.NAMES if not one.seen_by} <= {row for _, _, row in known}


def test_every_secret_in_a_variable_has_a_row(nodes: list[Node]) -> None:
    found = {(one["place"], one["secret"], node.role(one["pid"])) for node in nodes for one in node.leaks}
    assert found == {(one.name, one.secret, role) for one in inventory.VARIABLES for role in one.roles}


@pytest.mark.parametrize("row", inventory.REACHED)
def test_no_stranger_ends_a_run_or_gets_in(cluster: Cluster, runs: Runs, rows: dict[str, list[Any]], row: str) -> None:
    """Junk, dripping and silent connections and a flood, from another node if its sockets can be reached from there.

    Meanwhile every run does all that needs the network.
    """
    chosen = {(one["kind"], one["address"], tuple(one["roles"]), node): (node, one) for node, one in rows[row]}
    started = []
    for node, one in chosen.values():
        is_near = inventory.kind(one) in (inventory.ABSTRACT, inventory.LOOPBACK) or one["kind"] == "tcp6"
        last = 2 if node == "login" else 10 + int(node[1:])
        host = {"0.0.0.0": f"10.79.0.{last}", ANY_IPV6: "::1"}.get(one["address"], one["address"])
        words = ["python3", "-c", mallory.PRESS, host, str(one["port"] or one["type"]), ANSWER.get(row, "")]
        place = node if is_near else "n2" if node != "n2" else "n1"
        started.append(cluster.lab.popen(words, node=place, user="mallory", stdin=subprocess.PIPE))
    assert started
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "pressing\n"
        runs.ask()
        for process in started:
            out, err = process.communicate("", timeout=180)
            assert process.returncode == 0, err
            found = json.loads(out.splitlines()[-1])
            assert found["reached"] > 0
            assert found["tries"] > 100
            assert not found["won"]
        runs.ask()
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
