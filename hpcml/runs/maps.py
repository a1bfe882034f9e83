"""Folders of ``hpcml.map`` beside the runs: which there are, and which of them may still be alive."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import schedulers
from hpcml.errors import ANSWER_LOST, SlurmUnreachableError, StorageError
from hpcml.paths import RunPaths
from hpcml.runs import directories
from hpcml.runs.tables import complete
from hpcml.schedulers import Submission

FOLDER = ".maps"  # below the folder of runs
_UNKNOWN = "whether its jobs were submitted is not known"


class Map(NamedTuple):
    """A map's folder; ``alive`` is why it may still be alive, empty if it is not."""

    id: str
    directory: Path
    alive: str


def record(paths: RunPaths, submission: Submission) -> None:
    """Write beside the points of one array, or of all on this machine, how they were handed over.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    directories.write_json(paths.submission, {"host": socket.gethostname(), **submission.as_json()})


def standings(folder: Path, names: Sequence[str]) -> list[Map]:
    """Return how maps of a folder of runs stand, with one question to each scheduler."""
    parts = {name: _Parts.of(folder / FOLDER / name) for name in names}
    submissions = {place: submission for found in parts.values() for place, submission in found.submissions.items()}
    silent, states = "", {}
    try:
        states = schedulers.states(submissions)
    except SlurmUnreachableError as error:
        silent = error.message

    def alive(found: _Parts) -> str:
        if found.problem or (silent and found.submissions):
            return found.problem or silent
        open_ones = [states[place] for place in found.submissions if not _is_over(states[place])]
        return (open_ones[0].reason or open_ones[0].state) if open_ones else ""

    return [Map(name, folder / FOLDER / name, alive(found)) for name, found in parts.items()]


def _is_over(state: schedulers.JobState) -> bool:
    return state.ended or state.state == schedulers.UNKNOWN.state


class _Parts(NamedTuple):
    """How the parts of a map were handed over, by their folders; ``problem`` is why that is not known of all."""

    submissions: dict[str, Submission]
    problem: str = ""

    @classmethod
    def of(cls, directory: Path) -> _Parts:
        found: dict[str, Submission] = {}
        problem, parts = "", []
        try:
            with directories.storage(directory):
                parts = [path for path in sorted(directory.iterdir()) if path.is_dir()]
            for part in parts:
                submission, why = _handed(part)
                problem = problem or why
                found |= {str(part): submission} if submission else {}
        except StorageError as error:
            problem = error.message
        return cls(found, problem or ("" if parts else _UNKNOWN))


def _handed(part: Path) -> tuple[Submission | None, str]:
    """Return how a part of a map was handed over, None if it was not; and why that is not known."""
    table = directories.read_json(RunPaths(part).submission)
    if table is None:
        return None, _UNKNOWN
    with complete(part):
        submission, host = table.record(Submission), table.get("host", str)
    if submission.error:
        return None, _UNKNOWN if submission.exit_status == ANSWER_LOST else ""
    if submission.pid and host != socket.gethostname():
        return None, f"its program runs on {host}, if it does"
    return submission, ""
