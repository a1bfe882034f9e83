"""JupyterLab under a real Slurm: alice on two nodes; mallory, on the same nodes, finds no way in; nothing is left."""

from __future__ import annotations

import json
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster
from lab_state import wait_for

pytestmark = pytest.mark.lab

API = (Path(__file__).resolve().parents[1] / "local/notebook_api.py").read_text()
CANARY = "canary-in-a-cell"

# What mallory runs on a node: for each port that opens, what it says to HTTP and to ZeroMQ. Arguments: ports, "--", addresses.
SCAN = """
import socket, sys
at = sys.argv.index("--")
for host in sys.argv[at + 1:]:
    for port in map(int, sys.argv[1:at]):
        s = socket.socket(); s.settimeout(0.5)
        if s.connect_ex((host, port)) == 0:
            try:
                s.settimeout(0.3)
                try: greeting = s.recv(64)
                except OSError: greeting = b""
                s.sendall(b"GET /api/status HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
                try: answer = s.recv(64)
                except OSError: answer = b""
                kind = "zmq" if greeting[:1] == b"\\xff" else "http" if answer.startswith(b"HTTP/") else "other"
            except OSError:
                kind = "other"
            print(kind, host, port)
        s.close()
"""
KNOCK = """
import socket, sys
for path in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX); s.settimeout(5)
    try:
        s.connect(path); print("IN", path)
    except OSError as error:
        print(type(error).__name__, path)
"""


@dataclass
class Lab:
    """Alice's session: its directory, its job, and what it says of itself."""

    cluster: Cluster
    directory: Path
    job: str
    facts: dict[str, Any]

    def cells(self, *cells: str) -> str:
        """Run cells in a new kernel, as alice on the session's node; return what they printed."""
        done = self.cluster.run("python", str(self.cluster.work / "notebook_api.py"), self.facts["socket"],
                                self.facts["token_file"], *cells, node=self.facts["node"])  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def mallory(self, node: str, code: str, *words: str) -> list[str]:
        done = self.cluster.lab.exec(["python3", "-c", code, *words], node=node, user="mallory", timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def start(cluster: Cluster, *options: str) -> Lab:
    cluster.write("notebook_api.py", API)
    done = cluster.run("hpcml", "jupyter", "--detach", "--json", *options)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    directory = Path(said["directory"])
    path = directory / "attempts/0/services/jupyter.json"
    assert wait_for(path.exists, 90), [log.read_text() for log in directory.glob("logs/*")]
    return Lab(cluster, directory, said["job"], json.loads(path.read_text()))


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[Lab]:
    if cluster.run("python", "-c", "import jupyterlab").returncode != 0:
        pytest.skip("the lab's environment has no JupyterLab: lab.py env")
    made = start(cluster, "--nodes", "2", "--nodelist", "n1,n2")
    yield made
    cluster.run("scancel", "--quiet", made.job)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


def test_a_cell_computes_on_both_nodes(session: Lab) -> None:
    where = "print(sorted(client.run(lambda: __import__('os').environ['SLURMD_NODENAME']).values()), __import__('os').getcwd())"
    said = session.cells("import hpcml; client = hpcml.connect(); print(client.submit(lambda: 6 * 7).result())", where)
    assert said.split() == ["42", "['n1',", "'n2']", str(session.cluster.work)]
    facts = json.loads(session.cluster.run("hpcml", "status", session.job, "--json").stdout)
    assert facts["message"] == "JupyterLab runs"
    (service,) = [one for one in facts["services"] if one["name"] == "jupyter"]
    assert (service["node"], service["ready"]) == ("n1", True)


def test_no_socket_lets_mallory_in(session: Lab) -> None:
    """Nor can she prepare the folder of the sockets: its name is random, and it is made anew (mkdtemp)."""
    folder = Path(session.facts["socket"]).parent
    shown = session.cluster.run("stat", "-c", "%a %U %F", str(folder), node="n1").stdout.strip()
    assert (shown, folder.name.startswith("hpcml_")) == ("700 hpcml-alice directory", True)
    session.cells(f"'{CANARY}'")
    alice = session.cluster.run("find", str(folder), "-type", "s", node="n1").stdout.split()
    assert len(alice) >= 3
    pid = session.facts["pid"]
    paths = [*alice, *(f"/proc/{pid}/root{path}" for path in alice)]
    said = [line for node in ("n1", "n2", "login") for line in session.mallory(node, KNOCK, *paths)]
    assert not [line for line in said if line.startswith("IN")], said
    assert [line for line in session.mallory("n1", KNOCK, *alice) if not line.startswith("PermissionError")] == []
    assert session.cluster.run("python3", "-c", KNOCK, session.facts["socket"], node="n1").stdout.startswith("IN")


def test_no_port_speaks(session: Lab) -> None:
    """Mallory tries every port that listens, on loopback and the node's own address, while kernels run."""
    session.cells("import hpcml; hpcml.connect()")  # the kernel goes on when the client has gone
    uid = pwd.getpwnam("hpcml-alice").pw_uid
    lines = session.cluster.lab.exec(["ss", "-Hltnpe"], node="n1", user="root").stdout.splitlines()
    ours = [line for line in lines if f"uid:{uid} " in line]
    owners = {line.split('(("')[1].split('"')[0] for line in ours}
    pids = {line.split("pid=")[1].split(",")[0] for line in ours if '"python' in line}
    roles = {Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip().rpartition("-m ")[2] for pid in pids}
    assert roles == {"hpcml.kinds scheduler", "hpcml.kinds supervisor", "hpcml.kinds worker"}
    assert owners <= {"python", "python3", "srun"}
    address = session.cluster.run("hostname", "-I", node="n1").stdout.split()
    ports = {line.split()[3].rpartition(":")[2] for line in lines}
    found = session.mallory("n1", SCAN, *sorted(ports), "--", "127.0.0.1", *address)
    assert found  # the scan does find what listens
    assert not [line for line in found if line.split()[0] != "other"], found


def test_no_secret_is_in_what_others_can_read(session: Lab) -> None:
    token = Path(session.facts["token_file"]).read_text()
    asked = (["scontrol", "show", "job", "-dd", session.job], ["scontrol", "write", "batch_script", session.job, "-"],
             ["squeue", "-j", session.job, "-O", "ALL"])  # fmt: skip
    records = "".join(session.cluster.lab.exec(words, user="root").stdout for words in asked)
    lines = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    logs = "".join(path.read_text() for path in (session.directory / "logs").iterdir())
    environments = "".join(map(_read, Path("/proc").glob("[0-9]*/environ")))
    for text in (records, lines, logs, environments):
        assert text
        assert token not in text
    for node in ("n1", "login"):
        read = session.cluster.lab.exec(["cat", session.facts["token_file"]], node=node, user="mallory")
        assert "Permission denied" in read.stderr
        environ = session.cluster.lab.exec(["cat", f"/proc/{session.facts['pid']}/environ"], node=node, user="mallory")
        assert "Permission denied" in environ.stderr


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it ended in between


def test_it_is_shut_down(session: Lab) -> None:
    """Nothing of it is left."""
    cluster = session.cluster
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from notebook_api import Jupyter\n"
            "print(Jupyter(sys.argv[2], open(sys.argv[3]).read()).request('POST', '/api/shutdown')[0])")  # fmt: skip
    done = cluster.run("python", "-c", code, str(cluster.work), session.facts["socket"], session.facts["token_file"],
                       node=session.facts["node"])  # fmt: skip
    assert done.stdout.strip() == "200", done.stderr
    found = cluster.wait_status(session.directory)
    assert (found["exit_status"], found["message"]) == (0, "JupyterLab ended: it was shut down")
    cluster.wait_gone(session.directory, 60)
    assert cluster.job(session.job)["JobState"] == "COMPLETED"
    nothing_is_left(session)


