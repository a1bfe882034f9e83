"""Runs that an older hpcml submitted and that still wait or run when the user installs this version.

The older version is that of OLD in the repository's history; it is unpacked in alice's home and starts with the same Python.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster
from lab_state import wait_for
from laptop import Outside

OLD = "e5d3041d"
SOURCE = Path(__file__).resolve().parents[2]
SMALL = ("--nodes", "1", "--cpus-per-node", "2", "--memory-per-node", "900M", "--time", "30")
PATIENCE = 90  # seconds

RUNS = """
import sys, time
import hpcml
client = hpcml.connect()
print("begun", client.submit(sum, [1, 2]).result(), flush=True)
while not (hpcml.run.out / "enough").exists() and not hpcml.run.should_stop(): time.sleep(0.1)
print("last line", flush=True)
"""
WAITS = "import hpcml\nprint('sum', hpcml.connect().submit(sum, [1, 2]).result(), flush=True)\n"
RANK = """
import os, time
print("rank", os.environ["RANK"], flush=True)
while True: time.sleep(1)
"""
POINT = """
import argparse, os, time
import hpcml
parser = argparse.ArgumentParser()
parser.add_argument("--k", type=int)
k = parser.parse_args().k
with open("STARTS", "a") as file: file.write(f"{k}\\n")
if k == 3:
    while not os.path.exists("LET"): time.sleep(0.1)
hpcml.run.report(loss=1 / k)
"""
CHAIN = """
import json, time
import hpcml
done = []
if path := hpcml.run.saved("done.json"): done = json.loads(path.read_text())
done.append(hpcml.run.attempt)
hpcml.run.save("done.json", lambda path: path.write_text(json.dumps(done)))
print("attempts", done, flush=True)
if len(done) == 1: hpcml.run.stop()
while not (hpcml.run.out / "enough").exists(): time.sleep(0.1)
"""
ELASTIC = """
import pathlib, sys, time
sys.path.insert(0, OLD)
import hpcml
from distributed import Client
with hpcml.ElasticCluster(minimum=1, maximum=1, time="10m", cpus_per_node=2, memory_per_node="900M") as cluster, Client(cluster) as client:
    client.wait_for_workers(1, 240)
    pathlib.Path("up.new").write_text(str(cluster.directory))
    pathlib.Path("up.new").rename("up")
    while not pathlib.Path("enough").exists():
        client.submit(sum, [1, 2], pure=False).result()
        time.sleep(0.2)
print("worked to the end", flush=True)
"""


class Home:
    """Alice's home with both versions."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.cluster: Cluster = outside.cluster
        self.old = self.cluster.work / "old"
        archive = subprocess.run(
            ["git", "archive", OLD, "hpcml", "templates"], cwd=SOURCE, capture_output=True, check=False
        )
        if archive.returncode:
            pytest.skip(f"this clone does not have the commit {OLD}")
        tar = self.cluster.work / "old.tar"
        self.old.mkdir()
        tar.write_bytes(archive.stdout)
        subprocess.run(["tar", "-xf", tar, "-C", self.old], check=True)
        python = self.cluster.run("sh", "-c", "command -v python").stdout.strip()
        start = f"import sys; sys.path.insert(0, {str(self.old)!r}); from hpcml.cli.main import main; sys.exit(main())"
        self.program = self.cluster.work / "old-hpcml"
        self.program.write_text(f"#!{python}\n{start}\n")
        for path in (self.program, self.old, *self.old.rglob("*")):
            path.chmod(0o755)
        self.python = python
        self.settings = {"HPCML_SYSTEM_CONFIG": str(self.old / "tests/lab/site")}  # written for that version
        self.stamp = self.cluster.work.name  # runs of other days are in this home too

    def submit(self, name: str, text: str, *options: str, verb: str = "submit", more: tuple[str, ...] = ()) -> Path:
        """Submit a run with the older version; return its directory."""
        script = [str(self.cluster.write(f"{name}/{name}.py", text))] if text else []
        named = ("--name", f"{name}-{self.stamp}")
        words = (str(self.program), verb, "--json", *named, *SMALL, *options, *script, *more)
        done = self.cluster.run(*words, env=self.settings)
        assert done.returncode == 0, done.stderr
        return self.directory_of(name)

    def directory_of(self, name: str) -> Path:
        """Return the directory of the only run of a name."""
        (directory,) = self.cluster.home.glob(f".hpcml/runs/{name}-{self.stamp}-2*")
        return directory

    def new(self, *words: str, status: int = 0) -> str:
        """Run a command of this version."""
        done = self.cluster.run("hpcml", *words)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str) -> Any:
        """Return what a command of this version prints as JSON."""
        return json.loads(self.new(*words, "--json"))

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for an event."""
        if not wait_for(lambda: bool(condition()), seconds, 0.1):
            pytest.fail(f"{what} did not come within {seconds} s\n{self.cluster.run('squeue').stdout}")

    def state(self, directory: Path, state: str) -> dict[str, Any]:
        """Wait for a state of a run; return its status."""
        self.until(lambda: self.json("status", directory.name)["state"] == state, f"{state} of {directory.name}")
        return dict(self.json("status", directory.name))


@pytest.fixture(scope="module")
def home(outside: Outside) -> Iterator[Home]:
    yield Home(outside)
    outside.cluster.run("scancel", "--me", "--quiet")
    outside.cluster.wait_idle(60)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the runs of this module begin at the same time."""


