"""hpcml.connect() outside a run: a cluster of this machine that talks to nobody else of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from distributed import Worker, WorkerPlugin

from hpcml.kinds.dask.node.dask_worker import PrivateWorker
from hpcml.kinds.dask.node.script.cluster_outside_runs import ClosedCluster, ClosedScheduler

pytestmark = pytest.mark.local

ALONE = """
import glob, hpcml, json, os, psutil, stat, sys

def seen():
    import sys
    return [entry for entry in sys.path if os.environ["TMPDIR"] in entry]

def folders():
    return glob.glob(os.environ["TMPDIR"] + "/hpcml_*")

def main():
    client = hpcml.connect(n_workers=2, threads_per_worker=1)
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    doors = [one.laddr for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in own]
    found = {"doors": doors, "sum": client.submit(sum, [1, 2]).result(), "workers": len(client.nthreads()), "shown": client._repr_html_()[:4],
             "link": client.cluster.dashboard_link, "path": client.run_on_scheduler(seen),
             "paths": sum(client.run(seen).values(), []), "modes": [stat.S_IMODE(os.stat(path).st_mode) for path in folders()]}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    client.cluster.close()
    client.close()
    print(json.dumps([seen(), folders()]))

if __name__ == "__main__":
    main()
"""

WITHOUT_GUARD = """
import os, sys
print("runs", flush=True)
import hpcml

class Pair:
    def __init__(self, value):
        self.value = value

def paired(value):
    import beside
    return Pair(beside.twice(value)), os.getpid()

client = hpcml.connect(n_workers=1, threads_per_worker=1)
kept = client.map(paired, range(4), pure=False)  # wanted until the end: Dask would warn of them
results = [future.result() for future in kept]
pids = set(client.run(os.getpid).values())
print(len(pids), os.getpid() in pids, sum(pair.value for pair, _ in results), type(results[0][0]) is Pair, flush=True)
"""
EXPECTED = "runs\n1 False 12 True\n"
WAYS = {  # the arguments of Python, whether it reads the script, how the script ends, and the status
    "script, Ctrl-C": (["script.py"], False, "import signal, time\nclient.submit(time.sleep, 60)\ntime.sleep(1)\n"
                       "os.killpg(0, 2)\ntime.sleep(60)", -2),
    "-m, SIGKILL": (["-m", "package.module"], False, "os.kill(os.getpid(), 9)", -9),
    "REPL, an exception": (["-i", "-q"], True, "1 / 0\nsys.exit(3)", 3),
}  # fmt: skip


def prepare(folder: Path, script: str) -> dict[str, str]:
    """Write a script, as a module too, and one beside it; return an environment whose TMPDIR is empty."""
    (folder / "tmp").mkdir()
    (folder / "package").mkdir()
    for path in ("script.py", "package/module.py"):
        (folder / path).write_text(script)
    (folder / "beside.py").write_text("def twice(value):\n    return 2 * value\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "DASK_"))}
    # Dask gives a worker up that is not there again after 15 s, which a busy machine takes.
    return own | {"TMPDIR": str(folder / "tmp"), "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "500s"}


def wait_until_gone(folder: Path) -> None:
    """Wait until no process has the folder in its environment, and nothing is left in its ``tmp``."""
    until = time.monotonic() + 120
    while left := (processes_of(folder), list((folder / "tmp").glob("hpcml_*"))):
        if left == ([], []):
            return
        assert time.monotonic() < until, left
        time.sleep(0.1)


def processes_of(folder: Path) -> list[psutil.Process]:
    mine = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder / "tmp"):
                mine.append(process)
    return mine


@pytest.mark.parametrize("way", WAYS)
def test_no_main_guard_is_needed_and_nothing_is_left_behind(tmp_path: Path, way: str) -> None:
    arguments, reads, line, status = WAYS[way]
    text = f"{WITHOUT_GUARD}{line}\n"
    done = subprocess.run([sys.executable, *arguments], env=prepare(tmp_path, text), cwd=tmp_path, input=text if reads else "",
                          capture_output=True, text=True, timeout=240, check=False, start_new_session=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (status, EXPECTED), done.stderr
    # Dask's own, on a busy machine: a heartbeat of a closed worker, and a worker that Ctrl-C killed with its results.
    late = ("Received heartbeat from unregistered worker", *["Removing worker"] * ("Ctrl-C" in way))
    warnings = [line for line in done.stderr.splitlines() if "distributed.scheduler - WARNING" in line]
    assert all(any(text in line for text in late) for line in warnings), done.stderr
    wait_until_gone(tmp_path)


LIFE = """
import asyncio, os, signal, time, hpcml

client = hpcml.connect(n_workers=1, threads_per_worker=1, memory_limit="500MB", local_directory=os.environ["TMPDIR"],
                       dashboard_address=":0", silence_logs=40)
