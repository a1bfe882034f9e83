"""Many runs at once: their statuses with few questions to Slurm, and a cache of those that have ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import hpcml
from hpcml import safe_files, schedulers, typed_json
from hpcml.errors import SlurmUnreachableError, StorageError
from hpcml.runs import directories
from hpcml.runs import record as run_record
from hpcml.runs import status as run_status
from hpcml.runs.status import Status
from hpcml.schedulers import Submission
from hpcml.states import Phase
from hpcml.terminal import say_message

_BLOCK = 200  # runs that are read at a time, at first, while those that failed are looked for
WORTH = 100  # runs that must be new for the file to be written again
_SETTLED = 60.0  # seconds since a run's folder was changed: what ends a run writes several files
_FORM = " ".join(("hpcml", hpcml.__version__, *Status("").fields()))  # another version reads all runs again


def newest(
    folder: Path, run_ids: list[str], most: int | None, *, failed: bool, text: str = ""
) -> tuple[list[Status], list[str]]:
    """Return the newest runs, oldest first, all or so many, and the ids of those that were not looked at.

    Parameters
    ----------
    failed
        Whether only runs that failed are wanted.
    text
        Part of the wanted runs' ids or commands, in small or capital letters.
    """
    rows: list[Status] = []
    said: set[str] = set()
    all_ids, is_long = run_ids, failed or bool(text) or most is None or most > _BLOCK
    ends = Ends(folder) if is_long else None  # a short listing reads its runs sooner
    block = _BLOCK if failed or text else most
    while run_ids and (most is None or len(rows) < most):
        block_ids = directories.changed(folder, run_ids, None if most is None else block)
        run_ids = run_ids[: run_ids.index(next(iter(block_ids)))] if block_ids else []
        listed = _rows(folder, block_ids, said, ends, failed=failed)
        rows = [row for row in listed if _has_text(row, text)] + rows
        block = block and 2 * block  # few questions to Slurm, however far back a failure is
    if ends:
        ends.write(set(all_ids))
    if most is not None and len(rows) > most:
        run_ids = [*run_ids, *(row.run for row in rows[: len(rows) - most])]
        rows = rows[len(rows) - most :]
    return rows, run_ids


def _has_text(row: Status, text: str) -> bool:
    """Whether a run's id or its command has a text, in small or capital letters."""
    return any(text.casefold() in value.casefold() for value in (row.run, row.planned.command))


def _rows(folder: Path, changed: Mapping[str, int], said: set[str], ends: Ends | None, *, failed: bool) -> list[Status]:
    """Return the state of runs, or of those that failed, in order; what has ended and is known is not read again."""
    rows: dict[str, Status] = {}
    unknown = []
    for run_id, when in changed.items():
        end = ends.find(run_id, when) if ends else None
        if ends and end and failed and not end.failed:
            continue
        if ends and end and (row := ends.status(run_id, end)):
            if row.failed or not failed:
                rows[run_id] = row
        else:
            unknown.append(run_id)
    for row, run in _read([folder / run_id for run_id in unknown], said):
        if ends and run:
            ends.keep(row, run, changed[row.run])
        if row.failed or not failed:
            rows[row.run] = row
    return [rows[run_id] for run_id in changed if run_id in rows]


def _read(paths: list[Path], said: set[str]) -> list[tuple[Status, directories.Run | None]]:
    """Return the state of many runs; what cannot be read or asked is unknown and keeps no other from being shown.

    ``said`` are the errors that were shown already. A run that cannot be read is None.
    """
    runs: list[directories.Run | Status] = []
    for directory in paths:
        try:
            runs.append(directories.load(directory))
        except StorageError as error:
            runs.append(run_status.unreadable(directory, error))
    silent = ""
    open_runs: dict[str, Submission] = {}
    states: dict[str, schedulers.JobState] = {}
    try:
        runs = _with_jobs(runs)
        open_runs = _open_runs(runs)
        states = schedulers.states(open_runs)
    except SlurmUnreachableError as error:
        if error.message not in said:
            say_message(f"hpcml: {error}")
        said.add(silent := error.message)
        open_runs = open_runs or _open_runs(runs)
    rows: list[tuple[Status, directories.Run | None]] = []
    for run in runs:
        if isinstance(run, Status):
            rows.append((run, None))
            continue
        written = schedulers.UNKNOWN if run.job and run.id not in open_runs else None  # such an end needs no question
        try:
            row = run_status.status(run, states.get(run.id, written), ask=not run.job)
        except StorageError as error:
            row = run_status.unreadable(run.paths.directory, error)
        if silent and (run.id in open_runs or row.phase == Phase.PREPARED):  # what its own files tell is still true
            row = row.changed(silent=silent, message=row.message or silent)
        rows.append((row, run))
    return rows


