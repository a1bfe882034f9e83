"""Decide before a job starts whether its data fits: it does, it will spill, or so many nodes would be needed.

Data that is larger than the workers' memory spills: on GPUs to the host's memory, on CPUs to the node's disk. That
works for modest overflow and is slow; far beyond, a run only burns its grant until a worker is killed.
"""

from __future__ import annotations

import pathlib
import shutil
from dataclasses import dataclass
from typing import Any

from gallery import backend
from gallery.job import Job, RefusedError
from hpcml.units import format_bytes

MOST = 4.0  # times the memory that spilling is tried for, where there is room: beyond, each pass rereads it all
FULL = 0.6  # of a worker's memory: where distributed begins to spill (distributed.worker.memory.target's default)


@dataclass(frozen=True)
class Capacity:
    """What the cluster holds, in bytes.

    Attributes
    ----------
    memory
        Where the data lies while it is worked on: the GPUs', or the workers' limits.
    room
        Where it can be spilled to: the hosts' memory for GPUs, the nodes' disk for CPUs; 0 if workers do not spill.
    fill
        The memory that data can fill before the workers begin to spill it, as they say; 0 if they do not.
    """

    nodes: int
    workers: int
    memory: int
    room: int
    fill: int = 0

    @property
    def usable(self) -> int:
        """The memory that data can fill before it is spilled."""
        return self.fill or int(self.memory * FULL)


def _of_worker(dask_worker: Any) -> tuple[str, int, int, int, int]:
    """Return a worker's host, memory, fill at which it spills, host memory and free scratch; runs on the worker."""
    import socket

    data = dask_worker.data  # distributed's SpillBuffer, dask-cuda's DeviceHostFile, or a dict: it never spills
    host = int(dask_worker.memory_manager.memory_limit or 0)
    if backend.on_gpu():
        import cupy

        device = int(cupy.cuda.runtime.memGetInfo()[1])
        fill = getattr(getattr(data, "device_buffer", data), "n", None)
        return socket.gethostname(), device, int(fill or device), host if fill else 0, 0
    fill = getattr(data, "n", None)
    free = shutil.disk_usage(pathlib.Path(dask_worker.local_directory)).free if fill else 0
    return socket.gethostname(), host, int(fill or host), 0, free


def _expect(size: int, dask_worker: Any) -> None:
    """Have a worker of a run make room for so many bytes that will leave its GPU; runs on the worker."""
    make_ready = getattr(dask_worker.data, "expect", None)
    if make_ready is not None:
        make_ready(size)


def capacity(client: Any) -> Capacity:
    """Ask all workers what they hold."""
    known = list(client.run(_of_worker).values())
    disks = {host: free for host, *_, free in known}  # the workers of a node share its disk
    room = sum(above for *_, above, _ in known) + sum(disks.values())
    return Capacity(len(disks), len(known), sum(one[1] for one in known), room, sum(one[2] for one in known))


def admit(job: Job, need: int, what: str, *, at_once: int = 0) -> None:
    """Let a job go on, say that it will spill, or refuse it with the number of nodes that it would need.

    Parameters
    ----------
    need
        Bytes that live at the same time, working copies included: an honest estimate of the job.
    what
        The data, as a message calls it.
    at_once
        Bytes of it that a library takes all at once on GPUs, so that they cannot be spilled: cuML's estimators and
        XGBoost are given all of a worker's rows in one call.

    Raises
    ------
    RefusedError
        It cannot fit, even with spilling; unless ``--any-size`` says to try.
    """
    has = capacity(job.client)
    job.result |= {"memory_needed": need, "memory": has.memory, "nodes": has.nodes}
    if not has.memory or need <= has.usable:  # workers without a limit tell nothing
        return
    kind = "of the GPUs" if backend.on_gpu() else "of the workers"
    ratio, wanted = need / has.memory, -(-need * has.nodes // has.usable)
    if backend.on_gpu() and at_once > has.memory and not job.options.any_size:
        raise RefusedError(
            f"{what} takes {format_bytes(at_once)} {kind} at once, {at_once / has.memory:.1f} times their memory "
            f"({format_bytes(has.memory)} on {nodes(has)}): the library is given all rows of a GPU in one call, and "
            f"they cannot be spilled. Ask for --nodes {wanted}, or try it with --any-size."
        )
    if need <= min(has.usable + has.room, MOST * has.memory) or job.options.any_size:
        job.note(
            f"{what} needs {format_bytes(need)}, {ratio:.1f} times the memory {kind} "
            f"({format_bytes(has.memory)}): it will spill."
        )
        job.client.run(_expect, (need - has.usable) // has.workers)
        return
    raise RefusedError(
        f"{what} needs {format_bytes(need)}, {ratio:.1f} times the memory {kind} ({format_bytes(has.memory)} on "
        f"{nodes(has)}). Ask for --nodes {wanted}, or try it with --any-size."
    )


def nodes(has: Capacity) -> str:
    """Return how many nodes there are, in words."""
    return f"{has.nodes} node{'s' * (has.nodes > 1)}"
