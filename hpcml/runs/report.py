"""The report of a run, made on the login node from its files and its end by Slurm; what commands show of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpcml import kinds, safe_files, schedulers
from hpcml.errors import NotFoundError, StorageError
from hpcml.report.ending import Ending, profile_commands
from hpcml.runs import directories, packages
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.states import Phase


def make(run: directories.Run) -> Path:
    """Write a run's report (``report.html``, ``report.json``) and return the page's path.

    Raises
    ------
    NotFoundError
        If nothing of the run has started.
    StorageError
        If its files cannot be read, or the report cannot be written.
    """
    from hpcml.report.page import make as write
    from hpcml.runs import why

    status = run_status.status(run)
    attempt = records.newest_attempt(run.paths)
    if attempt is None or status.phase in (Phase.REFUSED, Phase.PREPARED):
        hint = f"Show the run's state: hpcml status {run.id}."
        raise NotFoundError("The run has not started, so it has no report", place=run.id, hint=hint)
    answer = why.of_status(run, status)
    ending = Ending(status.end, next_step=answer.next_step)
    if answer.failed:
        ending = Ending(status.end, answer.sentence, answer.evidence, answer.followed, answer.next_step, answer.again)
    try:
        kind = kinds.get(records.planned(run).kind)
        return write(run.paths, attempt, kind, ending, _memory(run))
    except OSError as error:
        hint = "Check the free space, your quota and your write permission."
        raise StorageError(
            f"The report cannot be written: {error.strerror}", place=str(run.paths.directory), hint=hint
        ) from error


def _memory(run: directories.Run) -> float:
    """Return the bytes that the run's job asked for on each node where its plan leaves them to Slurm, else 0."""
    if records.Record(run.paths).plan.memory or not run.submission or not run.job:
        return 0.0
    nodes = schedulers.find_nodes(run.submission.scheduler)
    return nodes.requested_memory(run.submission.key) if nodes else 0.0


_SMALLER = {"gpu-unused", "gpu-low", "cpu-low", "time-asked", "memory-asked"}  # rules of the report


def smaller(page: Path) -> list[str]:
    """Return the report's sentences about what a run could ask less of; none if they cannot be read."""
    try:
        advice = facts(page)["advice"]
        return [str(row["sentence"]) for row in advice if row["rule"] in _SMALLER]
    except (StorageError, ValueError, KeyError, TypeError):  # the report is of another version, or damaged
        return []


def facts(page: Path) -> Any:
    """Return the data of a report; StorageError if they cannot be read."""
    with directories.storage(page):
        return safe_files.read_json(page.with_suffix(".json"))


def page_of(run: directories.Run) -> Path | None:
    """Return the page of a run's report if there is one that may be used."""
    try:
        os.close(safe_files.open_regular(run.paths.report))
    except OSError:
        return None
    return run.paths.report


def files_of(run: directories.Run) -> list[tuple[str, Path]]:
    """Return the page of an ended run's report with its title, if there is one."""
    page = page_of(run)
    return [("report", page)] if page else []


def advice_of(run: directories.Run, status: run_status.Status) -> list[tuple[str, str]]:
    """Return the resources of which a run that succeeded could have asked less, with a title."""
    page = None if status.exit_status else page_of(run)
    return [("smaller", text) for text in smaller(page)] if page else []


def commands_of(run: directories.Run) -> list[tuple[str, str]]:
    """Return the commands that make an ended run's report if it has none, and open its profiles, with a title."""
    missing = records.newest_attempt(run.paths) is not None and page_of(run) is None
    python = packages.Environment(records.Record(run.paths).plan.python) if missing else None
    lacks = python and python.readable and not python.has("jinja2")
    why = "  # no page was written, because the run's Python lacks Jinja2" if lacks else ""
    page = [("report", f"hpcml report {run.id}{why}")] if missing else []
    return page + [("profile", command) for command in profile_commands(run.paths)]