def begun(directory: Path, word: str) -> Callable[[], bool]:
    """Return a function that tells whether the log of a run's script has a word; an older run's log has another name."""
    logs = [directory / "logs" / name for name in ("script.log", "driver.log")]
    return lambda: any(log.exists() and word in log.read_text() for log in logs)


def test_one_that_runs(home: Home) -> None:
    directory = home.submit("runs", RUNS, "--nodes", "2")
    home.until(begun(directory, "begun 3"), "the script")
    status = home.json("status", directory.name)
    assert (status["state"], status["phase"], status["workers"], status["message"]) == (
        "RUNNING",
        "running",
        2,
        "the script runs",
    )
    assert [row["state"] for row in home.json("ls") if row["run"] == directory.name] == ["RUNNING"]
    assert "begun 3" in home.new("logs", directory.name)
    assert "worker" in home.new("logs", directory.name, "worker")

    def all_nodes_answer() -> bool:
        stacks = home.json("stacks", directory.name)
        nodes = {process["node"] for group in stacks["groups"] for process in group["processes"]}
        return nodes == set(status["nodes"]) and "runs.py" in json.dumps(stacks)

    home.until(all_nodes_answer, "the stacks of all nodes")
    top = home.new("top", "--once", directory.name)
    assert all(node in top for node in status["nodes"])
    assert "begun 3" in top
    home.new("report", directory.name)
    home.new("why", directory.name)
    opened = home.outside.tunnel(directory.name, "--port", "9310").up()
    assert opened["port"] == 9310
    assert home.outside.status_of(9310, "/status", "-L") == "200"
    follows = home.cluster.lab.popen(["hpcml", "logs", "-f", directory.name], cwd=home.cluster.work)
    (directory / "out/enough").touch(mode=0o666)
    out, error = follows.communicate(timeout=120)
    assert (follows.returncode, out.splitlines()[-1]) == (0, "last line"), error
    assert home.state(directory, "COMPLETED")["exit_status"] == 0
    assert home.new("why", directory.name)
    assert home.json("report", directory.name)["ending"]["state"] == "COMPLETED"
    again = Path(home.json("rerun", directory.name, "--nodes", "1")["directory"])
    home.until(begun(again, "begun 3"), "the script of the run again")
    home.new("cancel", again.name)
    assert home.state(again, "CANCELLED")["exit_status"] in (0, 86)  # 0: the script has seen it first, and stopped


def test_one_that_waits(home: Home) -> None:
    later = ("--set", 'slurm.extra=["--begin=now+1hour"]')
    first, second = home.submit("waits", WAITS, *later), home.submit("dropped", WAITS, *later)
    after = home.submit("afterwards", WAITS, "--after", first.name)
    for directory in (first, second, after):
        assert home.json("status", directory.name)["state"] == "PENDING"
        home.new("why", directory.name)
    home.new("cancel", second.name)
    assert home.state(second, "CANCELLED")["exit_status"] == 86
    job = json.loads((first / "submission.json").read_text())["job"]
    done = home.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert done.returncode == 0, done.stderr
    for directory in (first, after):
        assert home.cluster.run("hpcml", "wait", directory.name).returncode == 0
        assert home.state(directory, "COMPLETED")["workers"] == 1
        assert home.new("logs", directory.name) == "sum 3\n"


