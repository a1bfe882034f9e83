"""Nobody without the run's key talks to Dask over UCX: real processes, UCX over the loopback, no GPU."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcml.inside import secure
from hpcml.layout import AttemptPaths

pytest.importorskip("distributed_ucxx", reason="distributed-ucxx is not installed (hpcml's extra ucx)")
pytestmark = pytest.mark.local

ROLE = """
import asyncio, ctypes, sys
from pathlib import Path
role, key, scheduler = sys.argv[1:]
if key:
    from hpcml.inside import wire
    wire.DEADLINE, wire.LINES_A_MINUTE = 3.0, 1000
    wire.install(Path(key))
from distributed import Scheduler, Worker

async def main():
    common = {"host": "127.0.0.1", "protocol": "ucx", "dashboard": False}
    server = Scheduler(**common) if role == "scheduler" else Worker(scheduler, name=role, nthreads=1, **common)
    await server
    print("AT", server.address, ctypes.addressof(secret), flush=True)
    while secret.value == b"a secret in memory":
        await asyncio.sleep(0.05)
    print("CHANGED", flush=True)
    await server.finished()

secret = ctypes.create_string_buffer(b"a secret in memory", 64)
asyncio.run(main())
"""
# What every peer below begins with: the address it is sent against, and a key if it has one.
PEER = """
import asyncio, contextlib, json, os, sys
from pathlib import Path
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.core import connect
address, key = sys.argv[1:]
location = parse_address(address)[1]
host, port = parse_host_port(location)

def install(deadline=10.0):
    from hpcml.inside import wire
    wire.DEADLINE = deadline
    wire.install(Path(key))

async def identity(patience=20):
    comm = await connect(address, timeout=patience)
    await comm.write({"op": "identity", "reply": True})
    found = (await comm.read())["type"]
    await comm.close()
    return found

async def dropped(ep):
    async with asyncio.timeout(30):
        while ep.alive:
            await asyncio.sleep(0.02)
"""
IDENTITY = PEER + """
async def main():
    if key:
        install()
    print(*await asyncio.gather(*(identity(PATIENCE) for _ in range(AT_ONCE))))
