"""What it means that a node's agent is lost, or silent: which node is the suspect, and how the run ends."""

from __future__ import annotations

from collections.abc import Mapping

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import End
from hpcml.kinds.ranks.node import absence
from hpcml.kinds.ranks.roles import RANK
from hpcml.node.hardware import network
from hpcml.node.link.messages import sign_every
from hpcml.node.run_state import RunState

WORDS = 2.0  # seconds in which what is known of a lost agent's end arrives


def after_loss(state: RunState, lost: Mapping[str, str], node: str, since: float) -> End | None:
    """Return the end of a run that has lost a node's agent while the ranks ran; None while its reason may still arrive.

    ``lost`` is by node why its connection has ended, a clause. ``since`` is by the supervisor's clock.
    """
    late = state.clock.seconds - since > WORDS
    if not (late or state.time_to_look()):
        return None
    all_are_lost = len(lost) == len(state.context.node_names) > 1
    refusal = absence.of_lost(state, node, alone=not all_are_lost)
    if refusal and not refusal.own_fault:
        return _end(state, refusal.why.what, "", node)
    if not (late or refusal):
        return None
    reason = (
        f"the ranks on {node} were lost: {refusal.why.what}"
        if refusal
        else f"the connection to {node} was lost: {lost[node]}"
    )
    return _end(state, reason, node, node)


def silent_nodes(state: RunState, heard: Mapping[str, float]) -> set[str]:
    """Return the nodes that have been silent for longer than two signs of life; ``heard`` is by node when it was."""
    answer = state.context.settings.deadlines.answer
    recent = min(answer, 2 * sign_every(answer))
    return {node for node, last in heard.items() if state.clock.seconds - last > recent}


def by_silence(state: RunState, silent: set[str], node: str, address: str) -> End:
    """Return the end of a run in which a node is silent.

    Where no other node answers the first one, the first one's network is the suspect. One other node alone may be
    silent by itself: then the first node's interface, that has ``address``, says which of both it is.
    """
    own, seconds = state.context.node, f"for {state.context.settings.deadlines.answer:g} s"
    others = {other for other in state.context.node_names if other != own}
    none_answers = bool(others) and silent >= others
    if none_answers and (name := network.interface_down(address)):
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
