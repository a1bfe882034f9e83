"""The processes that the tests of UCX's authentication start: roles of Dask, and peers of every kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROLE = """
import asyncio, ctypes, os, sys
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
    print("CHANGED", secret.value, flush=True)

secret = ctypes.create_string_buffer(b"a secret in memory", 64)
asyncio.run(main())
"""
# What every peer below begins with: the address it is sent against, and a key if it has one.
PEER = """
import asyncio, contextlib, os, sys
from pathlib import Path
from distributed.comm.addressing import parse_address, parse_host_port
address, key = sys.argv[1], sys.argv[2]
location = parse_address(address)[1]
host, port = parse_host_port(location)

def install():
    from hpcml.inside import wire
    wire.DEADLINE = 3.0
    wire.install(Path(key))

async def dropped(ep):
    async with asyncio.timeout(20):
        while ep.alive:
            await asyncio.sleep(0.02)
    print("dropped")
"""
IDENTITY = (
    PEER
    + """
from distributed.comm.core import connect
async def main():
    if key:
        install()
    async def one():
        comm = await connect(address, timeout=float(os.environ.get("PATIENCE", "10")))
        await comm.write({"op": "identity", "reply": True})
        found = (await comm.read())["type"]
        await comm.close()
        return found
    print(*await asyncio.gather(*(one() for _ in range(int(os.environ.get("AT_ONCE", "1"))))))
asyncio.run(main())
"""
)


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
        line = self.wait_for(role, "AT ucx://", 0, 30).partition("AT ")[2].splitlines()[0]
        self.addresses[role], self.secrets[role] = line.split()

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def size(self, role: str) -> int:
        return self.log(role).stat().st_size

    def wait_for(self, role: str, words: str, since: int, seconds: float = 8) -> str:
        """Return what the role's log says behind a place in it, once the words are there."""
        deadline = time.monotonic() + seconds
        while words not in (text := self.log(role).read_bytes()[since:].decode()):
            assert time.monotonic() < deadline, f"{role} never said {words!r}: {text}"
            assert self.processes[role].poll() is None, text
            time.sleep(0.02)
        return text

    def against(self, role: str, code: str, *, key: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run a peer against a role."""
        return subprocess.run(
            [sys.executable, "-c", code, self.addresses[role], key], env=environment(self.folder, **more),
            capture_output=True, text=True, timeout=60, check=False)  # fmt: skip

    def serves(self, role: str) -> None:
        done = self.against(role, IDENTITY, key=self.key)
        assert done.stdout.strip() == ("Scheduler" if role == "scheduler" else "Worker"), done.stderr

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(number)

    def stop(self) -> None:
        self.signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait(10)
