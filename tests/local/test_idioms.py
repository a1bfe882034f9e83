"""Scripts that open a Dask cluster in the ways that people do: unchanged in a run, on the run's own workers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from test_local import Here, here

pytestmark = pytest.mark.local
IDIOMS = Path(__file__).parent / "idioms"
__all__ = ["here"]

# What is noted of each: what was called, in which line.
NOTES = {
    "client_options": ["Client 6"],
    "local_cluster": [
        "LocalCluster 12",
        "scale 13",
        "LocalCluster 12",
        "scale 13",
        "LocalCluster 18",
        "adapt 20",
        "scale 21",
    ],
    "slurm_cluster": ["SLURMCluster 30", "scale 40"],
    "slurm_runner": ["SLURMRunner 6"],
    "mpi": ["dask_mpi.initialize 6"],
    "scheduler_file": ["Client 7"],
    "old_address": ["Client 6"],
    "derived": ["QuietCluster 8"],
    "asynchronous": ["LocalCluster 11", "Client 15"],
    "hpcml_connect": ["hpcml.connect 19"],
    "resources": ["LocalCluster 6", "Client 8", "SLURMCluster 10"],
    "site_cluster": ["SiteCluster 11", "scale 15", "SpecCluster 21"],
    "threads": ["Client 6"],
    "futures": ["Client 88", "Client 82"],
    "clusters": ["LocalCluster 10", "scale 11", "LocalCluster 25", "adapt 26", "Client 34", "Client 36"],
    "learning": ["Client 17"],
}

# What workers do not get of them, and what other clusters' workers get.
LACKING = {
    "slurm_cluster": [
        "SLURMCluster in line 30: the workers do not get module load cuda (set runtime.modules or runtime.setup); "
        "GPUs of --gres=gpu:1 (submit with --gpus-per-node).",
        "Client in line 54: clusters opened before have the same workers, which now get LATER, SCALE.",
    ]
}
APART = ", in processes of their own: what a task changes in the script's memory is not seen there"


def notes(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("hpcml: ") for line in done.stdout.splitlines() if line.startswith("hpcml: ")]


@pytest.mark.parametrize("name", NOTES)
def test_a_script_that_opens_its_own_cluster_gets_the_runs(here: Here, name: str) -> None:
    (here.folder / f"{name}.py").write_text((IDIOMS / f"{name}.py").read_text())
    done = here.run("submit", "--nodes", "2", "--wait", f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result True" in done.stdout.splitlines()
    used = [note for note in notes(done) if "workers do not get" not in note and "which now get" not in note]
    assert [re.sub(r"\([^:]*\) in", " in", note) for note in notes(done) if note not in used] == LACKING.get(name, [])
    assert [re.sub(r"\(.*\) in line", "", note.rpartition(": this")[0]) for note in used] == NOTES[name]
    apart = name == "threads"
    given = f"this run's 2 workers on 2 nodes are used{APART if apart else ''}."
    assert all(note.endswith(f": {given}") for note in used)
    assert not re.search("WARNING|Traceback|Exception", done.stdout)


def test_every_idiom_has_its_notes() -> None:
    assert {path.stem for path in IDIOMS.glob("*.py")} == set(NOTES)


ERROR = """
import helper
def outer():
    helper.fail({})
try:
    {}["a"]
except KeyError:
    outer()
"""


def test_a_traceback_names_the_files_as_they_were_submitted(here: Here) -> None:
    (here.folder / "helper.py").write_text("def fail(table):\n    return table['b']\n")
    done = here.submit(ERROR)
    assert done.returncode == 1
    files = [line.split('"')[1] for line in done.stdout.splitlines() if line.startswith("  File ")]
    script = str(here.folder / "my script.py")
    assert files == [script, script, script, str(here.folder / "helper.py")], done.stdout
    assert "KeyError: 'b'" in done.stdout
    assert "During handling of the above exception" in done.stdout


def test_a_module_named_hpcml_beside_the_script_is_the_scripts(here: Here) -> None:
    (here.folder / "hpcml.py").write_text("NAME = 'own'\n")
    done = here.submit("import hpcml\nprint('result', hpcml.NAME)\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result own" in done.stdout
    assert "a module hpcml beside the script hides hpcml's own" in done.stdout


def test_a_folder_named_hpcml_hides_nothing(here: Here) -> None:
    (here.folder / "hpcml").mkdir()
    (here.folder / "hpcml" / "data.txt").write_text("1")
    done = here.submit("import hpcml\nprint('result', hpcml.connect(n_workers=2).submit(sum, [1, 2]).result())\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result 3" in done.stdout
    assert notes(done) == ["hpcml.connect(n_workers=2) in line 2: this run's 1 worker on 1 node is used."]


OTHER = """
from dask.distributed import Client, Scheduler, Worker, Security
import asyncio, os, sys
async def main():
    security = Security.temporary()
    async with Scheduler(port=0, host="127.0.0.1", security=security, dashboard=False, dashboard_address=None) as scheduler:
        async with Client(scheduler.address, asynchronous=True, security=security) as client:
            print("result", client.scheduler.address == scheduler.address != os.environ["DASK_SCHEDULER_ADDRESS"])
