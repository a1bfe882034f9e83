"""Where features add to the core's work: the core names a point, this table the features' functions for it.

The core imports no feature (docs/architecture.md). A feature's module is loaded when the core comes to its point. What
a function takes and returns is said where the core calls it; a test reads the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

POINTS: dict[str, tuple[str, ...]] = {
    # before a submission: hpcml.runs.submit
    "change of a request": ("hpcml.runs.bad_nodes.excluded",),
    "check of a request": ("hpcml.runs.checks.before_submission.check_request",),
    "check of a plan": ("hpcml.runs.checks.before_submission.check_plan",),
    "check of an image": ("hpcml.images.problems.check",),
    "check of arguments": ("hpcml.cli.misplaced.check",),
    # in a plan: hpcml.plan.make_plan
    "site's advice": ("hpcml.report.advice.of_site",),
    # of a run: hpcml.cli.submit, status, cancel_rm
    "cause of a state": ("hpcml.cli.why.cause_of",),
    "cause of an end": ("hpcml.cli.why.tell_end",),
    "files of an end": ("hpcml.runs.report.files_of",),
    "advice at an end": ("hpcml.runs.report.advice_of",),
    "commands of an end": ("hpcml.runs.report.commands_of",),
    "runs that share work": ("hpcml.sweeps.record.sharing",),
    "log of a point": ("hpcml.sweeps.record.point_with_log",),
    # on the node: hpcml.node.supervisor
    "queue of points": ("hpcml.node.sweep.queue.Points",),
    "cause of a run": ("hpcml.failures.judgement.short_cause",),
    # --in: hpcml.cli.run, jupyter, sweep
    "run in a kept allocation": ("hpcml.cli.hold.run_in",),
    "place in a kept allocation": ("hpcml.cli.hold.place_in",),
    "plan in a kept allocation": ("hpcml.cli.hold.prepared_in",),
    # of a word that is typed: hpcml.cli.completion
    "names of sweeps": ("hpcml.sweeps.record.names",),
    "names of definitions": ("hpcml.images.definitions.shipped_definitions",),
}


def added(point: str) -> list[Any]:
    """Return the functions that features add at a point, in the order in which they are called."""
    names = [name.rpartition(".") for name in POINTS[point]]
    return [getattr(import_module(module), function) for module, _, function in names]


def collected(point: str, *facts: object) -> list[Any]:
    """Return all that the functions of a point return for some facts, in one list."""
    return [part for function in added(point) for part in function(*facts)]


def only(point: str) -> Any:
    """Return the function of a point that one feature alone serves."""
    (function,) = added(point)
    return function