def test_ranks_that_run(home: Home) -> None:
    directory = home.submit("ranks", RANK, "--nodes", "2", "--ranks", "2")
    home.until(begun(directory, "rank 0"), "the ranks")
    home.until(lambda: "rank 3" in home.new("logs", directory.name), "the last rank")
    assert home.json("status", directory.name)["workers"] == 4
    assert "ranks.py" in home.new("stacks", directory.name)
    home.new("top", "--once", directory.name)
    home.new("cancel", directory.name)
    assert home.state(directory, "CANCELLED")["exit_status"] == 86
    assert home.json("why", directory.name)["failed"]


def test_a_sweep_that_is_half_done(home: Home) -> None:
    starts, let = home.cluster.work / "starts", home.cluster.work / "let"
    text = POINT.replace("STARTS", str(starts)).replace("LET", str(let))
    words = ("--grid", "k=1,2,3,4")
    name, script = f"half-{home.stamp}", home.cluster.work / "half/half.py"
    directory = home.submit("half", text, verb="sweep", more=words)
    home.until(lambda: starts.exists() and "3" in starts.read_text(), "the third point")
    found = home.json("sweep", "status", name)
    assert (found["ok"], found["under way"], found["missing"]) == (2, 2, 0), found
    again = ("sweep", "--name", name, *SMALL, str(script), *words)
    home.new(*again)  # it is under way: nothing is submitted
    assert home.directory_of("half") == directory
    home.new("cancel", directory.name)
    home.state(directory, "CANCELLED")
    found = home.json("sweep", "status", name)
    assert (found["ok"], found["failed"], found["missing"]) == (2, 0, 2), found
    let.touch(mode=0o666)
    home.new(*again[:1], "--wait", *again[1:])
    assert home.json("sweep", "status", name)["ok"] == 4
    assert sorted(starts.read_text().split()) == ["1", "2", "3", "3", "4"]  # the third one was interrupted


def test_a_chain_at_its_second_attempt(home: Home) -> None:
    ends, cancelled = (home.submit(name, CHAIN, "--until-done") for name in ("chain", "chain2"))
    for directory in (ends, cancelled):
        home.until(begun(directory, "attempts [0, 1]"), "the second attempt", 2 * PATIENCE)
        status = home.json("status", directory.name)
        assert (status["state"], status["attempt"], len(status["attempts"])) == ("RUNNING", 1, 1), status
        assert "attempt 0: " in home.new("why", directory.name)
        home.new("top", "--once", directory.name)
        home.new("stacks", directory.name)
    home.new("cancel", cancelled.name)
    assert home.state(cancelled, "CANCELLED")["exit_status"] == 86
    (ends / "out/enough").touch(mode=0o666)
    assert home.state(ends, "COMPLETED")["attempt"] == 1
    home.until(
        lambda: "chain" not in home.cluster.run("squeue", "--me", "-h", "-o", "%j").stdout, "the end of its jobs"
    )
    assert begun(ends, "attempts [0, 1]")()


def test_a_session(home: Home) -> None:
    directory = home.submit("session", "", verb="jupyter")
    home.until((directory / "attempts/0/services/jupyter.json").exists, "JupyterLab")
    status = home.json("status", directory.name)
    assert (status["state"], status["message"]) == ("RUNNING", "JupyterLab runs")
    tunnel = home.outside.tunnel(directory.name, "--port", "9320")
    assert tunnel.up()["port"] == 9320
    assert home.outside.status_of(9320, "/api") != "000"  # JupyterLab answers
    home.new("top", "--once", directory.name)
    home.new("stacks", directory.name)
    home.new("cancel", directory.name)
    assert home.state(directory, "CANCELLED")["exit_status"] == 86


def test_an_elastic_cluster(home: Home) -> None:
    program = home.cluster.write("elastic/program.py", ELASTIC.replace("OLD", repr(str(home.old))))
    process = home.cluster.lab.popen([home.python, str(program)], cwd=program.parent, env=home.settings)
    try:
        up = program.parent / "up"
        home.until(lambda: up.exists() or process.poll() is not None, "a worker")
        assert up.exists(), process.communicate()
        home.new("ls")
        home.new("ls", "--all", "--json")
        (program.parent / "enough").touch(mode=0o666)
        out, error = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "worked to the end\n"), error
    finally:
        process.kill()
    home.until(
        lambda: "elastic" not in home.cluster.run("squeue", "--me", "-h", "-o", "%j").stdout, "the end of its jobs"
    )
