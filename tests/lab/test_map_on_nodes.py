"""``hpcml.map`` on a real Slurm: points on all nodes, arrays of few tasks, and ends that only Slurm knows of."""

from __future__ import annotations

import json

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

PROGRAM = """
import glob, json, os, socket, subprocess, sys, time
import hpcml
from hpcml.schedulers import slurm

def where(x):
    print("on", socket.gethostname(), flush=True)
    open(f"met-{x}", "w").close()
    until = time.monotonic() + 300
    while len(glob.glob("met-*")) < 4:  # as many run at once as there are nodes
        assert time.monotonic() < until
        time.sleep(0.1)
    if x == 5: raise KeyError("five")
    return x * x

def ranks(x): return os.environ["SLURM_PROCID"], socket.gethostname()
def waits(x):
    print("waits", flush=True)
    time.sleep(600)
def memory(x): return len([bytearray(10**7) for _ in range(10**4)])

import submitit
submitit.Job._results_timeout_s = 1  # all nodes have one file system, which shows at once what is written

share = {"cpus_per_node": 2, "memory_per_node": "900M"}
facts = {"most": slurm.most_tasks()}
slurm.most_tasks = lambda: 3
points = hpcml.map(where, range(7), time="5m", at_once=4, exclusive=True)
facts["errors"] = [str(one.exception()) for one in points if one.exception()]
facts["squares"] = [one.result() for one in points if not one.exception()]
facts["nodes"] = sorted({line.split()[1] for one in points for line in one.stdout().splitlines() if line.startswith("on ")})
facts["jobs"] = [one.job_id.split("_") for one in points]
facts["ranks"] = hpcml.map(ranks, [0], nodes=2, time="5m", **share)[0].results()
cancelled, killed = hpcml.map(waits, [0, 1], time="5m", **share)
greedy = hpcml.map(memory, [0], time="5m", **share)[0]
while not all("waits" in (one.stdout() or "") for one in (cancelled, killed)): time.sleep(0.2)
cancelled.cancel()
subprocess.run(["scancel", killed.job_id], check=True)
facts["ended"] = {name: str(job.exception()) for name, job in (("cancelled", cancelled), ("killed", killed), ("greedy", greedy))}
print(json.dumps(facts))
"""


def test_points_on_nodes(cluster: Cluster) -> None:
    program = cluster.write("map/program.py", PROGRAM)
    done = cluster.run("python", str(program), cwd=program.parent, timeout=400)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["most"] >= 1000
    assert facts["squares"] == [x * x for x in range(7) if x != 5]
    [error] = facts["errors"]
    assert 'raise KeyError("five")' in error
    assert "program.py" in error
    assert facts["nodes"] == ["n1", "n2", "n3", "n4"]
    assert [task for _, task in facts["jobs"]] == ["0", "1", "2"] * 2 + ["0"]
    assert len({job for job, _ in facts["jobs"]}) == 3
    assert [rank for rank, _ in facts["ranks"]] == ["0", "1"]
    assert len({node for _, node in facts["ranks"]}) == 2
    ends = {"cancelled": ["CANCELLED"], "killed": ["CANCELLED"], "greedy": ["OUT_OF_MEMORY", "FAILED"]}
    for name, states in ends.items():
        assert any(f"(state: {state})" in facts["ended"][name] for state in states), facts["ended"]
