"""Who is missing, and what its log says: the words for a bring-up that failed."""

from __future__ import annotations

from dataclasses import dataclass

from hpcml.inside import files
from hpcml.inside.settings import Context

_NOT_ENTERED = ("88", "255")  # image.sh's own, and Apptainer's


@dataclass(frozen=True, slots=True)
class Missing:
    """A node whose workers are not all there. ``final`` means that waiting longer would not help."""

    node: str
    workers: tuple[str, ...]
    why: str
    final: bool
    quote: tuple[str, ...]

    def sentence(self) -> str:
        """Return the node and the reason in one clause."""
        return f"{self.node}: {self.why}"


def root_of(error: BaseException) -> str:
    """Return the error behind an error in one line; Dask says of every trouble that it "failed to start"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def missing_nodes(context: Context, present: set[str]) -> list[Missing]:
    """Return the nodes that lack workers, with what is known of each from its files."""
    exits = files.listed(context.attempt.exits)
    marks = files.listed(context.attempt.nodes)
    found = []
    for node in context.nodes:
        absent = tuple(name for name in context.worker_names(node) if name not in present)
        if absent:
            why, final = _reason(context, node, exits, marks)
            found.append(Missing(node, absent, why, final, quote_of(context, node)))
    return found


def _reason(context: Context, node: str, exits: set[str], marks: set[str]) -> tuple[str, bool]:
    mark = files.read_json(context.attempt.mark_of(node)) if f"{node}.json" in marks else None
    if mark and mark["refused"]:
        return str(mark["refused"]), True
    if mark and (failed := mark["failed"]):
        return f"worker {failed[0]['worker']} ended again and again ({failed[0]['why']})", True
    exit_file = context.attempt.exit_of("worker", node)
    if exit_file.name in exits:
        status = exit_file.read_text().strip()
        if context.settings.image and status in _NOT_ENTERED:
            return f"the image could not be entered (exit status {status})", True
        return f"the worker task ended with exit status {status}", status != "0"  # 0: its workers were retired
    if mark is None:
        return "the worker task gave no sign of life", False
    if deaths := mark["deaths"]:
        name, count = next(iter(deaths.items()))
        return f"worker {name} has ended {count} times so far", False
    if mark["state"] == "starting":
        return "the worker task started but is still importing Dask", False
    return "its workers were started but have not registered", False


def quote_of(context: Context, node: str) -> tuple[str, ...]:
    """Return the last lines of a node's worker log, or of the job's log (srun's own words) if there are none."""
    lines = files.tail(context.run.worker_log(node))
    return tuple(lines or [line for line in files.tail(context.run.job_log) if "srun" in line or node in line])