def pids():
    return sorted(client.run(os.getpid).values())
client.cluster.scale(2)
client.wait_for_workers(2, timeout=500)
before = pids()
client.restart(timeout=500)
client.wait_for_workers(2, timeout=500)
assert not set(before) & set(pids()), "restart"
known = set(client.nthreads())
os.kill(pids()[0], signal.SIGKILL)
while known == set(client.nthreads()):  # by address: its nanny can have another there before anybody counts one
    time.sleep(0.05)
client.wait_for_workers(2, timeout=500)
client.cluster.adapt(minimum=3, maximum=3)
client.wait_for_workers(3, timeout=500)
client.cluster.close()
client.close()

with hpcml.connect(processes=False, n_workers=1) as inside:
    assert inside.submit(os.getpid).result() == os.getpid()
inside.cluster.close()

async def later():
    client = await hpcml.connect(asynchronous=True, n_workers=1)
    assert await client.submit(sum, [1, 2]) == 3
    await client.cluster.close()
    await client.close()

asyncio.run(later())
print("done")
"""


def test_a_cluster_s_life_without_main_guard(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "script.py"], env=prepare(tmp_path, LIFE), cwd=tmp_path, capture_output=True,
                          text=True, timeout=1800, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    wait_until_gone(tmp_path)


def answers(port: int, *, tls: bool) -> bytes:
    """Return what a stranger on this machine gets for a page: over plain TCP, or TLS without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    wire: socket.socket | ssl.SSLSocket = plain
    try:
        wire = context.wrap_socket(plain) if tls else plain
        wire.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        return wire.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        wire.close()
        plain.close()


def test_nobody_else_on_the_machine_is_answered_nor_plants_a_folder(tmp_path: Path) -> None:
    """Dask's own folder is $TMPDIR/dask-scratch-space, whoever it belongs to; code in it would be imported first."""
    environment = prepare(tmp_path, ALONE)
    common, planted = tmp_path / "tmp", tmp_path / "tmp" / "dask-scratch-space"
    planted.mkdir()
    common.chmod(0o1777)
    planted.chmod(0o777)
    with subprocess.Popen([sys.executable, "script.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment, cwd=tmp_path) as process:  # fmt: skip
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert {host for host, _ in found["doors"]} == {"127.0.0.1"}
        ports = [port for _, port in found["doors"]]
        assert len(ports) == 5  # a scheduler, two workers, their Nannies
        assert 8787 not in ports
        for port in ports:
            assert answers(port, tls=False) == b""
            assert answers(port, tls=True) == b""
        last, errors = process.communicate("", timeout=120)
    assert process.returncode == 0
    assert "8787" not in errors
    assert (found["sum"], found["workers"], found["shown"].strip()[:1], found["link"]) == (3, 2, "<", "")
    assert len(found["paths"]) >= 2
    assert found["path"]
    assert not [path for path in found["path"] + found["paths"] if not path.startswith(f"{common}/hpcml_")]
    assert set(found["modes"]) == {0o700}
    assert json.loads(last) == [[], []]
    assert list(planted.iterdir()) == []


def test_a_place_that_others_may_change_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(RuntimeError, match=r"other users may replace the contents of .*/open .*; set TMPDIR"):
        ClosedCluster(local_directory=str(place), n_workers=0)
    assert list(place.iterdir()) == []


def test_a_heartbeat_that_closes_a_worker_is_not_broken_off(tmp_path: Path) -> None:
    """The scheduler's word that it has removed a worker comes while the answer to a heartbeat has begun to close it."""

    async def close_from_both_sides() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        class Slow(WorkerPlugin):  # type: ignore[misc]
            async def teardown(self, worker: Worker) -> None:  # noqa: ARG002 - by its name
                begun.set()
                await go_on.wait()

        async def missing(**_: object) -> dict[str, str]:
            return {"status": "missing"}

        async with ClosedScheduler(
            host="127.0.0.1", port=0, dashboard=False, local_directory=str(tmp_path)
        ) as scheduler:
            worker = await PrivateWorker(
                scheduler.address, nthreads=1, host="127.0.0.1", plugins=[Slow()], local_directory=str(tmp_path)
            )
            scheduler.handlers["heartbeat_worker"] = missing
            beats = [asyncio.ensure_future(worker.heartbeat())]
            await asyncio.wait_for(begun.wait(), 120)
            removed = asyncio.ensure_future(worker.close(reason="scheduler-remove-worker"))
            await asyncio.sleep(0)  # so far that it would break the heartbeat off
            go_on.set()
            await asyncio.wait_for(asyncio.gather(worker.finished(), removed, *beats), 120)
            assert worker.closed_because == "worker-heartbeat-missing"

    asyncio.run(close_from_both_sides())
