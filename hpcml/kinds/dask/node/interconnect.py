"""The check of the interconnect: the scheduler has workers transfer data within and across nodes, and judges it."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import statistics
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler, Worker
from distributed.protocol import dask_deserialize, dask_serialize, to_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

from hpcml.kinds.dask.node.security import tcp_auth
from hpcml.node import shared_files
from hpcml.node.context import Context, load
from hpcml.node.interconnect import record
from hpcml.node.interconnect.measurement import (
    Measurement,
    NodeFacts,
    Pair,
    WorkerFacts,
    counter_difference,
    parse_nccl_log,
    parse_ucx_log,
    read_counters,
    transport_variables,
)
from hpcml.node.interconnect.result import decide
from hpcml.terminal import say, say_lines

BUDGET = 1.0  # seconds for the transfers of one round; the request of a slow one may take a little longer
NCCL_SHARE = 0.5  # of the deadline: a communicator that does not come together must not take the rest with it

Named = tuple[str, str]  # a worker's name and its address
Workers = dict[str, list[Named]]  # by node, in the order of the names
Round = list[tuple[Named, Named]]  # (target, source)
MIB = 1024**2
FIRST = 32 * MIB  # bytes of the transfer that tells how large the timed ones shall be
LARGEST = 512 * MIB
AIMED = 0.02  # seconds that one timed transfer should last: long against the request, short against the run
REPEATS = 4
NCCL_BYTES = 256 * MIB
NCCL_FIRST = 16 * MIB  # bytes of the all-reduce that tells how often the timed one can be repeated
NCCL_AIMED = 0.15  # seconds for the timed all-reduces
NCCL_REPEATS = 5
NCCL_PIECES = 16  # mebibytes of the sum that are compared


async def check(scheduler: Scheduler, context: Context, protocol: str) -> dict[str, Any]:
    """Make the transfers, judge them and write ``interconnect.json``.

    It returns the fields of the event (:func:`hpcml.node.interconnect.record.write`).
    """
    began = time.monotonic()
    measurement = await measure(scheduler, context, protocol, by_node(scheduler, context))
    result = decide(measurement)
    return record.write(context, measurement, result, time.monotonic() - began)


def by_node(scheduler: Scheduler, context: Context) -> Workers:
    """Return the workers that are there, by node."""
    addresses = {str(worker.name): address for address, worker in scheduler.workers.items()}
    workers = {
        node: [(name, addresses[name]) for name in context.worker_names(node) if name in addresses]
        for node in context.node_names
    }
    return {node: present for node, present in workers.items() if present}


async def measure_all(dask_scheduler: Scheduler) -> Measurement:
    """Measure every node against every other, for ``hpcml interconnect``."""
    context = load()
    workers = by_node(dask_scheduler, context)
    schemes = (str(address).partition("://")[0] for address in dask_scheduler.workers)
    protocol = next(schemes, "tls").removeprefix(tcp_auth.PREFIX)
    return await measure(dask_scheduler, context, protocol, workers, distances=range(1, len(workers)))


async def measure(
    scheduler: Scheduler, context: Context, protocol: str, workers: Workers, distances: range = range(1, 2)
) -> Measurement:
    """Make the transfers and collect what bears witness to their way.

    Across nodes each one fetches from those ``distances`` further: 1 is the next, all up to N-1 are every pair.
    """
    everyone = [pair for pairs in workers.values() for pair in pairs]
    firsts = {node: pairs[0][1] for node, pairs in workers.items()}
    gpus = context.settings.workers.gpu is not None
    before = await _ask(scheduler, firsts, lambda rpc: rpc.hpcml_counters())
    rounds = [("within", within(workers)), *(("across", across(workers, distance)) for distance in distances)]
    joining = asyncio.create_task(_join_nccl(scheduler, everyone, context))
    opened = [await _open(scheduler, plan) for _, plan in rounds]
    joined = await joining
    pairs = [
        pair
        for (scope, plan), moved in zip(rounds, opened, strict=True)
        for pair in await _time(scheduler, plan, moved, scope)
    ]
    after = await _ask(scheduler, firsts, lambda rpc: rpc.hpcml_counters())
    worker_facts = await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_facts())
    await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_release())
    nccl = await _nccl(scheduler, everyone, context, joined) if joined else None
    node_of = {name: node for node, pairs in workers.items() for name, _ in pairs}
    return Measurement(
        protocol=protocol,
        memory="cuda" if gpus else "host",
        pairs=tuple(pairs),
        workers={name: WorkerFacts(node_of[name], **answer) for name, answer in worker_facts.items()},
        nodes={
            node: NodeFacts(
                {} if "error" in {**before[node], **after[node]} else counter_difference(before[node], after[node]),
                shared_files.read_json(context.attempt.probe_of(node)),
            )
            for node in workers
        },
        nccl=nccl,
        interface=context.settings.network.interface,
    )


def within(workers: Workers) -> Round:
    """Return for each node: every worker fetches from the next one, all at once."""
    return [pair for pairs in workers.values() if len(pairs) > 1 for pair in _shifted(pairs, 1)]


def across(workers: Workers, distance: int = 1) -> Round:
    """Return: every worker fetches from its like on the node so many further, so that all adapters work."""
    nodes = list(workers.values())
    if len(nodes) < 2:
        return []
    return [pair for one, other in _shifted(nodes, distance) for pair in zip(one, other, strict=False)]


def _shifted(items: list[Any], distance: int) -> list[tuple[Any, Any]]:
    return list(zip(items, [*items[distance:], *items[:distance]], strict=True))


async def _open(scheduler: Scheduler, plan: Round) -> list[dict[str, Any]]:
    """Have all pairs connect and open each other's memory; return the bytes ``moved`` by each, or its ``error``."""
    ways = ((scheduler.rpc(target[1]), source[1]) for target, source in plan)
    return list(await asyncio.gather(*(_answer(rpc.hpcml_warm(source=source)) for rpc, source in ways)))


