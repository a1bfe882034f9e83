"""Scripts that open a Dask cluster in the ways that people do: unchanged in a run, on the run's own workers.

One run runs them all, one after another in one process, as each would run alone: those of ``idioms``, and both scripts
of each pair of docs/porting.md. It lies beside a folder ``hpcml`` that holds no code, and ends with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from homes import Here, here, home
from tests.said import says

pytestmark = pytest.mark.local
IDIOMS = Path(__file__).parent / "idioms"
PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
__all__ = ["here"]

# What is noted of each: what was called, in which line.
NOTES = {
    "slurm_cluster": ["SLURMCluster 30", "scale 40"],
    "slurm_runner": ["SLURMRunner 6"],
    "mpi": ["dask_mpi.initialize 6"],
    "scheduler_file": ["Client 7"],
    "old_address": ["Client 6"],
    "own_security": ["LocalCluster 8", "Client 12"],
    "asynchronous": ["LocalCluster 11", "Client 15"],
    "hpcml_connect": ["hpcml.connect 18"],
    "resources": ["LocalCluster 6", "Client 8", "SLURMCluster 10"],
    "site_cluster": ["SiteCluster 11", "scale 15", "SpecCluster 21"],
    "threads": ["Client 6"],
    "futures": ["Client 66", "Client 60"],
    "clusters": ["LocalCluster 8", "scale 9", "LocalCluster 8", "scale 9", "LocalCluster 15", "adapt 16", "Client 25", "Client 27"],
    "backends": [],
    "other_scheduler": [],
}  # fmt: skip
# What workers do not get of them, and what other clusters' workers get.
LACKING = {
    "slurm_cluster": [
        "SLURMCluster in line 30: the workers do not get the job script's line 'module load cuda' (set runtime.modules or runtime.setup); "
        "the GPUs that --gres=gpu:1 requests (submit with --gpus-per-node).",
        "Client in line 54: clusters that the script opened earlier use the same workers, which now get LATER, SCALE.",
    ]
}
APART = ", in separate processes: tasks cannot change the script's variables"
USED = re.compile(r"line (\d+): instead of ([\w.]+)\(.*\), hpcml.*")
GIVEN = "hpcml uses this run's 2 workers on 2 nodes"
THREADS = r" \(one thread per CPU(; for \d+ workers: --set workers\.per_node=\d+)?\)"

# The names of classes that slurm_cluster.py pickles are those of the script that was submitted: its text stands between
# these two. Before it nothing imports Dask: children.py forks.
FIRST = "; ".join([
    "import os, runpy", "from pathlib import Path",
    "run = lambda name: runpy.run_path(f'{Path(__file__).parent}/{name}.py', run_name='__main__')",
    "print('script children', flush=True)", "run('children')", "del os.environ['SCALE']", "print('script slurm_cluster')\n",
])  # fmt: skip
THEN = """
import sys, helper
other.close()
del os.environ["LATER"]
kept = dict(os.environ)
for name in NAMES:
    os.environ.clear()
    os.environ.update(kept)
    print("script", name, flush=True)
    try:
        ran = run(name)
    except AttributeError as error:
        print("AttributeError:", error)
    else:
        for one in (ran.get("client"), ran.get("cluster")):
            if one and not isinstance(one, type):
                one.close()
print("script error", flush=True)
def outer():
    helper.fail({})
try:
    {}["a"]
except KeyError:
    outer()
"""
HELPER = "def fail(table):\n    return table['b']\n"
CUDA = """
from distributed import LocalCluster
class LocalCUDACluster(LocalCluster):
    def __init__(self, CUDA_VISIBLE_DEVICES=None, rmm_pool_size=None, **options):
        super().__init__(n_workers=0, **options)
        self.new_spec["options"]["preload"] = []
