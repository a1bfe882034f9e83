"""What it means for a run of ranks that a node is missing, lost or silent: the suspect, and how the run ends."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import End
from hpcml.kinds.ranks.roles import RANK
from hpcml.node.hardware import dask_protocol
from hpcml.node.missing_processes import Absence, Cause, Words
from hpcml.node.run_state import RunState
from hpcml.units import first_of_many

LAST_WORDS = 2.0  # seconds in which what is known of a lost agent's end arrives
_NAMED = 4
_PARENT = "the process that starts the ranks"
WORDS = Words(
    parent=_PARENT,
    step_gone="the job step '{role}' ended",
    starting=f"{_PARENT} has not connected to the supervisor",
    waiting=f"{_PARENT} was lost",
)


def end_without(absence: Absence, missing: Sequence[str], *, late: bool) -> End | None:
    """Return the run's end if a missing node cannot come any more, or has not come in time; None if all still may."""
    absence.look()
    causes = {node: absence.cause(node) for node in missing}
    if late:
        causes = {node: cause if cause.final else _late(absence, node) for node, cause in causes.items()}
    outside = {node: cause for node, cause in causes.items() if not cause.entered}
    if not (causes := outside or {node: cause for node, cause in causes.items() if cause.final}):
        return None
    state, first = absence.state, next(iter(causes))
    sentences = [f"{node}: {_told(absence, cause)}" for node, cause in causes.items()]
    named = first_of_many(sentences, _NAMED, "; ", "; and {} more nodes")
    status, phase = (errors.IMAGE, "image") if outside else (errors.WORKERS_NEVER_CAME, state.phase)
    hint, quote = causes[first].hint, job_log.of_role(state.context.run, RANK, first)
    at_fault = tuple(node for node, cause in causes.items() if cause.own_fault)
    end = End(status, phase, "hpcml", named, hint, quote, at_fault=at_fault, node=first)
    return end._replace(lost_nodes=tuple(causes), role=RANK.name, reason=causes[first].reason)


def _late(absence: Absence, node: str) -> Cause:
    """Return the cause for a node that was late; where its process has started, others may have kept it away."""
    reason = f"{_PARENT} was not ready within {absence.context.settings.deadlines.workers:g} s"
    lost = absence.agents.lost.get(node, "")
    return Cause(f"{reason} (its connection was lost: {lost})" if lost else reason, own_fault=not absence.mark(node))


def _told(absence: Absence, cause: Cause) -> str:
    """Return a cause as a clause; of a step that has ended srun may have said why."""
    line = job_log.last_of_srun(absence.context.run) if cause == absence.step_gone() else ""
    return f"{cause.what}: {line}" if line else cause.what


def after_loss(absence: Absence, node: str, since: float) -> End | None:
    """Return the end of a run that has lost a node's agent while the ranks ran; None while its reason may still arrive.

    ``since`` is by the supervisor's clock.
    """
    state, lost = absence.state, absence.agents.lost
    late = state.clock.seconds - since > LAST_WORDS
    if not (late or state.time_to_look()):
        return None
    absence.look()
    cause = absence.cause(node)
    if len(lost) == len(state.context.node_names) > 1 and cause.own_fault:
        cause = absence.step_gone() or cause._replace(final=False)  # what one node did is no cause where all are lost
    if cause.final and not cause.own_fault:
        return _end(state, _told(absence, cause), "", node)
    if not (late or cause.final):
        return None
    said = f"the ranks on {node} were lost: {cause.what}" if cause.final else ""
    return _end(state, said or f"the connection to {node} was lost: {lost[node]}", node, node)


def by_silence(state: RunState, silent: set[str], node: str, address: str) -> End:
    """Return the end of a run in which a node is silent.

    Where no other node answers the first one, the first one's network is the suspect. One other node alone may be
    silent by itself: then the first node's interface, that has ``address``, says which of both it is.
    """
    own, seconds = state.context.node, f"for {state.context.settings.deadlines.answer:g} s"
    others = {other for other in state.context.node_names if other != own}
    none_answers = bool(others) and silent >= others
    if none_answers and (name := dask_protocol.interface_down(address)):
        reason = f"the network interface {name} of {own} is down: no other node has answered {seconds}"
        return _end(state, reason, own, node)
    if none_answers and len(others) > 1:
        reason = f"no other node has answered {own} {seconds}: the network of {own} may have failed"
        return _end(state, reason, own, node)
    return _end(state, f"{node} has not answered {seconds}", node, node)


def _end(state: RunState, reason: str, suspect: str, node: str) -> End:
    status = errors.ROLE_LOST if state.script_began else errors.WORKERS_NEVER_CAME
    hint = "Submit the run again."
    if suspect:
        hint += f" If {suspect} fails again, exclude the node: --exclude {suspect}."
    quote, at_fault = job_log.of_role(state.context.run, RANK, node), (suspect,) if suspect else ()
    lost = suspect or node
    end = End(status, state.phase, "hpcml", reason, hint, quote, at_fault=at_fault, node=lost)
    return end._replace(lost_nodes=(lost,), role=RANK.name)
