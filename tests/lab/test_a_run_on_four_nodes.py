"""One run on all nodes, started in a folder with an odd name: what its script finds, its report, samples, versions, top."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lab_cgroups
from conftest import ALL_NODES, Cluster, Ended
from hpcml import kinds, safe_files, samples
from hpcml.paths import RunPaths
from lab_state import PATIENCE, wait_for

pytestmark = pytest.mark.lab

MIB = 1 << 20
WORDS = ("--k", "8", "--", "a b", "", "$HOME", "it's", 'say "no"', "back\\slash", "line\nbreak", "--help", "é")
# The runs' folder has spaces, quotes and per cent signs in its name; the script's folder dollars and backslashes as well.
FOLDER = """it's a "no" %j naïve-ß"""
SCRIPT = """
import json, socket, sys, time
from distributed import Client
client = Client()
workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
import hpcml
read = lambda: open("stars.txt").read()
facts = {"workers": len(workers), "sum": client.submit(sum, [1, 2]).result(), "node": socket.gethostname(),
         "words": sys.argv[1:], "read": [read(), client.submit(read, workers=["n2"]).result()]}
(hpcml.run.out / "facts.json").write_text(json.dumps(facts))
held = client.submit(lambda: bytearray(300 << 20), workers=workers[:1])
client.submit(len, held, workers=workers[1:2]).result()
print(sum(client.gather(client.map(lambda number: sum(range(400_000)) and number, range(40)))), flush=True)
while not (hpcml.run.out / "seen").exists():
    time.sleep(0.1)
print("that was all")
"""


class Whole(NamedTuple):
    """The run: its end, what hpcml top and status said, and what it left in the nodes' /tmp."""

    ended: Ended
    views: list[dict[str, Any]]
    status: str
    left: set[tuple[str, str]]


def scratch(cluster: Cluster) -> set[tuple[str, str]]:
    return {(node, name) for node in ALL_NODES for name in cluster.run("ls", "/tmp", node=node).stdout.split()}


def is_whole(view: dict[str, Any]) -> bool:
    """Whether top shows all nodes, and the scheduler's tasks."""
    nodes = [node["name"] for node in view["nodes"] if node["cpu"] is not None and node["workers"] == 1]
    return nodes == list(ALL_NODES) and view["output"] == ["780"] and (view["work"] or {"done": 0})["done"] >= 40


def is_sampled(directory: Path) -> bool:
    """Whether each node has some samples, and the scheduler's have the bytes that went from worker to worker."""
    attempt = RunPaths(directory).attempt(0)
    nodes, dask = samples.nodes(attempt), samples.of_kind(attempt, kinds.get("dask"))
    enough = sorted(nodes) == sorted(ALL_NODES) and all(len(series.samples) >= 3 for series in nodes.values())
    return bool(enough and dask and dask.samples and (dask.samples[-1].moved.transfer or 0) >= 300 * MIB)


