"""Why a node is not ready for its ranks, from the files that its processes leave, and what that means for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import End
from hpcml.failures.role_end import Explanation
from hpcml.kinds.ranks.roles import MPI, RANK
from hpcml.node import files
from hpcml.node.end_cause import role_end
from hpcml.node.run_state import RunState
from hpcml.node.settings import Context

_NAMED = 4


class Refusal(NamedTuple):
    """Why a node will have no ranks, and whether that is what the node did itself."""

    why: Explanation
    own_fault: bool = True
    entered: bool = True  # False where the image was not entered


def end_without(state: RunState, missing: Sequence[str], lost: Mapping[str, str], *, late: bool) -> End | None:
    """Return the run's end if a missing node cannot come any more, or has not come in time; None if all still may.

    ``lost`` is why the connection of a node was closed.
    """
    refusals = {node: refusal for node in missing if (refusal := _refusal(state, node))}
    if late:
        refusals = {node: refusals.get(node) or _late(state.context, node, lost.get(node, "")) for node in missing}
    outside = {node: refusal for node, refusal in refusals.items() if not refusal.entered}
    if not (refusals := outside or refusals):
        return None
    first = next(iter(refusals))
    named = "; ".join(f"{node}: {refusal.why.what}" for node, refusal in list(refusals.items())[:_NAMED])
    more = f"; and {len(refusals) - _NAMED} more nodes" if len(refusals) > _NAMED else ""
    status, phase = (errors.IMAGE, "image") if outside else (errors.WORKERS_NEVER_CAME, state.phase)
    hint, quote = refusals[first].why.hint, job_log.of_role(state.context.run, RANK, first)
    at_fault = tuple(node for node, refusal in refusals.items() if refusal.own_fault)
    end = End(status, phase, "hpcml", named + more, hint, quote, at_fault=at_fault, node=first)
    return end._replace(lost_nodes=tuple(refusals), role=RANK.name, reason=refusals[first].why.reason)


def of_lost(state: RunState, node: str, *, alone: bool) -> Refusal | None:
    """Return why the agent of a node has ended while the ranks ran, None if that is not known yet.

    Where it is not ``alone``, what its node did is no cause: the step has ended.
    """
    refusal = _refusal(state, node)
    return refusal if alone or (refusal and not refusal.own_fault) else _step_gone(state)


def _late(context: Context, node: str, lost: str) -> Refusal:
    """Return that a node was not ready in time; where its process has started, others may have kept it away."""
    reason = f"the process that starts the ranks was not ready within {context.settings.deadlines.workers:g} s"
    has_started = f"{node}.json" in files.listed(context.attempt.nodes)
    return Refusal(Explanation(f"{reason} (its connection was lost: {lost})" if lost else reason), not has_started)


def _refusal(state: RunState, node: str) -> Refusal | None:
    """Return why a node will have no ranks, with a hint if it did not enter the image; None if it still may."""
    context, attempt = state.context, state.context.attempt
    if lost := state.steps.lost_tasks().get(node):
        return Refusal(Explanation(lost))
    mark = files.read_json(attempt.mark_of(node)) if f"{node}.json" in files.listed(attempt.nodes) else None
    if mark and mark["refused"]:
        return Refusal(Explanation(str(mark["refused"])), mark["own_fault"])
    exits = files.listed(attempt.exits)
    if end := role_end(context, RANK, node, exits):
        ended = end.why._replace(what=f"the process that starts the ranks {end.why.what}")
        return Refusal(ended if end.entered else end.why, own_fault=end.status != 0, entered=end.entered)
    if (end := role_end(context, MPI, node, exits)) and end.status:
        return Refusal(end.why._replace(what=f"a task of srun {end.why.what}"))
    return _step_gone(state)


def _step_gone(state: RunState) -> Refusal | None:
    gone = [role.name for role in (RANK, MPI) if state.steps.gone(role.name)]
    if not gone:
        return None
    words = filter(None, (f"the job step '{gone[0]}' ended", job_log.last_of_srun(state.context.run)))
    return Refusal(Explanation(": ".join(words)), own_fault=False)
