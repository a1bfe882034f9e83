"""A crowd of workers before hpcml's scheduler: what each costs the one process through which all must pass (thousand.py).

The scheduler is hpcml's, in a process of its own, with the certificate, the limits and the plugin of a run. Its workers are this
process: for each two TLS connections, as a worker has, one that registers it with the versions and metrics of a real worker and
stays, and one for its heartbeats. All connect in the same moment. No worker computes, and no network lies between.
Processor time is the scheduler's own alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

DASK = "as-dask"  # tells all workers of each that goes at the end
PORT = 20000  # of the first worker's address, where nobody listens: the scheduler asks no worker
DEADLINE = 200.0  # seconds for all to be there


async def serve(folder: Path, way: str) -> None:
    """Be the scheduler: answer each line of standard input with the figures of this process; ``close`` closes."""
    import distributed

    from hpcml.kinds.dask.node.dask_scheduler import PrivateScheduler, Reporter
    from hpcml.kinds.dask.node.security import tls
    from hpcml.paths import RunPaths

    attempt = RunPaths(folder).attempt(0)
    tls.make_certificate(attempt, 3600.0)
    PrivateScheduler.socket_path = folder / "dashboard.sock"
    scheduler = PrivateScheduler(
        protocol="tls",
        host="127.0.0.1",
        port=0,
        dashboard=False,
        security=tls.security(attempt),
        local_directory=str(folder),
    )
    if way == DASK:
        PrivateScheduler.worker_send = distributed.Scheduler.worker_send  # type: ignore[method-assign]
    await scheduler
    scheduler.add_plugin(Reporter(SimpleNamespace(write=lambda _: None)))  # type: ignore[arg-type]
    tell(address=scheduler.address)
    while await asyncio.to_thread(sys.stdin.readline) not in ("", "close\n"):
        tell(**figures(), workers=len(scheduler.workers))
    began, used = time.monotonic(), time.process_time()
    await scheduler.close()
    tell(seconds=time.monotonic() - began, cpu=time.process_time() - used)


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def figures() -> dict[str, float]:
    """Return the processor seconds, open files and resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "cpu": time.process_time(),
        "files": len(os.listdir("/proc/self/fd")),
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


class Scheduler:
    """The scheduler's process."""

    def __init__(self, folder: Path, way: str) -> None:
        words = [sys.executable, __file__, str(folder), way]
        self.log = folder / "scheduler.log"  # a run's scheduler writes its lines too
        with self.log.open("w") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.address = str(self.answer()["address"])

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"crowd: the scheduler ended with status {self.process.wait()}: {self.log.read_text()[-2000:]}"
            )
        facts: dict[str, Any] = json.loads(line)
        return facts

    async def ask(self, word: str = "figures") -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return await asyncio.to_thread(self.answer)


async def measure(count: int, way: str) -> dict[str, Any]:
    """Return what so many workers cost a scheduler, in seconds of its processor, open files and bytes, in all."""
    from distributed.comm import connect
    from distributed.versions import get_versions

    from hpcml.kinds.dask.node.dask_worker import PrivateWorker
    from hpcml.kinds.dask.node.security import tls
    from hpcml.node.process_helpers import raise_file_limit
    from hpcml.paths import RunPaths

    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="hpcml-crowd-") as name:
        scheduler = Scheduler(Path(name), way)
        try:
            security = tls.security(RunPaths(Path(name)).attempt(0))
            own = PrivateWorker(scheduler.address, security=security, name="real", nthreads=1, host="127.0.0.1",
                                local_directory=name, protocol="tls")  # fmt: skip
            async with own:
                metrics = {**await own.get_metrics(), "digests_total_since_heartbeat": {}}
                extra, versions = await own.get_startup_information(), get_versions()
            arguments = security.get_connection_args("worker")

            async def register(number: int) -> Any:
                comm = await connect(scheduler.address, **{**arguments, "timeout": DEADLINE})
                hello = {"op": "register-worker", "reply": False, "address": f"tls://127.0.0.1:{PORT + number}", "status": "running",
                         "nthreads": 1, "name": f"node{number // 4}-{number % 4}", "now": time.time(), "resources": {},
                         "memory_limit": 1 << 30, "local_directory": "/tmp", "services": {}, "nanny": None, "pid": number,
                         "versions": versions, "metrics": metrics, "extra": extra, "stimulus_id": f"crowd-{number}",
                         "server_id": f"Worker-{number}"}  # fmt: skip
                await comm.write(hello, serializers=["msgpack"])
                answer = await comm.read(deserializers=["msgpack"])
                assert answer["status"] == "OK", answer
                return comm

            async def beat(number: int, comm: Any) -> None:
                facts = {
                    "address": f"tls://127.0.0.1:{PORT + number}",
                    "now": time.time(),
                    "metrics": metrics,
                    "executing": {},
                }
                await comm.write({"op": "heartbeat_worker", "reply": True, **facts, "extensions": {}})
                assert (await comm.read())["status"] == "OK"

            before = await scheduler.ask()
            began = time.monotonic()
            streams = await asyncio.wait_for(asyncio.gather(*map(register, range(count))), DEADLINE)
            registered, seconds = await scheduler.ask(), time.monotonic() - began
            assert registered["workers"] == count, registered
            beats = await asyncio.gather(
                *(connect(scheduler.address, **{**arguments, "timeout": DEADLINE}) for _ in range(count))
            )
            connected = await scheduler.ask()
            await asyncio.gather(*(beat(number, comm) for number, comm in enumerate(beats)))
            after = await scheduler.ask()
            closed = await scheduler.ask("close")
            refused = scheduler.log.read_text().count("hpcml.tls: refused")
            for comm in (*streams, *beats):
                comm.abort()
        finally:
            scheduler.process.kill()
            scheduler.process.wait()
    return {
        "workers": count,
        "way": way,
        "refused": refused,
        "load": os.getloadavg()[0],
        "register_wall": round(seconds, 3),
        "register": round(registered["cpu"] - before["cpu"], 3),
        "connect": round(connected["cpu"] - registered["cpu"], 3),
        "beat": round(after["cpu"] - connected["cpu"], 3),
        "close": round(closed["cpu"], 3),
        "close_wall": round(closed["seconds"], 3),
        "files": connected["files"] - before["files"],
        "bytes": after["bytes"] - before["bytes"],
    }


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
