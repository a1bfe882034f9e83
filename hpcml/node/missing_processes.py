"""Why a node lacks the kind's processes, and whether it may still get them: decided here, for every kind of run.

It is known from what the node's agent says, from the exit status of its step's task, and from srun's reports. While an
agent has its line, what it does not say is not looked for in files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcml.failures.role_end import RoleEnd
from hpcml.kind import Role
from hpcml.node import shared_files
from hpcml.node.agents import Agents
from hpcml.node.end_cause import role_end
from hpcml.node.run_state import RunState


class Cause(NamedTuple):
    """Why a node lacks processes."""

    what: str  # a clause
    final: bool = True  # waiting longer would not help
    own_fault: bool = True  # False: others may be why
    hint: str = ""  # what to do
    entered: bool = True  # False where the image was not entered
    memory_limit: str = ""  # whose limit the process had reached that has failed for good (failures.end.MemoryLimit)
    reason: str = ""  # the row of failures.rules that knows why


class Words(NamedTuple):
    """How a kind calls what is waited for."""

    parent: str  # the process that starts a node's processes
    step_gone: str  # a clause: the step of a ``{role}`` ended
    starting: str  # a clause: the agent is there and has not started its processes
    waiting: str  # a clause: it has started them


class Absence:
    """The files and reports that tell of missing nodes, as they are at one look after another."""

    def __init__(self, state: RunState, agents: Agents, words: Words) -> None:
        self.state, self.context, self.agents, self.words = state, state.context, agents, words
        roles = [role for role in state.kind.roles if role.every_node and role.name in state.steps.processes]
        self.beside: list[Role] = [role for role in roles if role != state.kind.agent]
        self.exits, self.marks = set[str](), set[str]()  # names of files
        self.lost: dict[str, str] = {}  # by node, srun's report of its task, a clause
        self.gone = ""  # that a step has ended, a clause

    def look(self) -> None:
        """Take in what the files and srun's reports say now."""
        attempt, steps = self.context.attempt, self.state.steps
        is_alone = any(not self.agents.is_connected(node) for node in self.context.node_names)
        self.exits = shared_files.listed(attempt.exits) if is_alone or self.beside else set()
        self.marks = shared_files.listed(attempt.nodes) if is_alone else set()
        self.lost = steps.lost_tasks()
        gone = [role.name for role in (self.state.kind.agent, *self.beside) if steps.gone(role.name)]
        self.gone = self.words.step_gone.format(role=gone[0]) if gone else ""

    def mark(self, node: str) -> dict[str, Any]:
        """Return the last report of a node's agent, empty if there is none."""
        said = self.agents.marks.get(node, {})
        if self.agents.is_connected(node) or f"{node}.json" not in self.marks:
            return said
        return shared_files.read_json(self.context.attempt.mark_of(node)) or said

    def has_ended(self, node: str) -> bool:
        """Whether a node's agent has ended for good, and all its processes with it."""
        return not self.agents.is_connected(node) and f"{self.state.kind.agent.name}@{node}" in self.exits

    def cause(self, node: str) -> Cause:
        """Return the cause for which a node lacks processes, by the last look."""
        mark, end = self.mark(node), self._end(node)
        if mark and mark["refused"]:
            return Cause(str(mark["refused"]), own_fault=mark.get("own_fault", True))
        if mark and (failed := mark["failed"]):
            what = f"{self.state.kind.noun} {failed[0]['name']} exited repeatedly ({failed[0]['why']})"
            return Cause(what, memory_limit=failed[0].get("memory_limit", ""))
        if end:
            return self._of_end(end)
        if node in self.lost:
            return Cause(self.lost[node])
        for role in self.beside:
            if (end := role_end(self.context, role, node, self.exits)) and end.status:
                return Cause(f"a task of srun {end.why.what}", hint=end.why.hint, reason=end.why.reason)
        if self.gone:
            return Cause(self.gone, own_fault=False)
        if self.agents.is_silent(node):
            return Cause(f"{node} has not answered for {self.context.settings.deadlines.answer:g} s")
        return self._while_it_may_come(node, mark)

    def step_gone(self) -> Cause | None:
        """Return the end of the step of all nodes as a cause, None if it has not ended."""
        return Cause(self.gone, own_fault=False) if self.gone else None

    def _end(self, node: str) -> RoleEnd | None:
        return role_end(self.context, self.state.kind.agent, node, self.exits) if self.has_ended(node) else None

    def _of_end(self, end: RoleEnd) -> Cause:
        if not end.entered:
            return Cause(end.why.what, hint=end.why.hint, entered=False, reason=end.why.reason)
        what = f"{self.words.parent} {end.why.what}"
        if end.status:
            return Cause(what, hint=end.why.hint, reason=end.why.reason)
        return Cause(f"{self.gone} ({what})" if self.gone else what, final=bool(self.gone), own_fault=False)

    def _while_it_may_come(self, node: str, mark: dict[str, Any]) -> Cause:
        if node in self.agents.lost:
            return Cause(f"the connection to {node} was lost: {self.agents.lost[node]}", final=False)
        if not mark:
            return Cause(f"{self.words.parent} did not start", final=False)
        if ends := mark.get("ends"):
            return Cause(f"{self.state.kind.noun} {ends[-1]['name']} exited: {ends[-1]['what']}", final=False)
        if mark["state"] == "starting":
            return Cause(self.words.starting, final=False)
        return Cause(self.words.waiting, final=False, own_fault=False)
