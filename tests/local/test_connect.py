"""hpcml.connect() outside a run: a cluster of this machine that talks to nobody else of it."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import queue
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.node.roles.dask_worker import PrivateWorker
from hpcml.node.roles.local_cluster import ClosedCluster, ClosedScheduler

pytestmark = pytest.mark.local

SCRIPT = """
import hpcml, json, psutil, sys

def main():
    client = hpcml.connect(n_workers=2, threads_per_worker=1)
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    doors = [one.laddr for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in own]
    found = {"doors": doors, "sum": client.submit(sum, [1, 2]).result(), "workers": len(client.nthreads()), "shown": client._repr_html_()[:4],
             "link": client.cluster.dashboard_link}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    client.cluster.close()
    client.close()

if __name__ == "__main__":
    main()
"""


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


def test_nobody_else_on_the_machine_is_answered(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "DASK_"))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment, cwd=tmp_path) as process:  # fmt: skip
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert {host for host, _ in found["doors"]} == {"127.0.0.1"}
        ports = [port for _, port in found["doors"]]
        assert len(ports) == 5  # a scheduler, two workers, their Nannies
        assert 8787 not in ports
        for port in ports:
            assert answers(port, tls=False) == b""
            assert answers(port, tls=True) == b""
        _, errors = process.communicate("", timeout=60)
    assert process.returncode == 0
    assert "8787" not in errors
    assert (found["sum"], found["workers"], found["shown"].strip()[:1], found["link"]) == (3, 2, "<", "")


FOLDERS = """
import glob, hpcml, json, os, sys

def seen():
    import sys
    return [entry for entry in sys.path if os.environ["TMPDIR"] in entry]

def main():
    client = hpcml.connect(n_workers=2, threads_per_worker=1)
    found = {"scheduler": client.run_on_scheduler(seen), "workers": sum(client.run(seen).values(), [])}
    found["modes"] = {oct(os.stat(path).st_mode & 0o777) for path in glob.glob(os.environ["WANTED"] + "/hpcml-*")}
    found["modes"] = sorted(found["modes"])
    client.cluster.close()
    client.close()
    found["afterwards"], found["left"] = seen(), glob.glob(os.environ["WANTED"] + "/hpcml-*")
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("asked", ["", "nowhere", "mine"])
def test_dasks_folder_is_not_one_that_others_can_plant(tmp_path: Path, asked: str) -> None:
    """Dask's own is $TMPDIR/dask-scratch-space, whoever it belongs to; code in it would be imported first."""
    (tmp_path / "script.py").write_text(FOLDERS)
    common, mine = tmp_path / "tmp", tmp_path / "tmp/mine"
    common.mkdir()
    common.chmod(0o1777)
    mine.mkdir(mode=0o700)
    planted = common / "dask-scratch-space"
    planted.mkdir()
    planted.chmod(0o777)
    wanted = mine if asked == "mine" else common
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "DASK_"))}
    told = {"DASK_TEMPORARY_DIRECTORY": str(common / asked)} if asked else {}
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120, check=False,
                          env={**kept, "TMPDIR": str(common), "WANTED": str(wanted), **told}, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["workers"]) >= 2
    assert found["scheduler"]
    assert not [path for path in found["scheduler"] + found["workers"] if not path.startswith(f"{wanted}/hpcml-")]
    assert found["modes"] == ["0o700"]
    assert (found["afterwards"], found["left"]) == ([], [])
    assert list(planted.iterdir()) == []
    assert ("DASK_TEMPORARY_DIRECTORY) is not used" in done.stderr) == (asked == "nowhere")


def test_a_place_that_others_may_change_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(RuntimeError, match=r"others may replace what lies in .*/open .*; set TMPDIR"):
        ClosedCluster(local_directory=str(place), n_workers=0)
    assert list(place.iterdir()) == []


def test_a_heartbeat_on_its_way_when_a_worker_closes_is_no_error() -> None:
    """Dask logs a traceback for it, which a script that ends well would show now and then."""

    async def close_while_it_beats() -> None:
        arrived = asyncio.Event()

        async def say_nothing(**_: object) -> None:
            arrived.set()
            await asyncio.sleep(60)

        async with ClosedScheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            worker = await PrivateWorker(scheduler.address, nthreads=1, host="127.0.0.1")
            scheduler.handlers["heartbeat_worker"] = say_nothing
            beat = asyncio.ensure_future(worker.heartbeat())
            await asyncio.wait_for(arrived.wait(), 20)
            await worker.close()
            await asyncio.wait_for(beat, 20)

    said: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = logging.handlers.QueueHandler(said)
    listener.setLevel(logging.WARNING)
    logging.getLogger("distributed.worker").addHandler(listener)
    try:
        asyncio.run(close_while_it_beats())
    finally:
        logging.getLogger("distributed.worker").removeHandler(listener)
    assert said.empty(), said.get().getMessage()
