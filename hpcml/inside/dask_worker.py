"""One Dask worker in a process of its own: its share of the node, its closed doors and what its end means."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
from distributed import Worker
from distributed.system import MEMORY_LIMIT

from hpcml.inside import secure
from hpcml.inside.network import choose_address
from hpcml.inside.settings import Context

_FOR_GOOD = ("scheduler-close", "scheduler-close-worker")


@dataclass(frozen=True, slots=True)
class Share:
    """What each worker of a node gets; ``memory_limit`` in bytes."""

    threads: int
    memory_limit: int

    @classmethod
    def of_node(cls, context: Context, workers: int) -> Share:
        """Divide what this task may use of the node (its CPU set, its memory limit) among its workers."""
        cpus = int(os.environ.get("SLURM_CPUS_PER_TASK") or _usable_cpus())
        threads = context.settings.threads or max(1, cpus // workers)
        return cls(threads, context.settings.memory_limit or _usable_memory(cpus) // workers)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _usable_memory(cpus: int) -> int:
    """Return the bytes that this task may use: what Slurm was asked for, and never more than the node or cgroup has."""
    per_node, per_cpu = (os.environ.get(f"SLURM_MEM_PER_{unit}", "") for unit in ("NODE", "CPU"))
    asked = int(per_node) if per_node.isdigit() else int(per_cpu) * cpus if per_cpu.isdigit() else 0
    return min(asked * 1024**2 or int(MEMORY_LIMIT), int(MEMORY_LIMIT))


class PrivateWorker(Worker):  # type: ignore[misc]
    """Dask's worker without an HTTP port; it remembers why it was closed."""

    closed_because = ""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port: nothing but Dask's TLS comms listens on a node."""

    async def close(self, *arguments: Any, reason: str = "worker-close", **options: Any) -> Any:
        """Close as Dask does, keeping the first reason."""
        self.closed_because = self.closed_because or reason
        return await super().close(*arguments, reason=reason, **options)


def run(context: Context, address: str, name: str, scratch: Path, share: Share) -> int:
    """Run one worker until it is closed; return 0 if for good, 3 if it is expected back."""
    from hpcml.inside.worker import COME_BACK

    logging.getLogger("distributed.batched").setLevel(logging.WARNING)  # it logs a traceback at every normal end
    dask.config.set(secure.dask_settings(context.attempt, address))
    sys.path.append(str(context.run.code))  # functions of the script's own modules travel by name
    reason = asyncio.run(_serve(context, address, name, scratch, share))
    return 0 if reason in _FOR_GOOD else COME_BACK


async def _serve(context: Context, address: str, name: str, scratch: Path, share: Share) -> str:
    host, _ = choose_address(context.settings.interface, local=context.settings.local)
    worker = PrivateWorker(
        address,
        nthreads=share.threads,
        name=name,
        host=host,
        protocol="tls",
        security=secure.security(context.attempt),
        memory_limit=share.memory_limit,
        local_directory=str(scratch),
        death_timeout=context.settings.workers_deadline,
    )
    await worker
    await worker.finished()
    return worker.closed_because