"""

PORTS = PAGE.read_text().partition("## Four ports")[2].partition("\n## ")[0]
PAIRS = {
    part.partition("\n")[0]: tuple(re.findall(r"```python\n(.*?)```", part, re.DOTALL))
    for part in PORTS.split("\n### ")[1:]
}
NOTED = {"LocalCluster": 1, "LocalCUDACluster": 1, "SLURMCluster": 2, "joblib": 1}


class Ran(NamedTuple):
    """The run of all scripts: its place, its status, and what each of them wrote."""

    here: Here
    status: int
    said: dict[str, list[str]]

    def notes(self, name: str) -> list[str]:
        """Return what hpcml said of a script, with the place as it is named to a script that was submitted itself."""
        notes = [line.removeprefix("hpcml: ") for line in self.said[name] if line.startswith("hpcml: ")]
        return [note.replace(f" in {name}.py, line ", " in line ").removeprefix(f"{name}.py, ") for note in notes]


def outputs(text: str) -> dict[str, list[str]]:
    """Return the lines that each script wrote, by its name."""
    parts = re.split(r"^script (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], [part.splitlines() for part in parts[1::2]], strict=True))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    with home(tmp_path_factory.mktemp("idioms")) as here:
        texts = {path.stem: path.read_text() for path in IDIOMS.glob("*.py")}
        _, _, slurm_cluster = texts.pop("slurm_cluster").partition("\n")
        for number, (before, after) in enumerate(PAIRS.values()):
            texts |= {f"port-{number}-before": before.replace("cupy", "numpy"),  # there is no CuPy here
                      f"port-{number}-after": after}  # fmt: skip
        names = sorted(texts.keys() - {"children"})
        for folder in ("dask_cuda", "hpcml"):
            (here.folder / folder).mkdir()
        (here.folder / "hpcml" / "data.txt").write_text("1")
        texts |= {"helper": HELPER, "dask_cuda/__init__": "from .local_cuda_cluster import LocalCUDACluster\n"}
        for name, text in {**texts, "dask_cuda/local_cuda_cluster": CUDA}.items():
            (here.folder / f"{name}.py").write_text(text)
        script = here.script(FIRST + slurm_cluster + THEN.replace("NAMES", repr(names)))
        done = here.run("submit", "--nodes", "2", "--wait", script, timeout=1200)
        said = outputs(done.stdout)
        for name in said.keys() - {"slurm_cluster"}:  # they know of each other's clusters, which some leave open
            said[name] = [line for line in said[name] if "clusters that the script opened earlier use" not in line]
        yield Ran(here, done.returncode, said)


@pytest.mark.parametrize("name", NOTES)
def test_a_script_that_opens_its_own_cluster_gets_the_runs(ran: Ran, name: str) -> None:
    said, notes = ran.said[name], ran.notes(name)
    assert "result True" in said, said
    used = [note for note in notes if "workers do not get" not in note and "which now get" not in note]
    assert [re.sub(r"\([^:]*\) in", " in", note) for note in notes if note not in used] == LACKING.get(name, [])
    assert [USED.sub(r"\2 \1", note) for note in used] == NOTES[name]
    apart = APART if name == "threads" else ""
    assert all(re.search(f", {GIVEN}{THREADS}{apart}\\.$", note) for note in used)
    text = "\n".join(said)
    # what Dask itself logs where a client closes before its last message has left
    text = re.sub(
        r".*distributed\.batched - INFO - Batched Comm Closed(?s:.*?)\ndistributed\.comm\.core\.CommClosedError.*\n",
        "",
        text,
    )
    assert not re.search("WARNING|Traceback|Exception", text)


def test_a_traceback_names_the_files_as_they_were_submitted(ran: Ran) -> None:
    assert ran.status == 1
    files = [line.split('"')[1] for line in ran.said["error"] if line.startswith("  File ")]
    script = str(ran.here.folder / "my script.py")
    assert files == [script, script, script, str(ran.here.folder / "helper.py")]
    assert "KeyError: 'b'" in ran.said["error"]
    assert "During handling of the above exception, another exception occurred:" in ran.said["error"]


def test_a_scheduler_by_hand_is_used_and_has_no_page_for_everybody(ran: Ran) -> None:
    said = ran.said["scheduler_by_hand"]
    assert "result True" in said
    assert "WARNING" not in "\n".join(said)
    (note,) = ran.notes("scheduler_by_hand")
    assert re.match(r"Client\('tls://.* in line 13: the script uses the scheduler at this address, not this run's 2 "
                    rf"workers on 2 nodes{THREADS}\.$", note)  # fmt: skip


def test_a_script_that_looks_into_the_scheduler_is_told_where_it_is(ran: Ran) -> None:
    said = ran.said["looks_inside"]
    assert "result True" in said
    assert [note.partition(",")[0] for note in ran.notes("looks_inside")] == [
        "line 5: instead of LocalCluster(n_workers=2)",
        "line 7: instead of scale(0)",
    ]
    assert said[-1].startswith("AttributeError: cluster.scheduler.retire_workers: the scheduler is a separate process.")


def test_a_script_that_counts_workers_in_a_loop_is_told_that_no_more_come(ran: Ran) -> None:
    """Once for each such line; it would wait for ever, with its nodes."""
    assert "result True" in ran.said["counts_workers"]
    used, *told = ran.notes("counts_workers")
    assert "instead of LocalCluster(n_workers=16)" in used
    there = "this run's 2 workers on 2 nodes (one thread per CPU) are the maximum."
    assert told == [
        f"scheduler_info(), asked 10 times in line 8: {there}",
        f"scheduler_info, asked 10 times in line 10: {there}",
    ]


def test_what_the_script_starts_opens_the_run_s_cluster_too(ran: Ran) -> None:
    """But a process whose Dask has another version, which could not talk to the run's scheduler."""
    lines = ran.said["children"]
    said = [line for line in lines if line.startswith(("spawn", "fork", "beside", "other"))]
    assert said == ["spawn 2 3", "forkserver 2 3", "fork 2 3", "beside 2 10", "other False"], lines
    text, script = "\n".join(lines), ran.here.folder / "children.py"
    assert f'{script}:31: UserWarning: mine\n  warnings.warn("mine", stacklevel=1)\n' in text
    assert f'File "{script}", line 32, in child\n    raise ValueError(kind)\n' in text
    of_script, of_file, other = (*dict.fromkeys(ran.notes("children")),)
    assert of_script == says("line 28: ", "LocalCluster(n_workers=7)", GIVEN)
    assert of_file == says("beside.py, line 4: ", "Client(n_workers=7)", GIVEN)
    assert re.fullmatch(
        r"process \d+ cannot use the run's Dask cluster: distributed is [\d.]+ in this process but 1.2.3 in the run.",
        other,
    )


