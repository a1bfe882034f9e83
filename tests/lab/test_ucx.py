"""Dask over UCX on the lab: the run's key is asked of everybody, and the verdict tells which wire it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from beside import SMALL
from conftest import Cluster, together
from lab_state import wait_for
from test_security import Target, victim

pytestmark = pytest.mark.lab

KINDS = ("no key", "wrong key")
PAIRS = (("n1", "scheduler"), ("n3", "n2"))  # from the victim's own node, and from another

# What mallory runs: UCX as it comes, then UCX with hpcml's handshake and a key of her own. "IN" if code of hers ran.
ATTACK = """
import os, pathlib, secrets, sys, tempfile
from distributed import Client, Security
address, kind = sys.argv[1:]
if kind == "wrong key":
    sys.path.insert(0, sys.argv[0] or ".")
    from hpcml.kinds.dask.node.security import ucx_auth
    key = pathlib.Path(tempfile.mkdtemp()) / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    ucx_auth.install(key)
try:
    own = {"security": Security.temporary()} if address.startswith("tls:") else {}
    print("IN", Client(address, timeout=6, **own).run_on_scheduler(os.getuid))
except BaseException as error:
    print("refused", type(error).__name__)
"""


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Iterator[Target]:
    yield from victim(cluster, *SMALL, "--set", "network.protocol=ucx")


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


def test_foreign_ucx_clients_are_refused_and_that_is_logged(cluster: Cluster, target: Target) -> None:
    """All of mallory's clients beside each other: a client mostly waits for its time limit."""
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    started = (
        cluster.lab.popen([python, "-c", ATTACK, target.addresses[victim], kind], node=place, user="mallory")
        for place, victim in PAIRS
        for kind in KINDS
    )
    for done in together(started, 90):
        lines = [line for line in done.stdout.splitlines() if line.startswith(("IN", "refused"))]
        assert len(lines) == 1, done.stdout + done.stderr
        assert lines[0].startswith("refused"), lines
    for name, said in (("scheduler", "hpcml.tls: refused"), ("worker-n2", "refused a UCX peer")):
        log = target.directory / f"logs/{name}.log"
        assert wait_for(lambda log=log, said=said: said in log.read_text(), 20), log.read_text()  # type: ignore[misc]


def test_the_verdict_tells_the_wire(cluster: Cluster, target: Target) -> None:
    line = cluster.wait_event(target.directory, "interconnect-checked")["line"]
    assert line.startswith("UCX")
    assert "tcp" in line
    assert "across nodes" in line
    status = cluster.run("hpcml", "status", target.directory.name).stdout
    assert "users who can connect: UCX's TCP on " in status
