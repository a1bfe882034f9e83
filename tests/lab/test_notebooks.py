"""JupyterLab under a real Slurm: alice on two nodes; mallory, on the same nodes, finds no way in; nothing is left."""

from __future__ import annotations

import importlib.util
import json
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lab_ssh
from conftest import Cluster
from lab_state import wait_for
from laptop import Outside

pytestmark = pytest.mark.lab

API = (Path(__file__).resolve().parents[1] / "local/notebook_api.py").read_text()
CANARY = "canary-in-a-cell"
CHROMIUM = shutil.which("chromium") or ""

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
    made = start(cluster, "--nodes", "2")
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
    assert facts["jupyter"].startswith("up on n1")


def test_no_socket_lets_mallory_in(session: Lab) -> None:
    """Nor can she prepare the folder of the sockets: its name is random, and it is made anew (mkdtemp)."""
    folder = Path(session.facts["socket"]).parent
    shown = session.cluster.run("stat", "-c", "%a %U %F", str(folder), node="n1").stdout.strip()
    assert (shown, folder.name.startswith("hpcml_")) == ("700 hpcml-alice directory", True)
    session.cells(f"'{CANARY}'")
    alice = session.cluster.run(
        "find", str(Path(session.facts["socket"]).parent), "-type", "s", node="n1"
    ).stdout.split()
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
    assert roles == {"hpcml.node scheduler", "hpcml.node worker"}
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
    environments = "".join(
        path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/environ") if _there(path)
    )
    for text in (records, lines, logs, environments):
        assert text
        assert token not in text
    for node in ("n1", "login"):
        read = session.cluster.lab.exec(["cat", session.facts["token_file"]], node=node, user="mallory")
        assert "Permission denied" in read.stderr
        environ = session.cluster.lab.exec(["cat", f"/proc/{session.facts['pid']}/environ"], node=node, user="mallory")
        assert "Permission denied" in environ.stderr


def _there(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False  # it ended in between
    return True


CELL = """import hpcml, dask.array as da
client = hpcml.connect()
total = int(da.ones((1000, 100), chunks=(100, 100)).sum().compute())
nodes = sorted(set(client.run(lambda: __import__("os").environ["SLURMD_NODENAME"]).values()))
print("computed", total, "on", *nodes)"""

# JupyterLab drops a cell that is run before its kernel is connected: look, and run it again.
BROWSE = """
import os, sys, time
from playwright.sync_api import sync_playwright
url, token, picture, program, name, cell = sys.argv[1:]
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(60000)
    page.goto(f"{url}/workspaces/{name}?reset&token={open(token).read()}")
    page.click('.jp-LauncherCard[data-category="Notebook"][title*="hpcml (this run)"]')
    page.wait_for_selector('#jp-main-statusbar :text("hpcml (this run) | Idle")')
    page.click(".jp-Notebook .jp-Cell:last-child .cm-content")
    page.keyboard.insert_text(cell)
    deadline = time.monotonic() + 120
    while page.locator('.jp-Cell:first-child .jp-InputPrompt:has-text("[ ]")').count():
        assert time.monotonic() < deadline, "the cell was never run"
        page.click(".jp-Notebook .jp-Cell:first-child .cm-content")
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
    output = page.locator('.jp-OutputArea-output:has-text("computed")').first
    output.wait_for()
    page.keyboard.press("Control+s")
    page.click('.jp-Dialog button:has-text("Rename and Save")')
    page.wait_for_selector(".jp-Dialog", state="detached")
    page.wait_for_selector(".jp-mod-dirty", state="detached")
    page.screenshot(path=picture)
    print(output.inner_text())
    browser.close()
"""


@pytest.mark.skipif(not CHROMIUM or importlib.util.find_spec("playwright") is None,
                    reason="Chromium or Playwright for Python is not installed")  # fmt: skip
def test_a_cell_in_a_browser_on_the_laptop(outside: Outside, session: Lab) -> None:
    """Through a tunnel: the cell computes on the workers of its run, and the notebook is saved."""
    opened = outside.tunnel(session.directory.name, "--service", "jupyter", "--route", "srun").up()
    assert opened["route"] == "srun"
    pictures = outside.lab.home("alice") / "pictures"  # as the laptop sees it
    outside.laptop("mkdir", "-p", str(pictures))
    token = outside.on("login", "cat", opened["token_file"]).stdout
    copied = pictures / "token-jupyter"
    outside.on(lab_ssh.LAPTOP, "sh", "-c", 'umask 077; cat >"$1"', "sh", str(copied), input=token)
    packages = str(Path(importlib.util.find_spec("playwright").origin).parent.parent)  # type: ignore[union-attr,arg-type]
    words = ["env", f"PYTHONPATH={packages}", sys.executable if Path(sys.executable).exists() else "python3", "-c", BROWSE,
             opened["url"], str(copied), str(pictures / "jupyter.png"), CHROMIUM, "browser",
             CELL]  # fmt: skip
    done = outside.laptop(*words, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "computed 100000 on n1 n2"
    saved = [path.read_text() for path in session.cluster.work.glob("Untitled*.ipynb")]
    assert any("computed 100000 on n1 n2" in text for text in saved)


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