asyncio.run(main())
"""


def identity(patience: int = 30, at_once: int = 1) -> str:
    return IDENTITY.replace("PATIENCE", str(patience)).replace("AT_ONCE", str(at_once))


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "HOME": str(folder), "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n", **more}


@dataclass
class Cluster:
    """A scheduler and workers in processes of their own; ``key`` is empty for Dask as it comes."""

    folder: Path
    key: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def start(self, role: str) -> None:
        with self.log(role).open("wb") as log:
            command = [sys.executable, "-c", ROLE, role, self.key, self.addresses.get("scheduler", "")]
            self.processes[role] = subprocess.Popen(command, stdout=log, stderr=log, env=environment(self.folder))
        line = self.wait_for(role, "AT ucx://", seconds=60).partition("AT ")[2].splitlines()[0]
        self.addresses[role], self.secrets[role] = line.split()

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def size(self, role: str) -> int:
        return self.log(role).stat().st_size

    def wait_for(self, role: str, words: str, since: int = 0, seconds: float = 20) -> str:
        """Return what the role's log says behind a place in it, once the words are there."""
        deadline = time.monotonic() + seconds
        while words not in (text := self.log(role).read_bytes()[since:].decode()):
            assert time.monotonic() < deadline, f"{role} never said {words!r}: {text}"
            assert self.processes[role].poll() is None, text
            time.sleep(0.02)
        return text

    def against(self, role: str, code: str, key: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run a peer against a role."""
        command = [sys.executable, "-c", code, self.addresses[role], key]
        own = environment(self.folder, **more)
        return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)

    def serves(self, role: str) -> None:
        done = self.against(role, identity(), self.key)
        assert done.stdout.strip() == ("Scheduler" if role == "scheduler" else "Worker"), done.stderr

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(number)

    def stop(self) -> None:
        self.signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait(10)


def _cluster(folder: Path, key: str, *roles: str) -> Iterator[Cluster]:
    cluster = Cluster(folder, key)
    try:
        for role in roles:
            cluster.start(role)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> AttemptPaths:
    made = AttemptPaths(tmp_path_factory.mktemp("attempt"))
    secure.make_certificate(made, 3600)
    secure.make_ucx_key(made)
    return made


@pytest.fixture(scope="module")
def cluster(paths: AttemptPaths) -> Iterator[Cluster]:
    yield from _cluster(paths.directory, str(paths.ucx_key), "scheduler", "worker")


@pytest.fixture(scope="module")
def as_it_comes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from _cluster(tmp_path_factory.mktemp("plain"), "", "scheduler", "worker")


@pytest.fixture
def plain(as_it_comes: Cluster) -> Iterator[Cluster]:
    """Dask as it comes: against it the same attacks must work, or they prove nothing."""
    as_it_comes.signal(signal.SIGCONT)
    yield as_it_comes
    as_it_comes.signal(signal.SIGSTOP)  # ucxx keeps a core busy per process, also when nothing happens


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong.key"
    path.write_bytes(secrets.token_bytes(32))
    path.chmod(0o600)
    return str(path)


def test_a_plain_client_with_the_scripts_environment(paths: AttemptPaths) -> None:
    """A script that knows nothing of hpcml, 50 MB from one worker to the other, and a client inside a task."""
    code = """if __name__ == "__main__":
        from distributed import Client
        client = Client()
        client.wait_for_workers(2, timeout=60)
        made = client.submit(lambda: b"x" * 50_000_000, workers="one")
        print(client.submit(len, made, workers="two").result(timeout=60))
        inside = lambda: __import__("distributed").get_client().scheduler.address
        print(client.submit(inside, workers="two").result(timeout=60))"""
    without = "import sys; sys.modules['distributed_ucxx'] = None; from distributed import Client; Client()"
    for cluster in _cluster(paths.directory, str(paths.ucx_key), "scheduler", "one", "two"):
        own = secure.client_environment(paths, cluster.addresses["scheduler"])
        done = cluster.against("scheduler", code, **own)
        assert done.stdout.split() == ["50000000", cluster.addresses["scheduler"]], done.stderr
        done = cluster.against("scheduler", without, **own)
        assert "ImportError: This run's Dask speaks UCX, and distributed-ucxx cannot be imported" in done.stderr


def test_many_connections_at_once(cluster: Cluster) -> None:
    done = cluster.against("scheduler", identity(at_once=40), cluster.key)
    assert done.stdout.split() == ["Scheduler"] * 40, done.stderr


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_client_of_dask_as_it_comes(cluster: Cluster, plain: Cluster, role: str) -> None:
    plain.serves(role)
    before = cluster.size(role)
    done = cluster.against(role, identity(patience=5))
    assert "CommClosedError" in done.stderr
    assert not done.stdout
    cluster.wait_for(role, "hpcml.wire: refused a UCX peer: it does not speak this handshake", before)
    cluster.serves(role)


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_another_key(cluster: Cluster, wrong: str, role: str) -> None:
    before = cluster.size(role)
    begin = time.monotonic()
    done = cluster.against(role, identity(patience=100), wrong)
    assert "FatalCommClosedError" in done.stderr
    assert "refused: not this run's key" in done.stderr
    assert time.monotonic() - begin < 50, "trying again is no use"
    cluster.wait_for(role, "hpcml.wire: refused a UCX peer", before)
    cluster.serves(role)


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_nothing_is_unpickled(cluster: Cluster, plain: Cluster, role: str) -> None:
    """A first message whose unpickling makes a file: with Dask as it comes the file is there, with the key it is not."""
    code = PEER + """
from distributed.protocol.serialize import ToPickle
from distributed_ucxx import UCXXBackend
class Evil:
    def __reduce__(self):
        return open, (os.environ["MARK"], "w")
async def main():
    comm = await UCXXBackend().get_connector().connect(location)
    with contextlib.suppress(OSError, TimeoutError):
        await comm.write({"evil": ToPickle(Evil())})
        await asyncio.wait_for(comm.read(), 20)
        await asyncio.wait_for(comm.read(), 20)
asyncio.run(main())
"""
    there, mark = plain.folder / f"mark-{role}", cluster.folder / f"mark-{role}"
    plain.against(role, code, MARK=str(there))
    assert there.exists(), "the attack does not even work against Dask as it comes"
    before = cluster.size(role)
    cluster.against(role, code, MARK=str(mark))
    cluster.wait_for(role, "hpcml.wire: refused a UCX peer", before)
    cluster.serves(role)
    assert not mark.exists()


RAW = {  # what a peer does on the raw endpoint, and what the role says of it
    "garbage": ("await ep.send(os.urandom(51))", "it does not speak this handshake"),
    "a truncated hello": ("await ep.send(b'\\x01' + bytes(20))", "which is not here"),
    "too much": ("await ep.send(b'\\x01' * 4096)", "it broke off"),
    "far too much": ("sending = asyncio.ensure_future(ep.send(bytes(50_000_000)))", "it broke off"),
    "half a handshake": ("await ep.send(hello)", "no answer in time"),
    "a truncated proof": ("await ep.send(hello); await ep.recv(bytearray(65)); await ep.send(b'\\x01')", "another key"),
    "another port": ("await ep.send(hello[:17] + b'\\x00' + hello[18:])", "which is not here"),
    "its own proof": (
        "await ep.send(hello); a = bytearray(65); await ep.recv(a); await ep.send(b'\\x01' + a[33:])", "another key"),
    "early close": ("await ep.send(hello); return ep.abort()", "it broke off"),
}  # fmt: skip


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_raw_peers_are_dropped(cluster: Cluster, role: str) -> None:
    acts = "".join(f"async def act_{at}(ep, hello):\n    {does}\n    await dropped(ep)\n"
                   for at, (does, _) in enumerate(RAW.values()))  # fmt: skip
    code = PEER + acts + """
import ucxx
from hpcml.inside.handshake import pack
async def main():
    for act in [value for name, value in globals().items() if name.startswith("act_")]:
        await act(await ucxx.create_endpoint(host, port), b"\\x01" + pack(host, port) + os.urandom(32))
        print(act.__name__, flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, cluster.addresses[role], ""]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(cluster.folder), text=True, **pipes) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for at, (what, (_, said)) in enumerate(RAW.items()):
            before = cluster.size(role)
            if at:
                peer.stdin.write("\n")
                peer.stdin.flush()
            else:
                before = 0
            assert peer.stdout.readline() == f"act_{at}\n", what
            cluster.wait_for(role, said, before)
        peer.communicate("\n", timeout=30)
    cluster.serves(role)
