"""The fabric check, on the scheduler's side: transfers between workers within and across nodes, then the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

from distributed import Scheduler

from hpcml.node import files
from hpcml.node.fabric import counters, report
from hpcml.node.fabric.measurement import Measurement, NodeFacts, Pair, WorkerFacts
from hpcml.node.hardware import preflight, record
from hpcml.node.settings import Context, load

BUDGET = 1.0  # seconds for the transfers of one round; the request of a slow one may take a little longer
OWN_CONNECTIONS = "cuDF-Polars' own connections were not measured"
NCCL_SHARE = 0.5  # of the deadline: a communicator that does not come together must not take the rest with it

Named = tuple[str, str]  # a worker's name and its address
Workers = dict[str, list[Named]]  # by node, in the order of the names
Round = list[tuple[Named, Named]]  # (target, source)


async def check(scheduler: Scheduler, context: Context, protocol: str) -> dict[str, Any]:
    """Make the transfers, judge them and write ``fabric.json``.

    Returns
    -------
    dict
        ``line`` (the verdict), ``ok``, ``problem`` (why ``fabric.require`` is not met, empty if it is), ``problems``,
        ``remedy``, ``differences`` between nodes, ``seconds``.
    """
    began = time.monotonic()
    measurement = await measure(scheduler, context, protocol, by_node(scheduler, context))
    verdict = report.decide(measurement)
    if context.settings.for_polars:
        verdict = replace(verdict, line=f"{verdict.line}; {OWN_CONNECTIONS}")
    probes = {node: record.from_json(facts.probe) for node, facts in measurement.nodes.items() if facts.probe}
    facts = {"differences": preflight.differences(probes), "seconds": round(time.monotonic() - began, 3)}
    table = {"verdict": verdict.to_json(), "measurement": asdict(measurement), **facts}
    files.write_json(context.attempt.fabric, table)
    return {
        "line": verdict.line,
        "ok": verdict.ok,
        "problem": report.check_policy(context.settings.fabric, verdict),
        "remedy": verdict.remedy,
        "problems": list(verdict.problems),
        **facts,
    }


def by_node(scheduler: Scheduler, context: Context) -> Workers:
    """Return the workers that are there, by node."""
    addresses = {str(worker.name): address for address, worker in scheduler.workers.items()}
    workers = {
        node: [(name, addresses[name]) for name in context.worker_names(node) if name in addresses]
        for node in context.node_names
    }
    return {node: present for node, present in workers.items() if present}


async def measure_all(dask_scheduler: Scheduler) -> Measurement:
    """Measure every node against every other, for ``hpcml fabric``."""
    context = load()
    workers = by_node(dask_scheduler, context)
    protocol = next((str(address).partition("://")[0] for address in dask_scheduler.workers), "tls")
    return await measure(dask_scheduler, context, protocol, workers, distances=range(1, len(workers)))


async def measure(
    scheduler: Scheduler, context: Context, protocol: str, workers: Workers, distances: range = range(1, 2)
) -> Measurement:
    """Make the transfers and collect what bears witness to their way.

    Across nodes each one fetches from those ``distances`` further: 1 is the next, all up to N-1 are every pair.
    """
    everyone = [pair for pairs in workers.values() for pair in pairs]
    firsts = {node: pairs[0][1] for node, pairs in workers.items()}
    gpus = context.settings.gpu is not None
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
    facts = await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_facts())
    await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_release())
    nccl = await _nccl(scheduler, everyone, context, joined) if joined else None
    node_of = {name: node for node, pairs in workers.items() for name, _ in pairs}
    return Measurement(
        protocol=protocol,
        memory="cuda" if gpus else "host",
        pairs=tuple(pairs),
        workers={name: WorkerFacts(node_of[name], **answer) for name, answer in facts.items()},
        nodes={
            node: NodeFacts(
                {} if "error" in {**before[node], **after[node]} else counters.difference(before[node], after[node]),
                files.read_json(context.attempt.probe_of(node)),
            )
            for node in workers
        },
        nccl=nccl,
        interface=context.settings.interface,
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
    if context.settings.gpu is None or not context.settings.nccl or len(everyone) < 2:
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
    wrong = "" if slowest["right"] else "the all-reduce gave a wrong sum"
    return {**slowest, "start": joined["start"], "bandwidth": bandwidth, "error": wrong}


async def _slowest(
    everyone: list[Named], answers: list[Awaitable[Any]], key: str, context: Context, missing: str
) -> dict[str, Any]:
    """Return the answer with the greatest ``key``, with the first rank's log and all ranks' ``right``, or an error."""
    patience = context.settings.fabric_deadline * NCCL_SHARE
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
    return {**slowest, **log, "right": all(one.get("right") for one in results)}
