"""A clean cluster between two points: nothing of the last one is kept, computed, or holds memory.

A process of its own has the client for that, because the process that starts the points must have no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import time
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, NoReturn

from hpcml.node import processes

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ANSWER = 120.0  # seconds for all of a cleaning, with a restart of the workers
GONE = 0.5  # seconds in which the scheduler notices that the point's client is gone
RELEASED = 2.0  # seconds for tasks to be forgotten, and to leave their threads
BACK = 60.0  # seconds for workers to be there again
SHARE = 0.25  # of a worker's memory limit: what a point may leave before its workers are restarted
LEAST = 128 << 20  # bytes that it may leave in any case: modules that its tasks have imported
_STORES = {"publish": "datasets", "variables": "variables", "queues": "queues"}  # of the scheduler, by extension


class CleaningError(Exception):
    """The cluster could not be cleaned: it does not answer, or its workers did not come back."""


def use(address: str) -> None:
    """Have this process take the scheduler at an address, of a share of the workers, for the run's cluster."""
    import dask.config

    os.environ["DASK_SCHEDULER_ADDRESS"] = address
    dask.config.set({"scheduler-address": address})


class Cleaner:
    """The process that cleans a share of the workers; it is asked once before the first point and after each."""

    def __init__(self, address: str = "") -> None:
        """Begin with the share whose scheduler is at ``address``, empty for the run's only one."""
        self.connection, theirs = Pipe()
        self.asked = 0.0
        parent = os.getpid()
        self.pid = os.fork()  # safe: this process has one thread
        if not self.pid:
            self.connection.close()
            _serve(theirs, parent, address)
        theirs.close()

    def ask(self) -> None:
        """Have the share cleaned; the connection has something to read when it is."""
        self.asked = time.monotonic()
        with contextlib.suppress(OSError):  # it is gone, and the answer says so
            self.connection.send("clean")

    @property
    def late(self) -> bool:
        """Whether there should have been an answer."""
        return time.monotonic() - self.asked > ANSWER

    def answer(self) -> str:
        """Return why workers were restarted, empty if they were not.

        Raises
        ------
        CleaningError
            If the share is not clean.
        """
        try:
            if not self.connection.poll():
                raise CleaningError(f"the cluster could not be cleaned within {ANSWER:g} s")
            answer: dict[str, str] = self.connection.recv()
        except (OSError, EOFError) as error:
            raise CleaningError("the process that cleans the cluster is gone") from error
        if problem := answer.get("problem"):
            raise CleaningError(f"the cluster could not be cleaned: {problem}")
        return answer["restarted"]

    def let_go(self) -> None:
        """In a point: close what is the parent's."""
        self.connection.close()

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _serve(connection: Connection, parent: int, address: str) -> NoReturn:
    try:
        processes.end_with(parent)
        signal.set_wakeup_fd(-1)
        if address:
            use(address)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # its parent ends it
        cluster: _Cluster | None = None
        while connection.recv():
            try:
                cluster = cluster or _Cluster()
                answer = {"restarted": cluster.clean()}
            except Exception as error:  # noqa: BLE001 - the parent says it
                answer = {"problem": f"{type(error).__name__}: {error}"}
            connection.send(answer)
    except EOFError:
        pass  # the parent has ended
    finally:
        os._exit(0)


class _Cluster:
    """The run's cluster as the cleaning sees it; ``before`` is what memory each worker had when it was fresh."""

    def __init__(self) -> None:
        from distributed import Client

        self.client = Client(set_as_default=False)
        self.before: dict[str, int] = {}

    def clean(self) -> str:
        left = self.client.run_on_scheduler(release, keep=self.client.id)
        states = self.client.run(state)
        deadline = time.monotonic() + RELEASED
        while any(one["busy"] for one in states.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
            states = self.client.run(state)
        grown = self._grown(states)
        if grown:  # not all of it may be in use
            states = self.client.run(state, trim=True)
            grown = self._grown(states)
        why = reason(left, sum(bool(one["busy"]) for one in states.values()), grown)
        if why:
            old = self.client.run_on_scheduler(workers)
            self.client.run(end, wait=False)
            self.client.run_on_scheduler(replaced, old=old)
            states, self.before = self.client.run(state), {}
        for worker, one in states.items():
            self.before.setdefault(worker, one["memory"])
        return why

    def _grown(self, states: dict[str, dict[str, int]]) -> list[int]:
        """Return by how many bytes workers have grown that kept more of their memory than they may."""
        grown = [
            (one["memory"] - self.before[worker], one["limit"])
            for worker, one in states.items()
            if worker in self.before
        ]
        return [more for more, limit in grown if kept_too_much(more, limit)]


def kept_too_much(more: int, limit: int) -> bool:
    """Whether a worker that has ``more`` bytes than when it was fresh is to be restarted; ``limit`` 0 is none."""
    return more > LEAST and more > SHARE * limit


def reason(left: int, busy: int, grown: list[int]) -> str:
    """Return why workers are restarted, in words; empty if they need not be."""
    if grown:
        return f"{len(grown)} of the workers kept up to {max(grown) >> 20} MiB"
    if busy:
        return f"tasks of the point still ran on {busy} of the workers"
    return f"{left} tasks of the point could not be released" if left else ""


async def release(dask_scheduler: Any, keep: str) -> int:
    """On the scheduler: release what nobody who is connected holds; return how many tasks there are still."""
    deadline = time.monotonic() + GONE
    while set(dask_scheduler.client_comms) - {keep} and time.monotonic() < deadline:  # noqa: ASYNC110 - Dask tells nobody
        await asyncio.sleep(0.005)
    for extension, store in _STORES.items():
        if found := dask_scheduler.extensions.get(extension):
            getattr(found, store).clear()
    for name, client in list(dask_scheduler.clients.items()):
        if name not in dask_scheduler.client_comms:
            dask_scheduler.client_releases_keys(keys=[task.key for task in client.wants_what], client=name)
    deadline = time.monotonic() + RELEASED
    while dask_scheduler.tasks and time.monotonic() < deadline:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.005)
    return len(dask_scheduler.tasks)


def workers(dask_scheduler: Any) -> list[str]:
    """On the scheduler: return what tells its workers from those that come after them."""
    return [worker.server_id for worker in dask_scheduler.workers.values()]


async def replaced(dask_scheduler: Any, old: list[str]) -> None:
    """On the scheduler: wait until there are as many workers as before, and none of them is an old one."""
    deadline = time.monotonic() + BACK
    while set(there := workers(dask_scheduler)) & set(old) or len(there) < len(old):
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {len(old)} workers {len(set(there) - set(old))} were back after {BACK:g} s")
        await asyncio.sleep(0.02)


async def end() -> None:  # only of such does Dask not wait for the answer
    """On a worker: end its process at once, whatever its tasks do; another takes its place."""
    os._exit(processes.COME_BACK)


def state(dask_worker: Any, *, trim: bool = False) -> dict[str, int]:
    """On a worker: return how many tasks its threads run, its memory and its limit in bytes (0: none)."""
    import psutil

    if trim:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    memory = psutil.Process().memory_info().rss
    busy = dask_worker.state.executing_count + len(dask_worker.state.long_running)
    return {"busy": busy, "memory": memory, "limit": int(dask_worker.memory_manager.memory_limit or 0)}
