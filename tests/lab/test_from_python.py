"""``hpcml.submit`` on a real Slurm, and a client on the login node of a run on its nodes."""

from __future__ import annotations

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

SCRIPT = """
import time
import hpcml
client = hpcml.connect()
while not (hpcml.run.out / "stop").exists():
    time.sleep(0.05)
print("stopped")
"""

PROGRAM = """
import hpcml, socket, time
run = hpcml.submit("script.py", nodes=2, time="5m")
while run.status().phase != "running":
    assert run.exit_status is None, run.status()
    time.sleep(0.1)
with run.cluster() as client:
    print(sorted(set(client.run(socket.gethostname).values())), client.submit(sum, [20, 22]).result())
(run.out / "stop").write_text("")
print(run.wait(60), run.state, run.exit_status, run.logs().strip())
other = hpcml.submit("script.py")
print(other.cancel(), other.wait(60), other.state)
try:
    other.cluster()
except hpcml.HpcmlError as error:
    print(error)
alone = hpcml.submit("script.py", nodes=1, time="5m")
while alone.status().phase != "running":
    assert alone.exit_status is None, alone.status()
    time.sleep(0.1)
try:
    alone.cluster()
except hpcml.HpcmlError as error:
    print(error)
alone.cancel()
print(alone.wait(60))
"""


def test_a_run_from_python(cluster: Cluster) -> None:
    cluster.write("api/script.py", SCRIPT)
    program = cluster.write("api/program.py", PROGRAM)
    done = cluster.run("python", str(program), cwd=program.parent, timeout=150)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["['n1', 'n2'] 42", "0 COMPLETED 0 stopped", "True 86 CANCELLED"]
    assert lines[3].startswith("The run has no cluster now")
    assert "listens on the loopback address of n1 alone" in done.stdout, done.stdout
    assert lines[-1] == "86"
