"""Why nodes are missing, for tests: with agents and steps that a test sets, and the files of a context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

from hpcml.kind import Kind
from hpcml.node.events_and_end import EventLog
from hpcml.node.missing_processes import Absence, Words


def absence_of(
    context: Any,
    kind: Kind,
    words: Words,
    *,
    connected: Collection[str] = (),
    lost: Mapping[str, str] = {},
    marks: Mapping[str, dict[str, Any]] = {},
    silent: Collection[str] = (),
    gone: Collection[str] = (),
    tasks: Callable[[], Mapping[str, str]] = dict,
    seconds: float = 0.0,
    **of_state: Any,
) -> Absence:
    """Return it as the supervisor has it; ``gone`` are roles whose step has ended, ``tasks`` says what srun reports."""
    agents: Any = SimpleNamespace(
        is_connected=lambda node: node in connected,
        is_silent=lambda node: node in silent,
        lost=lost,
        marks=marks,
        ends=0,
    )
    steps = SimpleNamespace(processes={kind.agent.name: None}, lost_tasks=tasks, gone=lambda role: role in gone)
    if "events" not in of_state and getattr(context, "run", None):
        of_state["events"] = EventLog(context.run.events, 0)
    clock = SimpleNamespace(seconds=seconds)
    fields = {"warn": print, "phase": "nodes", "script_began": False, "time_to_look": lambda: True, "clock": clock}
    state: Any = SimpleNamespace(context=context, kind=kind, steps=steps, **{**fields, **of_state})
    return Absence(state, agents, words)
