"""A run listens on nothing but its TLS comms; and what other tests of mallory, another account, share."""

from __future__ import annotations

import json
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from beside import SMALL
from conftest import ALL_NODES, Cluster, together
from lab_state import wait_for

pytestmark = pytest.mark.lab

PLACES = ("n1", "login")  # on the node of one victim and not of the other, and outside
VICTIMS = ("scheduler", "n2")

SCRIPT = """
import hpcml, json, os, time
client = hpcml.connect()
addresses = {info["name"]: address for address, info in client.scheduler_info(n_workers=-1)["workers"].items()}
addresses["scheduler"] = client.scheduler.address
(hpcml.run.out / "addresses.new").write_text(json.dumps(addresses))
(hpcml.run.out / "addresses.new").rename(hpcml.run.out / "addresses.json")
while not (hpcml.run.out / "enough").exists():
    time.sleep(0.1)
print(sum(client.gather(client.map(abs, range(10)))))
"""

# What mallory runs: a client of every kind she can make, and raw bytes; prints "IN" if one of them got an answer.
ATTACK = """
import sys, ssl, socket, asyncio, tempfile, pathlib, os
from distributed import Client, Security
host, port = sys.argv[1].rpartition("//")[2].rsplit(":", 1)
def own_certificate():
    return Security.temporary()
def attempt(label, make):
    try:
        client = make()
        print("IN", label, client.run_on_scheduler(lambda: os.getuid()))
    except BaseException as error:
        print("refused", label, type(error).__name__)
attempt("tcp", lambda: Client(f"tcp://{host}:{port}", timeout=4))
attempt("tls without certificate", lambda: Client(f"tls://{host}:{port}", timeout=4, security=Security(require_encryption=True)))
attempt("tls with her own certificate", lambda: Client(f"tls://{host}:{port}", timeout=4, security=own_certificate()))
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
for name, wrap in (("raw tcp", False), ("raw tls", True)):
    try:
        s = socket.create_connection((host, int(port)), timeout=4)
        if wrap: s = context.wrap_socket(s)
        s.settimeout(3)
        s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        data = s.recv(100)
        # Dask greets whoever connects over plain TCP? Not behind TLS: nothing but an alert may come.
        print("IN" if data and b"dask" in data.lower() or b"HTTP" in data else "refused", name, data[:20])
    except OSError as error:
        print("refused", name, type(error).__name__)
"""


@dataclass
class Target:
    directory: Path
    addresses: dict[str, str]


def victim(cluster: Cluster, *options: str) -> Iterator[Target]:
    """A run of alice's that stays until it is left, and has survived what was tried till then; its keys go with it."""
    _, directory = cluster.detach(SCRIPT, *options, "--name", "victim")
    path, log = directory / "out/addresses.json", directory / "logs/script.log"
    cluster.wait_event(directory, "script-started", 60)
    assert wait_for(path.exists, 60, 0.1), log.read_text()
    yield Target(directory, json.loads(path.read_text()))
    (directory / "out/enough").touch()
    assert cluster.wait_status(directory)["exit_status"] == 0
    assert "45" in log.read_text()
    assert list(directory.glob("attempts/*/secret/*")) == []


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Iterator[Target]:
    yield from victim(cluster, *SMALL)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


def foreign_clients(cluster: Cluster, target: Target) -> dict[tuple[str, str], subprocess.CompletedProcess[str]]:
    """Have mallory try each victim from each place, all beside each other: a try mostly waits for its time limit."""
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    tried = [(place, victim) for place in PLACES for victim in VICTIMS]
    started = (
        cluster.lab.popen([python, "-c", ATTACK, target.addresses[victim]], node=place, user="mallory")
        for place, victim in tried
    )
    return dict(zip(tried, together(started, 90), strict=True))


def listeners(cluster: Cluster, node: str) -> set[int]:
    """Return the TCP ports that alice's processes listen on in a node's network namespace."""
    uid, ports = pwd.getpwnam("hpcml-alice").pw_uid, set()
    for file in ("tcp", "tcp6"):
        for line in cluster.run("cat", f"/proc/net/{file}", node=node).stdout.splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[7]) == uid:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def test_nothing_listens_but_the_tls_comms_and_the_link(cluster: Cluster, target: Target) -> None:
    expected: dict[str, set[int]] = {node: set() for node in ALL_NODES}
    for name, address in target.addresses.items():
        expected["n1" if name == "scheduler" else name].add(int(address.rsplit(":", 1)[1]))
    (link,) = target.directory.glob("attempts/0/link.json")
    expected["n1"] |= {port for _, port in json.loads(link.read_text())["places"]}  # the supervisor's, for the agents
    # srun's own ports on the batch node carry the steps' input and output, guarded by munge.
    found = {node: listeners(cluster, node) for node in ALL_NODES}
    srun = found["n1"] - expected["n1"]
    assert {node: ports - srun if node == "n1" else ports for node, ports in found.items()} == expected
    owners = cluster.lab.exec(["ss", "-Hltnp"], node="n1", user="root").stdout
    for port in srun:
        line = next(line for line in owners.splitlines() if f":{port} " in line)
        assert '"srun"' in line, line
    for name, address in target.addresses.items():  # and on the node's own address alone
        place = address.rpartition("//")[2]
        asked = ["ss", "-Hltn", f"sport = :{place.rpartition(':')[2]}"]
        line = cluster.lab.exec(asked, node="n1" if name == "scheduler" else name, user="root").stdout
        assert line.split()[3] == place