asyncio.run(main())
"""


def test_another_scheduler_that_answers_is_the_one_that_was_asked_for(here: Here) -> None:
    done = here.submit(OTHER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result True" in done.stdout
    assert not notes(done)


BY_HAND = """
import asyncio, os, psutil
from distributed import Client, Scheduler, Worker
async def main():
    async with Scheduler() as scheduler, Worker(scheduler.address) as worker:
        async with Client(scheduler.address, asynchronous=True) as client:
            doors = {one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}
            print("result", await client.submit(sum, [1, 2]), doors == {scheduler.port, worker.port})
asyncio.run(main())
"""


def test_a_scheduler_by_hand_is_used_and_has_no_page_for_everybody(here: Here) -> None:
    """Its two ports talk TLS to those who have the run's key; Dask's HTTP pages ask nobody."""
    done = here.submit(BY_HAND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result 3 True" in done.stdout
    assert "WARNING" not in done.stdout
    (note,) = notes(done)
    assert note.startswith("Client('tls://")
    assert note.endswith(
        "in line 6: the scheduler that answers there is used, and none of this run's 1 worker on 1 node."
    )


CUDA = {
    "__init__": "from .local_cuda_cluster import LocalCUDACluster\n",
    "local_cuda_cluster": """
from distributed import LocalCluster
class LocalCUDACluster(LocalCluster):
    def __init__(self, CUDA_VISIBLE_DEVICES=None, rmm_pool_size=None, **options):
        super().__init__(n_workers=0, **options)
        self.new_spec["options"]["preload"] = []
""",
}


def test_a_local_cuda_cluster_is_the_runs_too(here: Here) -> None:
    """dask-cuda's class is derived from LocalCluster, and its package is imported after Dask's."""
    (here.folder / "dask_cuda").mkdir()
    for name, text in CUDA.items():
        (here.folder / "dask_cuda" / f"{name}.py").write_text(text)
    done = here.submit("from dask.distributed import Client\nfrom dask_cuda import LocalCUDACluster\n"
                       "with LocalCUDACluster(rmm_pool_size='4GiB') as cluster, Client(cluster) as client:\n"
                       "    print('result', client.submit(sum, [1, 2]).result())\n")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result 3" in done.stdout
    assert notes(done) == ["LocalCUDACluster(rmm_pool_size='4GiB') in line 3: this run's 1 worker on 1 node is used."]


LOOKS_INSIDE = """
from distributed import LocalCluster
cluster = LocalCluster(n_workers=2)
print("result", len(cluster.scheduler.workers), cluster.scheduler.address == cluster.scheduler_address)
cluster.scale(0)
cluster.scheduler.retire_workers()
"""


def test_a_script_that_looks_into_the_scheduler_is_told_where_it_is(here: Here) -> None:
    done = here.submit(LOOKS_INSIDE)
    assert done.returncode == 1
    assert "result 1 True" in done.stdout
    assert "scale(0) in line 5" in done.stdout
    assert (
        "AttributeError: cluster.scheduler.retire_workers: the run's scheduler is a process of its own;" in done.stdout
    )


WAITS_BY_ITSELF = """
import time
from distributed import Client, LocalCluster
cluster = LocalCluster(n_workers=16)
client = Client(cluster)
for attempt in range(30):
    if len(client.scheduler_info()["workers"]) >= 16:
        break
while attempt > 9 and len(cluster.workers) < 16:
    attempt -= 1
"""


def test_a_script_that_counts_workers_in_a_loop_is_told_that_no_more_come(here: Here) -> None:
    """Once for each such line; it would wait for ever, with its nodes."""
    done = here.submit(WAITS_BY_ITSELF)
    assert done.returncode == 0, done.stdout + done.stderr
    used, *told = notes(done)
    assert used.startswith("LocalCluster(n_workers=16)")
    there = "this run's 1 worker on 1 node is all there will be."
    assert told == [
        f"scheduler_info(), asked 10 times in line 7: {there}",
        f"scheduler_info, asked 10 times in line 9: {there}",
    ]


OWN = """
import json, os, psutil, subprocess, sys
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    me = psutil.Process()
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        own = {me.pid, *(child.pid for child in me.children(recursive=True))}
        doors = [one.laddr for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in own]
        hosts = sorted({host for host, _ in doors})
        print("result", json.dumps([len(client.nthreads()), hosts, len(doors), client.submit(sum, [1, 2]).result(),
                                    cluster.scheduler_address != os.environ["DASK_SCHEDULER_ADDRESS"]]))
    with Client(n_workers=1) as client:
        print(len(client.nthreads()), client.cluster.dashboard_link)
    with Client() as client:
        print(client.scheduler.address == os.environ["DASK_SCHEDULER_ADDRESS"])
    show = "import distributed; print([one.__name__ for one in distributed.LocalCluster.__mro__[1:3]])"
    subprocess.run([sys.executable, "-c", show])