async def _time(scheduler: Scheduler, plan: Round, opened: list[dict[str, Any]], scope: str) -> list[Pair]:
    """Have all pairs that could connect transfer at once against the clock."""

    async def one(target: Named, source: Named, opening: dict[str, Any]) -> Pair:
        pair = Pair(source[0], target[0], scope, 0, 0.0, opening.get("error", ""))
        if pair.error:
            return pair
        answer = await _answer(scheduler.rpc(target[1]).hpcml_fetch(source=source[1], budget=BUDGET))
        if "error" in answer:
            return replace(pair, error=answer["error"])
        moved = opening["moved"] + answer["moved"]
        return replace(pair, bytes=answer["bytes"], seconds=answer["seconds"], moved=moved)

    ways = zip(plan, opened, strict=True)
    return await asyncio.gather(*(one(target, source, opening) for (target, source), opening in ways))


async def _answer(question: Awaitable[Any]) -> Any:
    """Return a worker's answer; what fails is a finding, ``error`` with its reason."""
    try:
        return await question
    except Exception as error:  # noqa: BLE001 - it goes into the measurement
        return {"error": f"{type(error).__name__}: {error}"}


async def _ask(
    scheduler: Scheduler, addresses: dict[str, str], question: Callable[[Any], Awaitable[Any]]
) -> dict[str, Any]:
    answers = await asyncio.gather(*(_answer(question(scheduler.rpc(address))) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def _join_nccl(scheduler: Scheduler, everyone: list[Named], context: Context) -> dict[str, Any]:
    """Make a communicator over all workers, while they open each other's memory; {} if NCCL is not to be looked at."""
    if context.settings.workers.gpu is None or not context.settings.interconnect.nccl or len(everyone) < 2:
        return {}
    unique_id = await _answer(scheduler.rpc(everyone[0][1]).hpcml_nccl_id())
    if isinstance(unique_id, dict):
        return unique_id
    joins = [
        scheduler.rpc(address).hpcml_nccl_join(unique_id=unique_id, rank=rank, size=len(everyone))
        for rank, (_, address) in enumerate(everyone)
    ]
    return await _slowest(everyone, joins, "start", context, "no communicator")


async def _nccl(
    scheduler: Scheduler, everyone: list[Named], context: Context, joined: dict[str, Any]
) -> dict[str, Any]:
    """All-reduce over all workers; the slowest rank's word counts."""
    if "error" in joined:
        return joined
    count = len(everyone)
    reduces = [scheduler.rpc(address).hpcml_nccl(rank=rank, size=count) for rank, (_, address) in enumerate(everyone)]
    slowest = await _slowest(everyone, reduces, "seconds", context, "no all-reduce")
    if "error" in slowest:
        return slowest
    bandwidth = 2 * (count - 1) / count * slowest["bytes"] / slowest["seconds"]  # nccl-tests' "bus bandwidth"
    wrong = "" if slowest["right"] else "the all-reduce returned a wrong sum"
    return {**slowest, "start": joined["start"], "bandwidth": bandwidth, "error": wrong}


async def _slowest(
    everyone: list[Named], answers: list[Awaitable[Any]], key: str, context: Context, missing: str
) -> dict[str, Any]:
    """Return the answer with the greatest ``key``, with the first rank's log and all ranks' ``right``, or an error."""
    patience = context.settings.deadlines.interconnect * NCCL_SHARE
    try:
        async with asyncio.timeout(patience):
            results: list[dict[str, Any]] = await asyncio.gather(*answers)
    except TimeoutError:
        return {"error": f"{missing} within {patience:g} s"}
    log = {"log": results[0]["log"]} if "log" in results[0] else {}
    for (name, _), answer in zip(everyone, results, strict=True):
        if "error" in answer:
            return {"error": f"{name}: {answer['error']}", **log}
    slowest = max(results, key=lambda answer: float(answer[key]))
    return {**slowest, **log, "right": all(result.get("right") for result in results)}


class GpuMemory:
    """RMM's ``DeviceBuffer``, without Dask's own way to send it, which first imports numba for a second."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.nbytes = int(buffer.size)


def _by_ucx(memory: GpuMemory) -> tuple[dict[str, Any], list[Any]]:
    return {}, [memory.buffer]


def _from_ucx(_header: dict[str, Any], frames: list[Any]) -> GpuMemory:
    return GpuMemory(frames[0])


def _by_tcp(memory: GpuMemory) -> tuple[dict[str, Any], list[Any]]:
    return {}, [memory.buffer.tobytes()]


def _from_tcp(_header: dict[str, Any], frames: list[Any]) -> GpuMemory:
    return GpuMemory(_device_buffer_of(frames[0]))


cuda_serialize.register(GpuMemory, _by_ucx)
cuda_deserialize.register(GpuMemory, _from_ucx)
dask_serialize.register(GpuMemory, _by_tcp)
dask_deserialize.register(GpuMemory, _from_tcp)


class Transfers:
    """The handlers that a worker adds to Dask's for the check; they use Dask's own comms, as the workload will.

    ``logs`` is the folder with this worker's UCX and NCCL logs (:func:`log_environment`), ``device`` the GPU by index
    or UUID, empty on a CPU worker: the buffers are then in host memory.
    """

    def __init__(self, worker: Worker, logs: Path, device: str) -> None:
        self.worker, self.logs, self.device = worker, logs, device
        self.buffer: Any = None
        self.communicator: Any = None
        handlers = (self.give, self.warm, self.fetch, self.facts, self.counters, self.release)
        for handler in (*handlers, self.nccl_id, self.nccl_join, self.nccl):
            worker.handlers[f"hpcml_{handler.__name__}"] = handler

    def give(self, size: int) -> dict[str, Any]:
        """Return ``size`` bytes of the worker's kind of memory."""
        if self.buffer is None or _length(self.buffer) != size:
            self.buffer = GpuMemory(_device_buffer(size)) if self.device else bytes(size)
        return {"data": to_serialize(self.buffer)}

    async def warm(self, source: str) -> dict[str, Any]:
        """Connect to another worker and have both sides open what they open once; return the ``moved`` bytes.

        Opening a neighbour's memory pool holds a process for half a second: all workers do it before one is timed.
        """
        await self._one(source, MIB)
        await self._one(source, FIRST)
        return {"moved": MIB + FIRST}

    async def fetch(self, source: str, budget: float) -> dict[str, Any]:
        """Fetch buffers from another worker; after ``budget`` seconds none is begun.

        Return ``bytes`` and ``seconds`` of the timed transfers, and the ``moved`` bytes of all.
        """
        begin = time.perf_counter()
        last = await self._one(source, FIRST)
        size = min(LARGEST, max(FIRST, int(FIRST / last * AIMED) // MIB * MIB))
        moved = FIRST
        if size > FIRST:
            last = await self._one(source, size)
            moved += size
        count, seconds = 0, 0.0
        while count == 0 or (count < REPEATS and time.perf_counter() - begin + last < budget):
            last = await self._one(source, size)
            seconds += last
            count += 1
        return {"bytes": count * size, "seconds": seconds, "moved": moved + count * size}

    async def _one(self, source: str, size: int) -> float:
        begin = time.perf_counter()
        answer = await self.worker.rpc(source).hpcml_give(size=size)
        seconds = time.perf_counter() - begin
        if (got := _length(answer["data"])) != size:
            raise ValueError(f"worker {source} sent {got} bytes, but {size} bytes were requested")
        return seconds

    def facts(self) -> dict[str, Any]:
        """Return the possible and the wired transports of this UCX, and the variables that steer it (`WorkerFacts`)."""
        transfers: dict[str, Any] = {"gpu": self.device, "environment": transport_variables(os.environ)}
        ucxx = sys.modules.get("ucxx")  # imported by Dask's UCX backend, if that is in use
        if ucxx is not None:
            transfers["transports"] = sorted(ucxx.get_active_transports())
            transfers["version"] = ".".join(str(part) for part in ucxx.get_ucx_version())
            transfers["log"] = parse_ucx_log(_text(self.logs / f"ucx-{os.getpid()}.log"))
        if self.device:
            import rmm

            transfers["memory_resource"] = type(rmm.mr.get_current_device_resource()).__name__
        return transfers

    def counters(self) -> dict[str, Any]:
        """Return the counters of this node's adapters and GPUs."""
        return read_counters()

    def release(self) -> None:
        """Give the buffer's memory back."""
        self.buffer = None

    async def nccl_id(self) -> bytes | list[int]:
        """Return NCCL's id for a communicator (made on its first rank); CuPy has it as bytes, before 14 as a tuple."""
        from cupy.cuda import nccl

        identifier = nccl.get_unique_id()
        return identifier if isinstance(identifier, bytes) else list(identifier)

    async def nccl_join(self, unique_id: bytes | list[int], rank: int, size: int) -> dict[str, Any]:
        """Become a rank of a communicator over all workers."""
        from cupy.cuda import nccl

        def join() -> dict[str, Any]:
            begin = time.perf_counter()
            chosen = unique_id if isinstance(unique_id, bytes) else tuple(unique_id)
            self.communicator = nccl.NcclCommunicator(size, chosen, rank)
            return {"start": time.perf_counter() - begin}

        return await _in_thread(join)

    async def nccl(self, rank: int, size: int) -> dict[str, Any]:
        """Take part in an all-reduce over all workers; the communicator is gone then."""
        communicator, self.communicator = self.communicator, None
        result = await _in_thread(lambda: _all_reduce(communicator, rank, size))
        if "error" not in result:  # the run need not wait for the quarter of a second that this takes
            threading.Thread(target=communicator.destroy, name="hpcml-nccl-end", daemon=True).start()
        return {**result, "log": parse_nccl_log(_text(self.logs / f"nccl-{os.getpid()}.log"))}


async def _in_thread(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of ``work``, or its ``error``; in a thread, as NCCL waits in C and a rank may be missing."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[dict[str, Any]] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it goes to the scheduler
            result = {"error": f"{type(error).__name__}: {error}"}
        loop.call_soon_threadsafe(
            lambda: None if done.done() else done.set_result(result)
        )  # the check may have given up on it

    threading.Thread(target=run, name="hpcml-nccl", daemon=True).start()
    return await done


def _all_reduce(communicator: Any, rank: int, size: int) -> dict[str, Any]:
    """Time an all-reduce of :data:`NCCL_BYTES`, over a slow network of fewer; pieces of the sum are compared.

    That is done on the host, as CuPy would first compile kernels for seconds.
    """
    from cupy.cuda import get_current_stream, nccl

    values, total = _device_buffer(NCCL_BYTES), _device_buffer(NCCL_BYTES)
    stream = get_current_stream()

    def reduce(count: int, operation: int = nccl.NCCL_SUM) -> float:
        begin = time.perf_counter()
        communicator.allReduce(values.ptr, total.ptr, count, nccl.NCCL_FLOAT32, operation, stream.ptr)
        stream.synchronize()
        return time.perf_counter() - begin

    reduce(1)  # opens the connections
    expected = reduce(NCCL_FIRST // 4) * NCCL_BYTES / NCCL_FIRST
    _to_device(struct.pack("f", expected), values.ptr, 4)
    reduce(1, nccl.NCCL_MAX)  # all ranks reduce as often, and as much
    expected = struct.unpack("f", _to_host(total.ptr, 4))[0]
    amount = NCCL_BYTES if expected < NCCL_AIMED else NCCL_FIRST
    repeats = max(1, min(NCCL_REPEATS, int(NCCL_AIMED / (expected * amount / NCCL_BYTES))))
    _to_device(struct.pack("f", rank + 1), values.ptr, amount)
    seconds = statistics.median(reduce(amount // 4) for _ in range(repeats))
    right = struct.pack("f", size * (size + 1) / 2) * (MIB // 4)
    pieces = range(0, amount, amount // NCCL_PIECES)
    return {
        "bytes": amount,
        "seconds": seconds,
        "right": all(_to_host(total.ptr + piece, MIB) == right for piece in pieces),
    }


def _to_device(pattern: bytes, pointer: int, size: int) -> None:
    """Fill a GPU's memory with a pattern: a mebibyte from the host, and the rest from that."""
    from cupy.cuda import runtime

    block = pattern * (min(size, MIB) // len(pattern))
    memory = (ctypes.c_char * len(block)).from_buffer_copy(block)
    runtime.memcpy(pointer, ctypes.addressof(memory), len(block), runtime.memcpyHostToDevice)
    filled = len(block)
    while filled < size:
        more = min(filled, size - filled)
        runtime.memcpy(pointer + filled, pointer, more, runtime.memcpyDeviceToDevice)
        filled += more


def _to_host(pointer: int, size: int) -> bytes:
    """Return a piece of a GPU's memory."""
    from cupy.cuda import runtime

    memory = (ctypes.c_char * size)()
    runtime.memcpy(ctypes.addressof(memory), pointer, size, runtime.memcpyDeviceToHost)
    return memory.raw


def _device_buffer(size: int) -> Any:
    import rmm

    return rmm.DeviceBuffer(size=size)


def _device_buffer_of(frame: Any) -> Any:
    import rmm

    return rmm.DeviceBuffer.to_device(frame)


def _length(buffer: Any) -> int:
    return int(getattr(buffer, "nbytes", None) or len(buffer))


def _text(log: Path) -> str:
    ctypes.CDLL(None).fflush(None)  # UCX writes its log through C's buffer, and empties that at the process's end
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:  # the user chose another file, or nothing was logged
        return ""


def log_environment(folder: Path) -> dict[str, str]:
    """Return the variables that make UCX and NCCL write what they wired into files of their own.

    At level ``info`` both write some lines when a connection is made and none per message. A level or a file that
    the user chose stays.
    """
    ucx = {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": str(folder / "ucx-%p.log")}
    nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl-%p.log")}
    chosen = os.environ.keys()
    return {**({} if ucx.keys() & chosen else ucx), **({} if nccl.keys() & chosen else nccl)}


def main() -> int:
    """Measure between all workers for ``hpcml interconnect``; write a table and a picture; return the exit status.

    Every worker fetches from its like on every other node, all nodes at once, in N-1 rounds for N nodes; and from its
    neighbour within the node. interconnect.json (all figures and evidence) and interconnect.svg are written into the
    run's out/. The status is 0 if all was measured, 1 if a pair of workers could not talk, 2 outside a run.
    """
    if "HPCML_RUN_DIR" not in os.environ:
        say(
            "interconnect: this program measures the interconnect of a run's nodes. "
            "Start the program with: hpcml interconnect --nodes 2",
            sys.stderr,
        )
        return 2
    import dask.config

    from hpcml.kinds.dask.node.security import client_preload  # noqa: F401 - authenticates connections here
    from hpcml.node.interconnect import picture

    # __main__ would be sent as code, not as a name
    module = importlib.import_module("hpcml.kinds.dask.node.interconnect")
    with dask.config.set({"distributed.client.preload": []}), Client() as client:
        measurement: Measurement = client.run_on_scheduler(module.measure_all)
    result = decide(measurement)
    out = load().run.out
    record_json = {"verdict": result.to_json(), "measurement": asdict(measurement)}
    (out / "interconnect.json").write_text(json.dumps(record_json, indent=1) + "\n")
    nodes = {name: worker.node for name, worker in measurement.workers.items()}
    if not measurement.pairs:
        say(f"{result.line}: this run has only one worker.")
        say("To measure the interconnect between two nodes, run hpcml interconnect --nodes 2.")
        return 0
    say_lines(picture.matrix_text(measurement.pairs, nodes))
    say()
    say(result.line)
    for sentence in filter(None, (*result.problems, result.remedy)):
        say(f"  {sentence}")
    say()
    try:
        (out / "interconnect.svg").write_text(picture.matrix_svg(measurement.pairs, result.line, nodes))
    except ImportError as error:
        say(f"The picture of the bandwidths was not made: matplotlib cannot be imported ({error}).")
    else:
        say(f"Picture of the bandwidths: {out / 'interconnect.svg'}")
    return 1 if any(pair.error for pair in measurement.pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
