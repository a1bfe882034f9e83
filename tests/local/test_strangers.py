"""Who has no key and knocks at the TLS port: the owner gets in meanwhile, and log and files stay small."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcml.kinds.dask.node.security import tls
from hpcml.paths import AttemptPaths

pytestmark = pytest.mark.local

FILES = 1024  # the usual soft limit
MOST = FILES // 4

ROLE = """
import asyncio, sys
from pathlib import Path
from hpcml.kinds.dask.node import dask_scheduler, dask_worker
from hpcml.kinds.dask.node.script import cluster_outside_runs
from hpcml.kinds.dask.node.security import connection_limits
from hpcml.kinds.dask.node.security import tls
from hpcml.paths import AttemptPaths
role, paths, address = sys.argv[1], AttemptPaths(Path(sys.argv[2])), sys.argv[3]
connection_limits.DEADLINE = 4.0
common = {"security": tls.security(paths), "host": "127.0.0.1", "local_directory": sys.argv[2]}

async def main():
    if role == "worker":
        server = dask_worker.PrivateWorker(address, nthreads=1, **common)
    elif role == "alone":
        server = cluster_outside_runs.ClosedScheduler(dashboard=False, **common)
    else:
        dask_scheduler.PrivateScheduler.socket_path = paths.directory / "dashboard.sock"
        server = dask_scheduler.PrivateScheduler(dashboard=False, **common)
    await server
    print("AT", server.address, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
CLIENT = """
import asyncio, sys
from pathlib import Path
from distributed.core import rpc
from hpcml.kinds.dask.node.security import tls
from hpcml.paths import AttemptPaths

async def main():
    security = tls.security(AttemptPaths(Path(sys.argv[1])))
    for address in sys.argv[2:]:
        async with rpc(address, connection_args=security.get_connection_args("client"), timeout=60) as server:
            print((await server.identity())["type"])

asyncio.run(main())
"""


@dataclass
class Role:
    """A process that listens, with few files."""

    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def knock(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.address.rsplit(":", 1)[1])), timeout=60)


def serve(roles: dict[str, Role]) -> None:
    """A client with the key gets in everywhere."""
    folder = str(roles["scheduler"].log.parent)
    done = subprocess.run([sys.executable, "-c", CLIENT, folder, *(role.address for role in roles.values())],
                          capture_output=True, text=True, timeout=240, check=False)  # fmt: skip
    assert [line[-6:] for line in done.stdout.splitlines()] == ["eduler", "Worker", "eduler"], done.stderr


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(name: str, paths: AttemptPaths, address: str = "") -> Role:
    log = paths.directory / f"{name}.log"
    limited = ["bash", "-c", f'ulimit -Sn {FILES}; ulimit -Hn {FILES}; exec "$@"', "-"]
    with log.open("wb") as file:
        process = subprocess.Popen([*limited, sys.executable, "-c", ROLE, name, str(paths.directory), address],
                                   stdout=file, stderr=file)  # fmt: skip
    role = Role(process, log)
    until(lambda: b"AT tls://" in log.read_bytes() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    role.address = log.read_text().partition("AT ")[2].split()[0]
    return role


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Role]]:
    """A run's scheduler and worker, and the scheduler of hpcml.connect() outside a run."""
    paths = AttemptPaths(tmp_path_factory.mktemp("attempt"))
    tls.make_certificate(paths, 3600)
    found: dict[str, Role] = {}
    try:
        found["scheduler"] = started("scheduler", paths)
        found["worker"] = started("worker", paths, found["scheduler"].address)
        found["alone"] = started("alone", paths)
        yield found
    finally:
        for role in found.values():
            role.process.kill()
            role.process.wait()


def hello() -> bytes:
    """Return the first message of a TLS client, which makes the other end answer and wait."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wire = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        wire.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("first", [b"", hello(), b"GET / HTTP/1.0\r\n\r\n"], ids=["idle", "half-open", "without TLS"])
def test_a_flood_of_connections(roles: dict[str, Role], first: bytes) -> None:
    """More than a process may have files. All are dropped, the oldest at once; a client with the key gets in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("the test itself may not open enough files")
    before = {name: (role.files(), role.log.stat().st_size) for name, role in roles.items()}
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood: list[socket.socket] = []
    try:
        for _ in range(FILES + 100):
            for role in roles.values():
                flood.append(role.knock())
                flood[-1].sendall(first)
        until(lambda: all(role.files() <= before[name][0] + MOST + 10 for name, role in roles.items()))
        serve(roles)
        until(
            lambda: all(role.files() <= before[name][0] + 10 for name, role in roles.items())
        )  # by the deadline for each
        serve(roles)
    finally:
        for one in flood:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name, role in roles.items():
        said = role.log.read_bytes()[before[name][1] :].decode()
        assert len(said) < 20_000, "each was a line or two"
        assert "Too many open files" not in said
