"""A script that does not name Dask, on two nodes: it runs alone, until a client that hides starts the run's cluster."""

from __future__ import annotations

import json
import re

from conftest import Cluster
from tests.looks import without_late_report
from tests.said import in_order

TWO = ("--nodes", "2", "--cpus-per-node", "2", "--memory-per-node", "900M")
HIDDEN = """
import importlib, socket
import hpcml
roles = hpcml.run.directory / "attempts/0/secret/tls-key.pem"
print("alone", not roles.exists(), flush=True)
module = importlib.import_module("dis" + "tributed")
with module.Client() as client:
    print("nodes", len(set(client.run(socket.gethostname).values())))
    print("sum", sum(client.gather(client.map(lambda x: x * x, range(10)))))
"""


def test_a_cluster_that_starts_late_has_both_nodes_and_leaves_nothing(cluster: Cluster) -> None:
    plain = cluster.submit("import os\nprint('cpus', len(os.sched_getaffinity(0)))\n", *TWO)
    assert plain.code == 0, plain.err
    notices = (plain.directory / "plan.json").read_text()  # printed once in a folder
    assert re.search(in_order("on the first of 2 nodes", "add --ranks node"), notices)
    hidden = cluster.submit(HIDDEN, *TWO)
    assert hidden.code == 0, hidden.out + hidden.err
    assert all(line in hidden.out for line in ("alone True", "nodes 2", "sum 285")), hidden.out
    found = json.loads(cluster.run("hpcml", "status", "last", "--json").stdout)
    assert (found["has_cluster"], found["workers"], without_late_report(found["warnings"])) == (True, 2, [])
    cluster.wait_idle(60)