def nothing_is_left(made: Lab) -> None:
    assert wait_for(lambda: not made.cluster.processes(), 20), made.cluster.processes()
    assert list(made.directory.glob("attempts/*/secret/*")) == []
    gone = made.cluster.run("ls", str(Path(made.facts["socket"]).parent), node=made.facts["node"])
    assert "No such file" in gone.stderr
    assert CANARY not in "".join(path.read_text() for path in (made.directory / "logs").iterdir())


def test_inside_an_image(cluster: Cluster, image: Path) -> None:
    """With the image's own Python; the lab's image holds Dask only, so JupyterLab comes by a bind, or is missed.

    The time limit's signal and a cancellation end the session.
    """
    lacking = cluster.run("hpcml", "jupyter", "--image", str(image), "--wait", timeout=120)
    assert lacking.returncode == 80, lacking.stderr
    assert "the run's environment lacks JupyterLab" in lacking.stderr
    venv = cluster.lab.places.venv
    place = ("runtime.kind=image", f"runtime.python={venv}/bin/python", f'runtime.binds=["{venv}"]')
    made = start(cluster, "--image", str(image), *(word for setting in place for word in ("--set", setting)))
    cells = (
        "import hpcml; print(hpcml.connect().submit(lambda: 6 * 7).result())",
        "import os; print(os.environ['HOME'])",
    )
    assert made.cells(*cells).split() == ["42", str(made.directory / "home")]
    cluster.run("scancel", "--batch", "--signal=USR1", made.job)  # as Slurm does slurm.signal_lead before the limit
    cluster.wait_event(made.directory, "time-limit-near")
    cluster.run("scancel", made.job)
    assert cluster.wait_status(made.directory)["exit_status"] == 86  # cancelled, also when the limit was near
    cluster.wait_gone(made.directory, 60)
    nothing_is_left(made)
