"""What a run's own files tell, read once: its plan, its submission's answer, its events and how it ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from hpcml import files, kinds
from hpcml.errors import CANCELLED
from hpcml.failures.end import End, parse
from hpcml.paths import SCRIPT, RunPaths
from hpcml.request.record import ENDS, Awaited
from hpcml.runs import directories
from hpcml.runs.tables import Table, complete


class Planned(NamedTuple):
    """What a run was to be, by plan.json."""

    site: str = ""  # the name of the machine's profile
    scheduler: str = "local"  # a name in hpcml.schedulers
    kind: str = "dask"  # a name in hpcml.kinds
    image: str = ""  # path of the Apptainer image that the roles run in, empty without one
    service: str = ""  # a program of hpcml's in the place of a script, as "jupyter"
    node_count: int = 0  # nodes that it asked for
    expected: int = 0  # workers on all nodes together
    time_limit: int = 0  # seconds of one attempt, 0 without a limit
    after: tuple[Awaited, ...] = ()  # the runs that it waits for
    restart: str = ""  # how another attempt may follow: in the same "job", in "several" jobs, or not (empty)

    @property
    def several_jobs(self) -> bool:
        """Whether attempts after the first have jobs of their own."""
        return self.restart == "several"

    @property
    def in_image(self) -> bool:
        """Whether the roles run in an image."""
        return bool(self.image)


class Event(NamedTuple):
    """A line of events.jsonl: what happened, when (seconds since 1970), in which attempt, and what else it says."""

    name: str
    time: float
    attempt: int
    facts: Table


class RunRecord(NamedTuple):
    """What a run's files tell beside its submission."""

    planned: Planned
    events: tuple[Event, ...]
    end: End | None  # None until it has ended, or where it has begun again


def load(run: directories.Run) -> RunRecord:
    """Return what a run's files tell; StorageError if one of them cannot be read, or lacks something."""
    with complete(run.paths.directory):
        happened, end = events(run), end_of(run)
        if end and _began_again(happened, end.attempt):
            end = None
        return RunRecord(planned(run), tuple(happened), end)


def planned(run: directories.Run) -> Planned:
    """Return what the run was to be, from plan.json; StorageError if it is damaged."""
    with complete(run.paths.directory):
        plan = directories.read_json(run.paths.plan) or Table({})
        inside = Table(plan.get("inside", dict, {}))
        again = "job" if plan.get("may_start_again", bool, False) else ""
        return Planned(
            site=plan.get("site", str, ""),
            scheduler=plan.get("scheduler", str, "local"),
            kind=_kind(inside.get("kind", str, "dask")),
            image=inside.get("image", str, ""),
            service=inside.get("service", str, ""),
            node_count=inside.get("nodes", int, 0),
            expected=inside.get("nodes", int, 0) * inside.get("workers_per_node", int, 0),
            time_limit=inside.get("time_limit", int, 0),
            after=tuple(map(_awaited, plan.texts("after"))),
            restart="several" if inside.get("until_done", bool, False) else again,
        )


def _kind(name: str) -> str:
    if name not in kinds.KINDS:
        raise ValueError(f"{name!a} is not a kind of run")
    return name


def _awaited(text: str) -> Awaited:
    run, _, when = text.partition(":")
    if directories.submitted_at(run) is None or when not in ENDS:
        raise ValueError(f"{text!a} names no run to wait for")
    return Awaited(run, when)


def end_of(run: directories.Run) -> End | None:
    """Return what status.json says, None if it is not there; StorageError if it is damaged."""
    table = directories.read_json(run.paths.status)
    with complete(run.paths.directory):
        return None if table is None else parse(table.facts)


def cancelled(by: str, message: str, hint: str) -> End:
    """Return the end of a run that was cancelled, or dropped by Slurm, before it or its next attempt started."""
    return End(CANCELLED, "queued", by, message, hint, ended_as="CANCELLED", time=round(time.time(), 3))


def events(run: directories.Run) -> list[Event]:
    """Return the run's events in order; a line that is still being written is left for the next look.

    Raises
    ------
    StorageError
        If the file cannot be read, or a line is no event.
    """
    with directories.storage(run.paths.events):
        try:
            text = files.read(run.paths.events).decode()
        except FileNotFoundError:
            return []
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    with complete(run.paths.directory):
        tables = [Table(files.parsed(json.loads, line)) for line in lines]
        return [Event(one.get("event", str), one.number("time"), one.get("attempt", int, 0), one) for one in tables]


def _began_again(happened: list[Event], ended: int) -> bool:
    """Whether Slurm has started the job again since an attempt ended: what is written of that end is then old."""
    if any(event.attempt > ended for event in happened):
        return True
    last = {event.name: position for position, event in enumerate(happened)}
    ends = [last[name] for name in ("ending", "driver-ended", "torn-down") if name in last]
    return bool(ends) and last.get("allocated", -1) > max(ends)


def newest_attempt(paths: RunPaths) -> int | None:
    """Return the number of the run's newest attempt, None before the first; StorageError if it cannot be read."""
    with directories.storage(paths.directory):
        try:
            names = os.listdir(paths.directory / "attempts")
        except FileNotFoundError:
            return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def driver_record(paths: RunPaths) -> Path | None:
    """Return the file in which step.sh recorded the end of the newest attempt's driver, if it did."""
    number = newest_attempt(paths)
    if number is None:
        return None
    with directories.storage(paths.directory):
        records = sorted(paths.attempt(number).exits.glob(f"{SCRIPT}@*"))
    return next((path for path in records if not path.name.endswith(".new")), None)


def driver_exit(paths: RunPaths) -> tuple[str, int] | None:
    """Return the node and the exit status that step.sh recorded for the newest attempt's driver, if it did."""
    path = driver_record(paths)
    with directories.storage(paths.directory):
        text = files.read(path, 100).decode(errors="replace").strip() if path else ""
    return (path.name.partition("@")[2], int(text)) if path and text.isdigit() else None


def jupyter_node(paths: RunPaths) -> str:
    """Return the node on which the newest attempt's JupyterLab answers, empty while none does."""
    facts = directories.read_json(paths.attempt(newest_attempt(paths) or 0).service_of("jupyter"))
    with complete(paths.directory):
        return facts.get("node", str) if facts else ""