def test_both_of_each_pair_of_the_page_give_the_same(ran: Ran) -> None:
    for number, name in enumerate(PAIRS):
        before, after = ran.said[f"port-{number}-before"], ran.said[f"port-{number}-after"]
        said = [line for line in before if line.startswith("hpcml: ")]
        assert [line for line in before if line not in said] == after != [], name
        assert len(said) == NOTED[name], said
        assert all(re.search(f", {GIVEN}{THREADS}\\.$", line) for line in said)


OWN = """
import json, os, psutil
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    me = psutil.Process()
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        own = {me.pid, *(child.pid for child in me.children(recursive=True))}
        doors = [one.laddr for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in own]
        hosts = sorted({host for host, _ in doors})
        print("result", json.dumps([len(client.nthreads()), hosts, len(doors), client.submit(sum, [1, 2]).result(),
                                    cluster.scheduler_address != os.environ["DASK_SCHEDULER_ADDRESS"]]))
    with Client() as client:
        print(client.scheduler.address == os.environ["DASK_SCHEDULER_ADDRESS"])
"""


def test_own_clusters_are_closed_to_others(here: Here) -> None:
    done = here.submit(OWN, "--own-clusters")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'result [2, ["127.0.0.1"], 5, 3, true]' in done.stdout  # a scheduler, two workers, their Nannies
    assert "True" in done.stdout.splitlines()
    beside = "a separate cluster on this node (--own-clusters), in addition to this run's 1 worker on 1 node (one thread per CPU)."
    notes = [line.removeprefix("hpcml: ") for line in done.stdout.splitlines() if line.startswith("hpcml: ")]
    assert notes == [f"LocalCluster(n_workers=2, threads_per_worker=1) in line 7: {beside}"]