def _with_jobs(runs: list[directories.Run | Status]) -> list[directories.Run | Status]:
    """Return the runs with the jobs of those that were prepared, or whose submission was not answered."""
    jobs = run_record.of_open(run for run in runs if isinstance(run, directories.Run))
    return [jobs.get(run.id, run) if isinstance(run, directories.Run) else run for run in runs]


def _open_runs(runs: list[directories.Run | Status]) -> dict[str, Submission]:
    """Return those of which Slurm has to be asked."""
    return {
        run.id: run.submission
        for run in runs
        if isinstance(run, directories.Run)
        and run.submission
        and run.job
        and (run.may_start_again or not run.paths.status.exists())
    }


# -- the cache --------------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A run that has ended: when its folder was changed (ns since 1970), whether it failed, and its status as JSON."""

    changed: int
    failed: bool
    text: str


class Ends:
    """The ends of runs of a folder; a run whose folder was changed since is not known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f".ends.{os.geteuid()}"  # others may have runs in the folder
        self.recorded = self._read()
        self.new: dict[str, Kept] = {}

    def _read(self) -> dict[str, Kept]:
        try:
            head, _, body = safe_files.read(self.path).partition(b"\n")
            ends = {}
            for line in body.decode().splitlines() if head == _head(body) else ():
                run, changed, failed, text = line.split(" ", 3)
                ends[run] = Kept(int(changed), failed == "1", text)
        except (OSError, ValueError):  # not there, or damaged: the runs themselves are read
            return {}
        return ends

    def find(self, run: str, changed: int) -> Kept | None:
        """Return the kept facts of a run whose folder was changed then (ns since 1970), None if there are none."""
        kept = self.recorded.get(run)
        return kept if kept and kept.changed == changed else None

    def status(self, run: str, kept: Kept) -> Status | None:
        """Return a run's status as it was kept, None if that is damaged."""
        try:
            status = typed_json.read(Status, json.loads(kept.text))
        except ValueError:
            return None
        return status._replace(directory=f"{self.folder}/{run}")

    def keep(self, status: Status, run: directories.Run, changed: int) -> None:
        """Keep the status of a run if nothing of it can change any more: its own files tell that it is over."""
        final = (
            status.over and not status.allocation.job_state and not status.allocation.silent and not run.may_start_again
        )
        if final and time.time() - changed / 1e9 > _SETTLED:
            text = json.dumps(typed_json.plain(status._replace(directory=""), brief=True))
            self.new[status.run] = Kept(changed, status.failed, text)

    def write(self, existing: set[str]) -> None:
        """Write the new ends if there are many; ``existing``: the runs in the folder."""
        if len(self.new) < WORTH:
            return
        all_of_them = {run: kept for run, kept in (self.recorded | self.new).items() if run in existing}
        lines = [f"{run} {kept.changed} {kept.failed:d} {kept.text}\n" for run, kept in all_of_them.items()]
        body = "".join(lines).encode()
        with contextlib.suppress(OSError):  # no room, or nothing may be written here: the listing is none the worse
            safe_files.write(self.path, _head(body) + b"\n" + body)


def _head(body: bytes) -> bytes:
    """Return the first line of a file with these ends: a file with another one is not used."""
    return f"{_FORM} {zlib.crc32(body):08x}".encode()
