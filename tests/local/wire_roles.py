"""The processes that the tests of UCX's authentication start: roles of Dask, and peers of every kind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROLE = """
import asyncio, ctypes, sys
from pathlib import Path
role, key, scheduler = sys.argv[1:]
if key:
    from hpcml.kinds.dask.node.security import ucx_auth
    from hpcml.kinds.dask.node.security import connection_limits
    connection_limits.LINES_A_MINUTE = 1000
    ucx_auth.install(Path(key))
import dask
from distributed import Scheduler, Worker

async def main():
    dask.config.set({"distributed.scheduler.worker-ttl": None})  # a test stops one of them for long
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
import asyncio, contextlib, os, sys
from pathlib import Path
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.core import connect
address, key = sys.argv[1:]
location = parse_address(address)[1]
host, port = parse_host_port(location)

def install(deadline=10.0):
    from hpcml.kinds.dask.node.security import ucx_auth
    from hpcml.kinds.dask.node.security import key_proof
    key_proof.DEADLINE = deadline
    ucx_auth.install(Path(key))

async def identity():
    comm = await connect(address, timeout=30)
    await comm.write({"op": "identity", "reply": True})
    found = (await comm.read())["type"]
    await comm.close()
    return found

async def dropped(ep):
    async with asyncio.timeout(120):
        while ep.alive:
            await asyncio.sleep(0.02)
"""
IDENTITY = (
    PEER
    + """
async def main():
    if key:
        install()
    print(*await asyncio.gather(*(identity() for _ in range(AT_ONCE))))
asyncio.run(main())
"""
)
# Reads or writes the peer's memory below any protocol of Dask's, by UCX's own calls.
MEMORY = (
    PEER
    + """
import ctypes, re, ucxx
async def main():
    ep = await ucxx.create_endpoint(host, port)
    ucp = ctypes.CDLL(re.search(r"/\\S*libucp\\.so\\S*", Path("/proc/self/maps").read_text())[0])
    context, handle = (ctypes.c_void_p(one) for one in (ucxx.core._get_ctx().context.handle, ep._ep.handle))
    buffer = ctypes.create_string_buffer(b"written by a peer.", 64)
    what = (ctypes.c_uint64 * 32)(3, ctypes.addressof(buffer), 64)  # ucp_mem_map_params_t: address and length
    memory, packed, size, remote = (ctypes.c_void_p() for _ in range(4))
    assert ucp.ucp_mem_map(context, what, ctypes.byref(memory)) == 0
    assert ucp.ucp_rkey_pack(context, memory, ctypes.byref(packed), ctypes.byref(size)) == 0
    assert ucp.ucp_ep_rkey_unpack(handle, packed, ctypes.byref(remote)) == 0
    there = ctypes.c_uint64(int(os.environ["SECRET"]))
    act = getattr(ucp, os.environ["ACT"])
    act.restype = ctypes.c_void_p
    act(handle, buffer, ctypes.c_size_t(18), there, remote, ctypes.create_string_buffer(256))
    for _ in range(100):
        ucxx.progress()
        await asyncio.sleep(0.02)
    print("\\n" + buffer.value.decode(), flush=True)
    os._exit(0)  # without UCX's words about what is unfinished
asyncio.run(main())
"""
)


def identity(at_once: int = 1) -> str:
    return IDENTITY.replace("AT_ONCE", str(at_once))


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
            command = [
                "nice", "-n", "5", sys.executable, "-c", ROLE, role, self.key, self.addresses.get("scheduler", ""),
            ]  # fmt: skip
            self.processes[role] = subprocess.Popen(command, stdout=log, stderr=log, env=environment(self.folder))
        line = self.wait_for(role, "AT ucx://", seconds=60).partition("AT ")[2].splitlines()[0]
        self.addresses[role], self.secrets[role] = line.split()

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def size(self, role: str) -> int:
        return self.log(role).stat().st_size

    def wait_for(self, role: str, words: str, since: int = 0, seconds: float = 20) -> str:
        """Return what the role's log says behind a place in it, once the words are there."""
        deadline = time.monotonic() + 3 * seconds
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

    @contextlib.contextmanager
    def awake(self, *roles: str) -> Iterator[None]:
        """Continue roles, and stop them again: ucxx keeps a core busy per process, also when nothing happens."""
        for role in roles:
            self.processes[role].send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            for role in roles:
                self.processes[role].send_signal(signal.SIGSTOP)

    def end(self, role: str) -> None:
        process = self.processes.pop(role)
        process.kill()
        process.wait(60)


def running(folder: Path, key: str, *roles: str) -> Iterator[Cluster]:
    """Yield the roles' processes, started one after the other and stopped until a test wants them, and end them all."""
    cluster = Cluster(folder, key)
    try:
        for role in roles:
            cluster.start(role)
        with cluster.awake(*roles):
            pass
        yield cluster
    finally:
        for role in (*cluster.processes,):
            cluster.end(role)
