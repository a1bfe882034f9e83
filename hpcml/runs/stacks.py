"""The stacks of all processes of a run, asked for on its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcml.errors import NotFoundError
from hpcml.failures.stack_groups import Group, Process, Sources, grouped, process
from hpcml.paths import AttemptPaths
from hpcml.runs import directories
from hpcml.runs import record as records
from hpcml.runs.directories import complete
from hpcml.runs.status import Status

WAIT = 10.0  # seconds for the answers of all nodes
WAIT_EACH = 0.1  # seconds more for each node: many nodes look seldom
_LOOK = 0.1  # seconds between two looks at the answers


class Answer(NamedTuple):
    """The groups, the largest first, and the nodes that did not answer."""

    groups: tuple[Group, ...]
    missing: tuple[str, ...]


def ask(run: directories.Run, status: Status) -> Answer:
    """Ask all nodes of a run for the stacks of its processes, and wait for their answers.

    Raises
    ------
    NotFoundError
        If the run is not active.
    StorageError
        If its files cannot be written, or an answer is damaged.
    """
    if status.over or not status.allocation.nodes:
        place, hint = f"{run.id}: {status.state}: {status.message}", f"Show the run's state: hpcml status {run.id}."
        raise NotFoundError("The run has no processes, because it is not running", place=place, hint=hint)
    number = records.newest_attempt(run.paths) or 0
    attempt = run.paths.attempt(number)
    happened = records.Record(run.paths).events_of(number)
    started = [event for event in happened if event.name == "script-started"]
    before = {node: answer["id"] for node, answer in _answers(attempt, status.allocation.nodes).items()}
    with complete(run.paths.directory):
        script = started[-1].facts.get("pid", int, 0) if started else 0
    directories.write_json(attempt.stacks_request, {"id": os.urandom(8).hex(), "script": script})
    deadline = time.monotonic() + WAIT + WAIT_EACH * len(status.allocation.nodes)
    found: dict[str, list[Process]] = {}
    sources = Sources(run.paths.code)
    while (waiting := [node for node in status.allocation.nodes if node not in found]) and time.monotonic() < deadline:
        time.sleep(_LOOK)
        for node, answer in _answers(attempt, waiting).items():
            if answer["id"] != before.get(node):
                with complete(run.paths.directory):
                    found[node] = [process(node, record, sources) for record in answer["processes"]]
    processes = (each for node in status.allocation.nodes for each in found.get(node, ()))  # the same order each time
    return Answer(tuple(grouped(processes)), tuple(waiting))


def _answers(attempt: AttemptPaths, nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the answers of nodes that have written one."""
    try:
        names = set(os.listdir(attempt.stacks))
    except FileNotFoundError:
        return {}
    tables = {node: directories.read_json(attempt.stacks / f"{node}.json") for node in nodes if f"{node}.json" in names}
    return {node: {"id": "", "processes": [], **table.facts} for node, table in tables.items() if table}
