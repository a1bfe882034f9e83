"""Nobody but the user gets in: mallory, another account on the same nodes, tries the scheduler, a worker and the files."""

from __future__ import annotations

import json
import pwd
import re
import subprocess
import time
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
    path, log = directory / "out/addresses.json", directory / "logs/driver.log"
    cluster.wait_event(directory, "driver-started", 60)
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


def test_the_owner_gets_in_with_the_run_s_key(cluster: Cluster, target: Target) -> None:
    """The same client with the key does get in, so the refusals above are not just a dead port."""
    secret = next(target.directory.glob("attempts/0/secret"))
    code = (
        "import sys; from distributed import Client, Security\n"
        f"c, k = '{secret}/tls-cert.pem', '{secret}/tls-key.pem'\n"
        "s = Security(tls_ca_file=c, tls_client_cert=c, tls_client_key=k, require_encryption=True)\n"
        "print('IN', Client(sys.argv[1], security=s, timeout=10).run_on_scheduler(lambda: 1))"
    )
    done = cluster.run("python", "-c", code, target.addresses["scheduler"])
    assert "IN 1" in done.stdout, done.stderr


def listeners(cluster: Cluster, node: str) -> set[int]:
    """Return the TCP ports that alice's processes listen on in a node's network namespace."""
    uid, ports = pwd.getpwnam("hpcml-alice").pw_uid, set()
    for file in ("tcp", "tcp6"):
        for line in cluster.run("cat", f"/proc/net/{file}", node=node).stdout.splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[7]) == uid:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def test_nothing_listens_but_the_tls_comms(cluster: Cluster, target: Target) -> None:
    expected: dict[str, set[int]] = {node: set() for node in ALL_NODES}
    for name, address in target.addresses.items():
        expected["n1" if name == "scheduler" else name].add(int(address.rsplit(":", 1)[1]))
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


def test_the_http_server_is_a_private_socket(cluster: Cluster, target: Target) -> None:
    control = json.loads((target.directory / "attempts/0/control.json").read_text())["socket"]
    socket_path = str(Path(control).with_name("dashboard.sock"))
    probe = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(5)\ns.connect(sys.argv[1])\n"
        "s.sendall(b'GET /health HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n')\nprint(s.recv(4096).decode())"
    )
    owner = cluster.run("python3", "-c", probe, socket_path, node="n1")
    assert "200 OK" in owner.stdout, owner.stderr
    for path in (socket_path, control):
        stranger = cluster.lab.exec(["python3", "-c", probe, path], node="n1", user="mallory")
        assert "PermissionError" in stranger.stderr
    mode = cluster.run("stat", "-c", "%a %a", str(Path(control).parent), node="n1").stdout.split()[0]
    assert mode == "700"
    assert cluster.run("stat", "-c", "%a", socket_path, node="n1").stdout.strip() == "600"


def test_files_are_the_user_s_alone(cluster: Cluster, target: Target) -> None:
    """Also under a careless umask: the run's folder is 0700, the secrets 0600 and in no log."""
    assert oct(target.directory.stat().st_mode & 0o777) == "0o700"
    secrets = list(target.directory.glob("attempts/0/secret/*"))
    assert len(secrets) == 3
    assert {oct(path.stat().st_mode & 0o777) for path in secrets} == {"0o600"}
    assert oct(secrets[0].parent.stat().st_mode & 0o777) == "0o700"
    done = cluster.lab.exec(["ls", str(target.directory)], user="mallory")
    assert "Permission denied" in done.stderr
    logs = "".join(path.read_text() for path in (target.directory / "logs").iterdir())
    key = (target.directory / "attempts/0/secret/tls-key.pem").read_text().splitlines()[1]
    assert key not in logs
    assert "PRIVATE KEY" not in logs


def test_the_certificate_ends_soon_after_the_job(cluster: Cluster, target: Target) -> None:
    path = target.directory / "attempts/0/secret/tls-cert.pem"
    text = subprocess.run(
        ["openssl", "x509", "-in", str(path), "-noout", "-enddate"], capture_output=True, text=True, check=True
    ).stdout
    end = time.mktime(time.strptime(re.sub(r".*=", "", text).strip(), "%b %d %H:%M:%S %Y %Z")) - time.timezone
    started = json.loads((target.directory / "events.jsonl").read_text().splitlines()[0])["time"]
    assert end - started <= 20 * 60 + 3600 + 60  # the lab's default time limit, one hour, one minute of rounding
