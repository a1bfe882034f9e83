"""hpcml's verdict on the wire, where it must be good and where it must not: NVLink, TCP by force, RDMA between nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness import SCRIPTS, Case, Run, World
from results import Result, result, skipped

REFUSED = 89  # hpcml.errors.INTERCONNECT
SOON = 5.0  # seconds in which the check of a run's own wires is to be over
RDMA = ("interconnect.require=rdma", "environment.UCX_TLS=^cuda_ipc,posix,sysv,cma")  # what real nodes do not share
SLOW, SLOW_ON_CPUS = "environment.UCX_TLS=tcp,cuda_copy", "environment.UCX_TLS=tcp"


def cases(world: World) -> list[Case]:
    """Return what a machine of this size can show; between GPUs there must be two."""
    if world.gpus < 2:
        return [Case("verdict", 0, lambda: [skipped("verdict", "it needs two GPUs")])]
    together, slow = world.gpus, SLOW_ON_CPUS if world.cpu_only else SLOW
    return [
        Case("default", 40, lambda: [_judge(world, "default", 1, together, (), _fast)]),
        Case("tcp by force", 40, lambda: [_judge(world, "tcp by force", 1, together, (slow,), _slow)]),
        Case("two nodes", 40, lambda: [_judge(world, "two nodes", 2, world.gpus // 2, (), _nvlink_across)]),
        Case("rdma", 40, lambda: [_judge(world, "rdma", 2, world.gpus // 2, RDMA, _strict)]),
    ]


def _judge(
    world: World,
    name: str,
    nodes: int,
    gpus: int,
    settings: tuple[str, ...],
    check: Callable[[Run, dict[str, Any]], str],
) -> Result:
    world.shape(nodes, gpus)
    per_node = ("workers.per_node=2",) if world.cpu_only else ()
    run = world.submit(SCRIPTS / "nothing.py", nodes=nodes, gpus=gpus, settings=(*per_node, *settings), protocol="ucx")
    facts = run.table("attempts/0/interconnect.json")
    verdict = facts.get("verdict", {})
    event = run.fact("interconnect-checked")
    if not verdict:
        return result(name, ok=False, figures={}, error=f"there is no verdict: {run.why()}")
    wires = {scope: verdict.get(scope) or {} for scope in ("within", "across")}
    figures = {
        "status": run.status, "line": verdict["line"], "verdict_ok": verdict["ok"], "check_s": facts.get("seconds"),
        "reason": run.table("status.json").get("message", ""), "problem": event.get("problem", ""),
        **{f"{scope}_transports": ", ".join(wire.get("transports", ())) for scope, wire in wires.items()},
        **{f"{scope}_gib_s": round(wire.get("bandwidth", 0.0), 3) for scope, wire in wires.items()},
        "over": wires["within"].get("over", ""), "verdict": verdict,
    }  # fmt: skip
    error = check(run, verdict) if not world.cpu_only else ""
    return result(name, ok=not error, figures=figures, error=error)


def _fast(run: Run, verdict: dict[str, Any]) -> str:
    transports = (verdict.get("within") or {}).get("transports", ())
    took = run.table("attempts/0/interconnect.json").get("seconds") or 0.0
    if run.status:
        return run.why()
    if took > SOON:
        return f"the check took {took:.1f} s, at most {SOON:g} s are expected"
    return "" if verdict["ok"] and "cuda_ipc" in transports else f"no fast wire within the node: {verdict['line']}"


def _slow(run: Run, verdict: dict[str, Any]) -> str:
    within = verdict.get("within") or {}
    if run.status:
        return run.why()
    return f"a fast wire was told where there was none: {verdict['line']}" if within.get("ok") else ""


def _nvlink_across(run: Run, verdict: dict[str, Any]) -> str:
    """These nodes are parts of one machine: UCX goes from one to the other over NVLink, NCCL by sockets, and both is told."""
    across = verdict.get("across") or {}
    if run.status:
        return run.why()
    right = across.get("over") == "NVLink" and across.get("ok") and "sockets" in verdict["nccl_doubt"]
    return "" if right else f"not what these two nodes have: {verdict['line']}"


def _strict(run: Run, verdict: dict[str, Any]) -> str:
    """With RDMA between the nodes the run goes on, without it ends with its own status and says why."""
    fast = bool((verdict.get("across") or {}).get("ok"))
    if fast:
        return "" if run.status == 0 else run.why()
    reason = run.table("status.json").get("message", "")
    return "" if run.status == REFUSED and reason else f"status {REFUSED} and a reason were expected: {run.why()}"