@pytest.fixture(scope="module", autouse=True)
def _as_alice() -> Iterator[None]:
    """Samples are alice's: only she and root may read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safe_files, "is_ours", lambda _: True)
        yield


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> Whole:
    folder = cluster.write(f"{FOLDER}/stars.txt", "sirius\n").parent
    script = cluster.write(f"{FOLDER}/$HOME back\\slash/my script.py", SCRIPT).relative_to(folder)
    runs = {"HPCML_PATHS__RUNS": str(folder / "runs")}
    words = ["hpcml", "submit", "--wait", "--nodes", "4", "--time", "5", str(script), *WORDS]
    before, views = scratch(cluster), []
    with cluster.lab.popen(words, cwd=folder, env=runs) as submit:
        assert wait_for(lambda: any(folder.glob("runs/*/submission.json")) or submit.poll() is not None, 60)
        directory = next(folder.glob("runs/*/submission.json")).parent
        top = ["hpcml", "top", "--json", "--interval", "0.5s", directory.name]
        with cluster.lab.popen(top, cwd=folder, env=runs, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                views.append(json.loads(line))
                if is_whole(views[-1]) and is_sampled(directory):
                    (directory / "out/seen").touch()
        out, err = submit.communicate(timeout=PATIENCE * 60)
    assert (process.returncode, submit.returncode) == (0, 0), (err, views)
    cluster.wait_gone(directory)
    if not (directory / "report.json").exists():  # the nodes of a busy machine did not wait for it
        assert cluster.run("hpcml", "report", directory.name, env=runs).returncode == 0
    status = cluster.run("hpcml", "status", directory.name, env=runs).stdout
    return Whole(Ended(submit.returncode, out, err, directory), views, status, scratch(cluster) - before)


def test_the_script_has_four_nodes_its_words_and_the_user_s_folder(whole: Whole) -> None:
    """It only says Client(), and runs on the first node; nothing is left on the nodes."""
    found = json.loads((whole.ended.directory / "out/facts.json").read_text())
    assert (found["workers"], found["sum"], found["node"]) == (4, 3, "n1")
    assert found["words"] == list(WORDS)
    assert found["read"] == ["sirius\n"] * 2
    assert whole.ended.out == "780\nthat was all\n"
    names = {path.name for path in whole.ended.directory.glob("logs/*")}
    assert names == {"job.log", "script.log", "scheduler.log", *(f"worker-{node}.log" for node in ALL_NODES)}
    assert whole.left == set()


def test_the_report(whole: Whole) -> None:
    found = json.loads((whole.ended.directory / "report.json").read_text())
    ledger = found["ledger"]
    assert sum(ledger["parts"].values()) == pytest.approx(ledger["paid"], rel=0.01)
    assert found["job"] == whole.ended.events[0]["job"]
    assert found["nodes"] == sorted(ledger["of_each"]) == list(ALL_NODES)
    assert ledger["parts"]["useful"] > 0


def test_samples_are_each_node_s_own(whole: Whole) -> None:
    attempt = RunPaths(whole.ended.directory).attempt(0)
    nodes, dask = samples.nodes(attempt), samples.of_kind(attempt, kinds.get("dask"))
    assert sorted(nodes) == sorted(ALL_NODES)
    for name, series in nodes.items():
        assert series.header.node == name
        assert series.events == ()
    if lab_cgroups.available():  # version 1 with memory alone: a job's processors are counted with the node's
        assert {series.header.scope.memory for series in nodes.values()} == {"cgroup"}
        most = {name: max(sample.memory or 0 for sample in series.samples) for name, series in nodes.items()}
        assert sum(used > 350 * MIB for used in most.values()) in (1, 2, 3)  # those that hold or got the bytes
        assert all(used < 3000 * MIB for used in most.values())
    assert dask is not None
    assert {worker for sample in dask.samples for worker in sample.workers} == set(ALL_NODES)


def test_all_roles_have_the_same_versions(cluster: Cluster, whole: Whole) -> None:
    version = cluster.run("python", "-c", "import distributed; print(distributed.__version__)").stdout.strip()
    ready = next(event for event in whole.ended.events if event["event"] == "environment-ready")
    assert (ready["versions"]["distributed"], ready["differences"]) == (version, [])
    assert f"✓ {'python':<10} 6 processes, python 3." in whole.ended.err
    assert "versions   6 processes, python 3." in whole.status


def test_top_from_the_queue_to_the_end(whole: Whole) -> None:
    view = next(view for view in whole.views if is_whole(view))
    assert all(0 < node["memory"] < node["memory_size"] for node in view["nodes"])
    last = whole.views[-1]
    assert (last["over"], last["state"], last["output"]) == (True, "COMPLETED", ["780", "that was all"])


def test_eight_workers_of_a_node_make_few_files(cluster: Cluster) -> None:
    """However many workers a node has: quotas and file systems count files. With one worker there are 28 as well."""
    script = "import hpcml\nprint(len(hpcml.connect().scheduler_info(n_workers=-1)['workers']), 'workers')\n"
    of_each_cpu = ("--set", "workers.threads=1", "--set", "workers.memory_limit=300M")  # the node has 8 CPUs
    ended = cluster.submit(script, "--nodes", "1", *of_each_cpu)
    assert "8 workers" in ended.out, ended.err
    names = [str(path.relative_to(ended.directory)) for path in ended.directory.rglob("*") if path.is_file()]
    own = [name for name in names if not name.startswith("code/")]  # other tests' scripts are in the same folder
    assert len(own) < 29, sorted(own)
