"""The fabric check, on the scheduler's side: transfers between workers within and across nodes, then the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Scheduler

from hpcml.inside import evidence, files, preflight, verdict
from hpcml.inside.measurement import Measurement, NodeFacts, Pair, WorkerFacts
from hpcml.inside.settings import Context, load

BUDGET = 1.0  # seconds for the transfers of one round; the request of a slow one may take a little longer
NCCL_SHARE = 0.5  # of the deadline: a communicator that does not come together must not take the rest with it

Named = tuple[str, str]  # a worker's name and its address
Workers = dict[str, list[Named]]  # by node, in the order of the names
Round = list[tuple[Named, Named]]  # (target, source)


async def check(scheduler: Scheduler, context: Context, protocol: str) -> dict[str, Any]:
    """Make the transfers, judge them and write ``fabric.json``.

    Returns
    -------
    dict
        ``line`` (the verdict), ``ok``, ``problem`` (why ``fabric.require`` is not met, empty if it is), ``remedy``,
        ``differences`` between nodes, ``seconds``.
    """
    began = time.monotonic()
    workers = by_node(scheduler, context)
    measurement = await measure(scheduler, context, protocol, workers)
    found = verdict.decide(measurement)
    probes = {node: facts.probe for node, facts in measurement.nodes.items() if facts.probe}
    facts = {
        "verdict": found.to_json(),
        "differences": preflight.differences(probes),
        "measurement": measurement.to_json(),
        "seconds": round(time.monotonic() - began, 3),
    }
    files.write_json(context.attempt.fabric, facts)
    return {
        "line": found.line,
        "ok": found.ok,
        "problem": verdict.judge(context.settings.fabric, found),
        "remedy": found.remedy,
        "problems": list(found.problems),
        "differences": facts["differences"],
        "seconds": facts["seconds"],
    }


def by_node(scheduler: Scheduler, context: Context) -> Workers:
    """Return the workers that are there, by node."""
    addresses = {str(worker.name): address for address, worker in scheduler.workers.items()}
    found: Workers = {}
    for node in context.nodes:
        present = [(name, addresses[name]) for name in context.worker_names(node) if name in addresses]
        if present:
            found[node] = present
    return found


async def measure_all(scheduler: Scheduler) -> dict[str, Any]:
    """Measure every node against every other, for ``hpcml fabric``; return ``Measurement.to_json``."""
    context = load()
    workers = by_node(scheduler, context)
    protocol = str(scheduler.address).partition("://")[0]
    measured = await measure(scheduler, context, protocol, workers, distances=range(1, len(workers)))
    return measured.to_json()


async def measure(
    scheduler: Scheduler, context: Context, protocol: str, workers: Workers, distances: range = range(1, 2)
) -> Measurement:
    """Make the transfers and collect what bears witness to their way.

    Parameters
    ----------
    distances
        Across nodes, which other node each one fetches from: 1 is the next, and all up to N-1 give every pair of N.
    """
    everyone = [pair for pairs in workers.values() for pair in pairs]
    firsts = {node: pairs[0][1] for node, pairs in workers.items()}
    before = await _ask(scheduler, firsts, lambda rpc: rpc.hpcml_counters())
    pairs = await _round(scheduler, within(workers), "within")
    for distance in distances:
        pairs += await _round(scheduler, across(workers, distance), "across")
    after = await _ask(scheduler, firsts, lambda rpc: rpc.hpcml_counters())
    facts = await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_facts())
    await _ask(scheduler, dict(everyone), lambda rpc: rpc.hpcml_release())
    gpus = context.settings.gpu is not None
    nccl = await _nccl(scheduler, everyone, context) if gpus and context.settings.nccl and len(everyone) > 1 else None
    nodes = {name: node for node, pairs in workers.items() for name, _ in pairs}
    return Measurement(
        protocol=protocol,
        memory="cuda" if gpus else "host",
        pairs=tuple(pairs),
        workers={name: _worker_facts(nodes[name], answer) for name, answer in facts.items()},
        nodes={node: _node_facts(context, node, before[node], after[node]) for node in workers},
        nccl=nccl,
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


async def _round(scheduler: Scheduler, plan: Round, scope: str) -> list[Pair]:
    """Have all pairs transfer at once, the first time without a clock: nobody is timed while another still opens."""

    async def one(target: Named, source: Named, opened: asyncio.Barrier) -> Pair:
        worker, moved, error = scheduler.rpc(target[1]), 0, ""
        try:
            moved = (await worker.hpcml_warm(source=source[1]))["moved"]
        except Exception as cause:  # noqa: BLE001 - a pair that cannot talk is a finding, with its reason
            error = f"{type(cause).__name__}: {cause}"
        await opened.wait()
        if error:
            return Pair(source[0], target[0], scope, 0, 0.0, error=error)
        try:
            answer = await worker.hpcml_fetch(source=source[1], budget=BUDGET)
        except Exception as cause:  # noqa: BLE001 - the same
            return Pair(source[0], target[0], scope, 0, 0.0, error=f"{type(cause).__name__}: {cause}")
        return Pair(source[0], target[0], scope, answer["bytes"], answer["seconds"], moved=moved + answer["moved"])

    opened = asyncio.Barrier(max(1, len(plan)))
    return list(await asyncio.gather(*(one(target, source, opened) for target, source in plan)))


async def _ask(
    scheduler: Scheduler, addresses: dict[str, str], question: Callable[[Any], Awaitable[Any]]
) -> dict[str, Any]:
    """Ask workers at once; one that fails answers with ``error``."""

    async def one(address: str) -> Any:
        try:
            return await question(scheduler.rpc(address))
        except Exception as error:  # noqa: BLE001 - it is passed on in words
            return {"error": f"{type(error).__name__}: {error}"}

    answers = await asyncio.gather(*(one(address) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def _nccl(scheduler: Scheduler, everyone: list[Named], context: Context) -> dict[str, Any]:
    """All-reduce over all workers; the slowest rank's word counts."""
    unique_id = (await _ask(scheduler, dict(everyone[:1]), lambda rpc: rpc.hpcml_nccl_id()))[everyone[0][0]]
    if isinstance(unique_id, dict):
        return unique_id
    ranks = [
        scheduler.rpc(address).hpcml_nccl(unique_id=unique_id, rank=rank, size=len(everyone))
        for rank, (_, address) in enumerate(everyone)
    ]
    patience = context.settings.fabric_deadline * NCCL_SHARE
    try:
        async with asyncio.timeout(patience):
            answers = await asyncio.gather(*ranks)
    except TimeoutError:
        return {"error": f"no all-reduce within {patience:g} s"}
    errors = [f"{name}: {answer['error']}" for (name, _), answer in zip(everyone, answers, strict=True)
              if "error" in answer]  # fmt: skip
    if errors:
        return {"error": errors[0], "log": answers[0]["log"]}
    slowest = max(answers, key=lambda answer: float(answer["seconds"]))
    count = len(everyone)
    bandwidth = 2 * (count - 1) / count * slowest["bytes"] / slowest["seconds"]  # nccl-tests' "bus bandwidth"
    wrong = "" if all(answer["right"] for answer in answers) else "the all-reduce gave a wrong sum"
    return {**slowest, "bandwidth": bandwidth, "error": wrong, "log": answers[0]["log"]}


def _worker_facts(node: str, answer: dict[str, Any]) -> WorkerFacts:
    return WorkerFacts(node, **answer)


def _node_facts(context: Context, node: str, before: dict[str, Any], after: dict[str, Any]) -> NodeFacts:
    moved = {} if "error" in {**before, **after} else evidence.difference(before, after)
    return NodeFacts(moved=moved, probe=files.read_json(context.attempt.probe_of(node)))
