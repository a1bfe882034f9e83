"""``hpcml.ElasticCluster`` with jobs that run as processes here: they come by load, are replaced, go when idle, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import slurm_here
from hpcml.kinds.dask.node import elastic_worker

pytestmark = pytest.mark.local

START = """
import json, os, subprocess, sys, time
import hpcml, hpcml.api.elastic
from distributed import Client
hpcml.api.elastic._LOOK = 1.0  # Slurm is asked often, so that nothing waits for the next look
def jobs(): return subprocess.run(["squeue", "--format=%i"], capture_output=True, text=True, check=True).stdout.split()
def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline: sys.exit("it did not come so far")
        time.sleep(0.1)
def nothing(): pass
asked = {"site": "slurm", "time": "10m", "cpus_per_node": 1, "memory_per_node": "1200M", "set": {"workers.per_node": 2}}
"""

# idle is longer than the pause between two computations, and shorter than the patience of until()
DAY = """
facts = {}
with hpcml.ElasticCluster(maximum=4, idle="5s", **asked) as cluster, Client(cluster) as client:
    facts["before"] = jobs()
    facts["answer"] = client.submit(abs, -3).result(120)
    first = jobs()
    time.sleep(1)
    client.submit(abs, -4).result(120)
    facts["kept"] = jobs() == first
    facts["link"] = client.dashboard_link
    until(lambda: not cluster.worker_spec and not jobs())
    futures = client.map(lambda x: time.sleep(2) or x, range(8), pure=False)
    until(lambda: cluster.scheduler.workers)
    lost = jobs()
    for job in lost: subprocess.run(["scancel", job], check=True)
    facts["sum"] = sum(client.gather(futures))
    facts["others"] = not set(lost) & set(jobs())
    facts["open"] = sorted(path.name for path in cluster.directory.glob("secret/*"))
facts["after"], facts["secret"] = jobs(), sorted(path.name for path in cluster.directory.glob("secret/*"))
bad = hpcml.ElasticCluster(**asked | {"set": {"runtime.setup": ["echo no such thing; exit 9"]}})
with Client(bad) as client:
    try: client.submit(abs, -1).result(120)
    except Exception as error: facts["error"] = type(error).__name__
until(lambda: bad.status.name == "closed")
facts["problem"] = str(bad.problem)
short = hpcml.ElasticCluster(unused="2s", **asked)
until(lambda: short.status.name == "closed")
import asyncio
async def inside():
    async with hpcml.ElasticCluster(asynchronous=True, **asked) as cluster, Client(cluster, asynchronous=True) as client:
        cluster.scale(2)
        return await client.submit(abs, -6)
facts["asynchronous"] = asyncio.run(inside())
facts["end"] = jobs()
print(json.dumps(facts))
"""

STAYS = """
cluster = hpcml.ElasticCluster(minimum=1, **asked)
Client(cluster).wait_for_workers(2, 120)
print(cluster.directory, flush=True)
time.sleep(600)
"""


def start(folder: Path, program: str) -> subprocess.Popen[str]:
    if not (folder / "bin").exists():
        slurm_here.put(folder / "bin")
    (folder / "program.py").write_text(START + program)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {"HOME": str(folder), "PATH": path, "LANG": "C.UTF-8", "HERE_JOBS": str(folder / "bin")}
    return subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def guards(folder: Path) -> list[bytes]:
    """Return the guards of clusters below a folder; they ask squeue, which goes with that folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes())
    return [words for words in found if b"hpcml.api.job_guard" in words and bytes(folder) in words]


def test_a_day_of_a_cluster(tmp_path: Path) -> None:
    out, errors = (process := start(tmp_path, DAY)).communicate(timeout=400)
    assert process.returncode == 0, errors
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert (facts["before"], facts["answer"], facts["kept"], facts["link"]) == ([], 3, True, "")
    assert (facts["sum"], facts["others"]) == (28, True)
    assert (facts["open"], facts["secret"]) == (["tls-cert.pem", "tls-key.pem"], [])
    assert "no such thing" in facts["problem"]
    assert "3 consecutive jobs ended" in errors
    assert "was not used for 2.0 s" in errors
    assert facts["error"] == "FutureCancelledError"
    assert (facts["asynchronous"], facts["after"], facts["end"]) == (6, [], [])
    assert "Traceback" not in errors, errors
    deadline = time.monotonic() + 120
    while guards(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_is_left_when_python_ends(tmp_path: Path) -> None:
    ends = [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]
    for number in ends:
        (tmp_path / number.name).mkdir()
    processes = [start(tmp_path / number.name, STAYS) for number in ends]
    folders = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
    for number, process, folder in zip(ends, processes, folders, strict=True):
        assert (folder / "secret").stat().st_mode & 0o777 == 0o700
        assert [path.stat().st_mode & 0o777 for path in folder.glob("secret/*")] == [0o600, 0o600]
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == -number
        assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    deadline = time.monotonic() + 120
    jobs = list(tmp_path.glob("*/bin/job-*"))
    while any(map(slurm_here.alive, jobs)) or guards(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(jobs) >= 3
    assert not [path for folder in folders for path in folder.glob("secret/*")]


LOSES_GPU = """
import asyncio, os, sys
from distributed import Client, Nanny, Scheduler
from hpcml.kinds.dask.node.elastic_worker import ElasticWorker
def bad():
    from cupy_backends.cuda.api.runtime import CUDARuntimeError
    raise CUDARuntimeError(700)
async def main():
    async with (Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler,
                Nanny(scheduler.address, host="127.0.0.1", worker_class=ElasticWorker, nthreads=1),
                Client(scheduler.address, asynchronous=True) as client):
        before = await client.submit(os.getpid, pure=False)
        try: await client.submit(bad)
        except RuntimeError as error: print("caught", error.status)
        print(before != await client.submit(os.getpid, pure=False))
if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(), 120))
"""


@pytest.mark.parametrize("restart", [True, False])
def test_a_nanny_replaces_a_worker_after_a_cuda_error_that_takes_its_gpu(tmp_path: Path, restart: bool) -> None:
    """A class of CuPy's name raises it, because no GPU is here."""
    package = tmp_path / "cupy_backends/cuda/api"
    package.mkdir(parents=True)
    (package / "runtime.py").write_text(
        "class CUDARuntimeError(RuntimeError):\n    def __init__(self, status):\n        self.status = status\n"
        "        super().__init__(status)\n"
    )
    script = tmp_path / "job.py"
    script.write_text(LOSES_GPU)
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}", elastic_worker.RESTARTS: str(restart)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["caught 700", str(restart)], done.stderr
