"""``hpcml.ElasticCluster`` on a real Slurm: by load from none to some and back, mallory shut out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from conftest import Cluster, together
from lab_state import wait_for
from test_security import ATTACK, listeners

pytestmark = pytest.mark.lab

PROGRAM = """
import json, pathlib, socket, subprocess, sys, time
import hpcml
from distributed import Client, as_completed
def jobs(): return subprocess.run(["squeue", "-h", "-o", "%i", "--me"], capture_output=True, text=True, check=True).stdout.split()
def where(x):
    time.sleep(1)
    return socket.gethostname()
facts = {"nodes": []}
asked = {"time": "10m", "cpus_per_node": 2, "memory_per_node": "1G", "exclusive": True}
with hpcml.ElasticCluster(maximum=2, idle="4s", **asked) as cluster, Client(cluster) as client:
    facts["before"] = jobs()
    futures = client.map(where, range(600), pure=False)
    for done in as_completed(futures):  # the load of both workers until both were seen
        facts["nodes"] = sorted({*facts["nodes"], done.result()})
        if len(facts["nodes"]) > 1: break
    client.cancel(futures)
    facts["asked"] = subprocess.run(["scontrol", "show", "job", jobs()[0]], capture_output=True, text=True).stdout
    addresses = {"scheduler": cluster.scheduler_address, "worker": list(cluster.scheduler.workers)[0],
                 "directory": str(cluster.directory)}
    pathlib.Path("addresses.new").write_text(json.dumps(addresses))
    pathlib.Path("addresses.new").rename("addresses.json")
    while not pathlib.Path("enough").exists(): client.gather(client.map(where, range(12), pure=False))  # both stay
    deadline = time.monotonic() + 240
    while cluster.worker_spec:
        if time.monotonic() > deadline: sys.exit("its workers stay")
        time.sleep(0.1)
    facts["idle"] = cluster.scheduler.status.name
print(json.dumps(facts))
"""

INSIDE = """
import json, os, signal, sys
import hpcml
from distributed import Client
asked = {"time": "10m", "cpus_per_node": 2, "memory_per_node": "1G", "image": sys.argv[1], "env": ["COLOUR=a b"]}
def look(): return os.path.exists("/.singularity.d"), os.environ["COLOUR"], sorted(os.listdir(os.environ["TMPDIR"])), os.getcwd()
cluster = hpcml.ElasticCluster(minimum=2, **asked)
client = Client(cluster)
client.wait_for_workers(2, 240)
print(json.dumps(list(client.run(look).values())))
print(cluster.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_breathes_and_is_closed_to_others(cluster: Cluster) -> None:
    program = cluster.write("elastic/program.py", PROGRAM)
    folder = program.parent
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    process = cluster.lab.popen([python, str(program)], cwd=folder)
    path = folder / "addresses.json"
    try:
        assert wait_for(lambda: path.exists() or process.poll() is not None, 120, 0.2), "no workers came"
        if not path.exists():
            pytest.fail("\n".join(process.communicate()))
        addresses = json.loads(path.read_text())
        host = addresses["worker"].rpartition("//")[2].rsplit(":", 1)[0]
        node = f"n{int(host.rsplit('.', 1)[1]) - 10}"
        ports = sorted(listeners(cluster, node))  # of a worker and its Nanny
        ports_here = sorted(listeners(cluster, "login"))
        own = addresses["scheduler"].rsplit(":", 1)
        assert ports_here == [int(own[1])]
        assert len(ports) == 2
        targets = [addresses["scheduler"], *(f"tls://{host}:{port}" for port in ports)]
        tries = [cluster.lab.popen([python, "-c", ATTACK, target], node="n4", user="mallory") for target in targets]
        for done in together(tries, 120):
            lines = Counter(line.split()[0] for line in done.stdout.splitlines() if line.startswith(("IN", "refused")))
            assert lines == {"refused": 5}, done.stdout + done.stderr
        for file in ("secret/tls-key.pem", "plan.json", "jobs"):
            done = cluster.run("ls", f"{addresses['directory']}/{file}", node="n4", user="mallory")
            assert "Permission denied" in done.stderr
        keys = Path(addresses["directory"]) / "secret"
        assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
        (folder / "enough").touch()
        out, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended if nothing failed
            os.killpg(process.pid, signal.SIGKILL)
    facts = json.loads(out.splitlines()[-1])
    assert (facts["before"], facts["idle"]) == ([], "running")
    assert set(facts["nodes"]) <= {"n1", "n2", "n3", "n4"}
    assert len(facts["nodes"]) == 2
    for words in ("NumNodes=1 ", "TimeLimit=00:10:00", "Requeue=0", "Partition=boost"):
        assert words in facts["asked"], facts["asked"]
    assert wait_for(lambda: not cluster.run("squeue", "-h", "-u", "hpcml-alice").stdout, 60, 0.2)
    assert not list(keys.iterdir())


def test_workers_are_inside_an_image_and_a_killed_program_leaves_none(cluster: Cluster, image: Path) -> None:
    program = cluster.write("elastic/inside.py", INSIDE)
    done = cluster.run("python", str(program), str(image), cwd=program.parent, timeout=400)
    assert done.returncode in (-9, 137), done.stderr
    found, killed = done.stdout.splitlines()
    seen = json.loads(found)
    assert len(seen) == 2
    for inside, colour, scratch, place in seen:
        assert (inside, colour, scratch) == (True, "a b", [".lives", "dask-scratch-space"])
        assert "/.clusters/" in place
    assert wait_for(lambda: not cluster.run("squeue", "-h", "-u", "hpcml-alice").stdout, 60, 0.2)
    log = Path(killed) / "logs/guard.log"
    assert wait_for(lambda: log.read_text().count("is cancelled") == 2, 60, 0.2), log.read_text()
    assert wait_for(lambda: not list(Path(killed).glob("secret/*")), 60, 0.2)