"""


def test_own_clusters_are_closed_to_others(here: Here) -> None:
    done = here.submit(OWN, "--own-clusters")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'result [2, ["127.0.0.1"], 5, 3, true]' in done.stdout  # a scheduler, two workers, their Nannies
    assert done.stdout.splitlines()[-3:] == ["1 ", "True", "['Own', 'ClosedCluster']"]
    beside = "a cluster of its own on this node (--own-clusters), beside this run's 1 worker on 1 node."
    assert notes(done) == [f"LocalCluster(n_workers=2, threads_per_worker=1) in line 7: {beside}",
                           f"LocalCluster(n_workers=1) in line 13: {beside}"]  # fmt: skip


CHILDREN = """
import glob, json, multiprocessing, os, subprocess, sys, warnings
class Sum:
    def __call__(self, numbers): return sum(numbers)
def child(kind):
    from dask.distributed import Client, LocalCluster
    with LocalCluster(n_workers=7) as cluster, Client(cluster) as client:
        print(kind, len(client.nthreads()), client.gather(client.map(Sum(), [[1, 2]]))[0], flush=True)
    if kind == "spawn":
        warnings.warn("mine")
        1 / 0
if __name__ == "__main__":
    for kind in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(kind).Process(target=child, args=(kind,))
        process.start()
        process.join()
    os.environ["SCALE"] = "10"
    subprocess.run([sys.executable, "beside.py"], check=True)
    (versions,) = glob.glob(os.environ["HPCML_RUN_DIR"] + "/attempts/0/versions/scheduler@*")
    with open(versions) as file:
        changed = {**json.load(file), "distributed": "1.2.3"}
    with open(versions, "w") as file:
        json.dump(changed, file)
    subprocess.run([sys.executable, "-c", "import distributed; print('other', hasattr(distributed.Client, 'of_hpcml'))"])
"""
BESIDE = "import os\nfrom dask.distributed import Client\nclient = Client(n_workers=7)\nprint('beside', len(client.nthreads()), client.submit(os.getenv, 'SCALE').result())\n"


def test_what_the_script_starts_opens_the_run_s_cluster_too(here: Here) -> None:
    """But a process whose Dask has another version, which could not talk to the run's scheduler."""
    (here.folder / "beside.py").write_text(BESIDE)
    done = here.submit(CHILDREN, "--set", "workers.per_node=2")
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("spawn", "fork", "beside", "other"))]
    assert said == ["spawn 2 3", "forkserver 2 3", "fork 2 3", "beside 2 10", "other False"], done.stdout
    script = here.folder / "my script.py"
    assert f'{script}:10: UserWarning: mine\n  warnings.warn("mine")\n' in done.stdout
    assert f'File "{script}", line 11, in child\n    1 / 0\n' in done.stdout
    used = "this run's 2 workers on 1 node are used."
    of_script, of_file, other = (*dict.fromkeys(notes(done)),)
    assert of_script == f"LocalCluster(n_workers=7) in line 7: {used}"
    assert of_file == f"Client(n_workers=7) in beside.py, line 3: {used}"
    assert re.fullmatch(
        r"process \d+ cannot use the run's cluster: distributed is [\d.]+ here, and 1.2.3 in the run.", other
    )


BACKENDS = """
import dask, hpcml
client = hpcml.connect()
print(dask.config.get("array.backend"), set(client.run(dask.config.get, "array.backend").values()))
client = hpcml.connect(backend="auto")
print(dask.config.get("array.backend"))
for name in ("gpu", "gpus"):
    try:
        hpcml.connect(backend=name)
    except ValueError as error:
        print(error)
hpcml.connect(backend="cpu")
print(dask.config.get("array.backend"), set(client.run(dask.config.get, "array.backend").values()))
"""


def test_backends_are_the_scripts_choice(here: Here) -> None:
    done = here.submit(BACKENDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-5:] == [
        "numpy {'numpy'}", "numpy",
        "hpcml.connect(backend='gpu'): this run has no GPU workers; submit with --gpus-per-node",
        "hpcml.connect(backend='gpus'): no such backend; there are auto, cpu and gpu", "numpy {'numpy'}"]  # fmt: skip
