"""``hpcml.submit`` on a real Slurm, and a client on the login node of a run on its nodes; a run of one node listens on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

SCRIPT = """
import time
import hpcml
client = hpcml.connect()
(hpcml.run.out / "workers").write_text(" ".join(client.scheduler_info()["workers"]))
while not (hpcml.run.out / "stop").exists():
    time.sleep(0.05)
"""

PROGRAM = """
import hpcml, socket, time
def started(*names):
    run = hpcml.submit("script.py", nodes=len(names), time="5m", set={"slurm.extra": ["--nodelist=" + ",".join(names)]})
    while run.status().phase != "running" or not (run.out / "workers").exists():
        assert run.exit_status is None, run.status()
        time.sleep(0.1)
    return run
run = started("n1", "n2")
with run.cluster() as client:
    print(sorted(set(client.run(socket.gethostname).values())), client.submit(sum, [20, 22]).result())
(run.out / "stop").write_text("")
print(run.wait(60), run.state, run.exit_status)
alone = started("n1")
try:
    alone.cluster()
except hpcml.HpcmlError as error:
    print(*str(error).split())
print(alone.cancel(), alone.wait(60), alone.directory)
"""


def test_a_run_from_python(cluster: Cluster) -> None:
    cluster.write("api/script.py", SCRIPT)
    program = cluster.write("api/program.py", PROGRAM)
    done = cluster.run("python", str(program), cwd=program.parent, timeout=150)
    assert done.returncode == 0, done.stderr
    both, stopped, closed, cancelled = done.stdout.splitlines()
    assert (both, stopped) == ("['n1', 'n2'] 42", "0 COMPLETED 0")
    assert "listens only on the loopback address of n1" in closed
    directory = Path(cancelled.removeprefix("True 86 "))
    event = cluster.wait_event(directory, "scheduler-up")
    addresses = [event["address"], *(directory / "out/workers").read_text().split()]
    assert {address.rpartition(":")[0] for address in addresses} == {"tls://127.0.0.1"}
    assert "mutual TLS" in event["security"]
