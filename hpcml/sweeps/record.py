"""The record of a sweep: a file with its points and runs beside the runs, and what the runs say of their points.

One command at a time submits points of a sweep: a file beside the record says which.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import leases, safe_files
from hpcml.errors import NotFoundError, StorageError, UsageError
from hpcml.failures import point
from hpcml.failures.point import PointEnd
from hpcml.leases import Holder
from hpcml.paths import sweep_folder
from hpcml.request.record import LONGEST_NAME
from hpcml.runs import directories, handle
from hpcml.runs.directories import complete
from hpcml.sweeps.points import Point, Value
from hpcml.typed_json import Table

_PATIENCE = 10.0  # seconds for another command to remove what is left of one that is gone
_LEASES = "claims-"  # how the folders of leases begin by which runs divide points


class Planned(NamedTuple):
    """A point of the sweep by its key, which also holds the script and the image."""

    key: str
    point: Point


class Sweep(NamedTuple):
    """A sweep as its file has it."""

    name: str
    points: tuple[Planned, ...] = ()  # in order
    runs: tuple[str, ...] = ()  # by id, from old to new
    metric: str = ""  # that sorts the table
    maximize: bool = False  # the largest is the best


class Progress(NamedTuple):
    """The points of a sweep by key, as its runs have written."""

    ended: dict[str, PointEnd]
    under_way: dict[str, str]  # of a run that has not ended: its id
    problems: tuple[str, ...] = ()  # why the state of a run is unknown
    interrupted: Mapping[str, str] = {}  # begun when their run failed, and not ended since: that run's id
    leases: frozenset[str] = frozenset()  # the folders of leases by which runs that have not ended divide points
    running: frozenset[str] = frozenset()  # those under way that have begun


def path_of(runs: Path, name: str) -> Path:
    """Return the file of a sweep in a runs folder."""
    return sweep_folder(runs, name) / "sweep.json"


def load(runs: Path, name: str) -> Sweep | None:
    """Return the record of a sweep, None if there is no such sweep.

    Raises
    ------
    StorageError
        If its file cannot be read, or is damaged.
    """
    path = path_of(runs, name)
    if (table := directories.read_json(path)) is None:
        return None
    with complete(path.parent):
        points = tuple(_planned(Table(row)) for row in table.get("points", list))
        return Sweep(
            name, points, table.texts("runs"), table.get("metric", str, ""), table.get("maximize", bool, False)
        )


def _planned(table: Table) -> Planned:
    values = []
    for value in table.get("values", list):
        name, text, typed = value
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(typed, int | float | bool | str)):
            raise TypeError("a value has the wrong type")
        values.append(Value(name, text, typed))
    return Planned(table.get("key", str), tuple(values))


def find(runs: Path, name: str) -> Sweep:
    """Return a sweep; NotFoundError if there is no such one."""
    is_name = len(name) <= LONGEST_NAME and "/" not in name  # a path could be of a folder elsewhere
    if is_name and (sweep := load(runs, name)):
        return sweep
    others = names(runs)
    hint = f"Known sweeps: {', '.join(others[:8])}." if others else "Start a sweep: hpcml sweep SCRIPT --grid k=8,16"
    raise NotFoundError(f"Unknown sweep '{name}'", place=str(sweep_folder(runs, "")), hint=hint)


def names(runs: Path) -> list[str]:
    """Return the names of all sweeps."""
    folder = sweep_folder(runs, "")
    with directories.storage(folder):
        try:
            return sorted(
                name
                for name in os.listdir(folder)
                if len(name) <= LONGEST_NAME and not name.endswith(".removed") and path_of(runs, name).exists()
            )
        except FileNotFoundError:
            return []


def newest(runs: Path) -> str:
    """Return the name of the sweep that was started or continued last, empty without sweeps."""
    with directories.storage(sweep_folder(runs, "")):
        return max(names(runs), key=lambda name: path_of(runs, name).stat().st_mtime, default="")


def save(runs: Path, sweep: Sweep) -> None:
    """Write the file of a sweep; StorageError if that fails."""
    path = path_of(runs, sweep.name)
    points = [{"key": planned.key, "values": [list(value) for value in planned.point]} for planned in sweep.points]
    content = {"points": points, "runs": sweep.runs, "metric": sweep.metric, "maximize": sweep.maximize}
    make_folder(runs, sweep.name)
    with directories.storage(path):
        directories.write_json(path, content)


def make_folder(runs: Path, name: str) -> None:
    """Make the folder of a sweep; StorageError if it cannot be made, or is another's."""
    path = path_of(runs, name)
    with directories.storage(path):
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
            if not safe_files.is_own_folder(folder):
                hint = "Choose another runs folder with --set paths.runs=…."
                raise StorageError("The path is not a folder that you own", place=str(folder), hint=hint)


def progress(runs: Path, sweep: Sweep) -> Progress:
    """Return the states of a sweep's points, by what its runs have written; what the newest run wrote counts.

    A run that has not ended, or of which nobody knows whether it has, keeps the points that it has not ended.
    """
    ended: dict[str, PointEnd] = {}
    begun: dict[str, str] = {}
    alive: list[tuple[str, Given]] = []
    running: set[str] = set()
    ended_in_group: dict[str, set[str]] = {}  # by the folder of leases, or the run
    standings = handle.standings(_existing_runs(runs, sweep))
    for standing in standings:
        of_run, submitted = ends(standing.run), given(standing.run)
        ended |= of_run
        ended_in_group.setdefault(submitted.folder or standing.run.id, set()).update(of_run)
        if standing.alive and not _has_written_end(standing):
            alive.append((standing.run.id, submitted))
            running.update(_names(standing.run, ".log"))
        elif standing.status and standing.status.exit_status:
            begun |= {key: standing.run.id for key in _names(standing.run, ".log") if key not in of_run}
    under_way = {
        key: run_id
        for run_id, submitted in alive
        for key in submitted.keys_without(ended_in_group[submitted.folder or run_id])
    }
    interrupted = {key: run for key, run in begun.items() if key not in ended and key not in under_way}
    problems = tuple(f"{standing.run.id}: {standing.problem}" for standing in standings if standing.problem)
    folders = frozenset(submitted.folder for _, submitted in alive if submitted.folder)
    return Progress(ended, under_way, problems, interrupted, folders, frozenset(running & under_way.keys()))


def _existing_runs(runs: Path, sweep: Sweep) -> list[directories.Run]:
    return [directories.load(runs / run_id) for run_id in sweep.runs if safe_files.is_own_folder(runs / run_id)]


def _has_written_end(one: handle.Standing) -> bool:
    """Whether a run has ended by its own files: Slurm may need some seconds more for a job without a supervisor."""
    return one.status is not None and one.status.over and not one.run.may_start_again


def point_with_log(runs: Path, name: str, number: int) -> tuple[str, str]:
    """Return the key of the point with a number, and the run that ran it last; NotFoundError if there is none."""
    sweep = find(runs, name)
    if not 1 <= number <= len(sweep.points):
        hint = f"The sweep has {len(sweep.points)} points: hpcml sweep table {name}."
        raise NotFoundError(f"The sweep '{name}' has no point {number}", place=f"point:{number}", hint=hint)
    key, known = sweep.points[number - 1].key, progress(runs, sweep)
    begun = known.under_way.get(key) if key in known.running else known.interrupted.get(key)
    run = begun or (known.ended[key].run if key in known.ended else "")
    if not run:
        hint = f"To see the states of all points: hpcml sweep table {name}."
        raise NotFoundError(f"No run has begun point {number} of '{name}'", place=f"point:{number}", hint=hint)
    return key, run


class Given(NamedTuple):
    """The points that a run was submitted with."""

    keys: list[str]
    folder: str  # of the leases by which it divides them with other runs, empty without others
    runs: tuple[str, ...] = ()  # that divide them, this one among them

    def keys_without(self, ended: Collection[str]) -> list[str]:
        """Return the points that have not ended."""
        return [key for key in self.keys if key not in ended]


def given(run: directories.Run) -> Given:
    """Return the points that a run was submitted with; nothing if it has none."""
    table = directories.read_json(run.paths.points)
    if not table:
        return Given([], "")
    with complete(run.paths.directory):
        keys = [Table(row).get("key", str) for row in table.get("points", list)]
        return Given(keys, table.get("claims", str, ""), table.texts("runs"))


def sharing(run: directories.Run) -> tuple[str, ...]:
    """Return the runs that divide the points of a sweep with this one, which would take its points when it ends."""
    return given(run).runs


def ends(run: directories.Run) -> dict[str, PointEnd]:
    """Return the ends of a run's points, by key."""
    return {key: _end(run, run.paths.record_of(key)) for key in _names(run, ".json")}


def _names(run: directories.Run, end: str) -> list[str]:
    """Return the keys of the points of which a run has a file with that end."""
    folder = run.paths.point_records
    with directories.storage(folder):
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(end) and not name.startswith("."))
        except FileNotFoundError:
            return []
    return [name.removesuffix(end) for name in names]


def _end(run: directories.Run, path: Path) -> PointEnd:
    with directories.storage(path):
        try:
            return point.read(path, run.id)
        except ValueError as error:
            hint = "The file was changed or truncated. Remove the file: then hpcml counts the point as missing."
            raise StorageError("The record of a point cannot be read", place=str(path), hint=hint) from error


def new_leases(runs: Path, name: str) -> Path:
    """Return a folder, not made yet, by which the runs of one submission may divide their points."""
    return path_of(runs, name).with_name(f"{_LEASES}{os.urandom(4).hex()}")


def remove_leases(runs: Path, name: str, in_use: frozenset[str]) -> None:
    """Remove such folders of runs that have ended; a run that begins nevertheless finds that it has no points."""
    folder = path_of(runs, name).parent
    with directories.storage(folder):
        for entry in os.listdir(folder):
            if entry.startswith(_LEASES) and str(folder / entry) not in in_use:
                shutil.rmtree(folder / entry)


def stale(points: Sequence[Planned], before: Progress) -> int:
    """Return the number of ended points that differ only in the script, its arguments or the image."""
    ended = {frozenset(end.values.items()) for end in before.ended.values()}
    ended |= {frozenset((name, value) for name, value in pairs if name == "draw") for pairs in ended}  # of a search
    return sum(
        planned.key not in before.ended and frozenset((value.name, value.typed) for value in planned.point) in ended
        for planned in points
    )


# -- one command at a time -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held(runs: Path, name: str, run_id: str) -> Iterator[None]:
    """Keep other commands from submitting points of this sweep meanwhile.

    Raises
    ------
    UsageError
        If another command does so; one that is gone, or has submitted its run, holds nothing.
    StorageError
        If the file cannot be written or read.
    """
    path = path_of(runs, name).with_name("lock")
    me = leases.this_process(run_id)
    make_folder(runs, name)
    deadline = time.monotonic() + _PATIENCE
    with directories.storage(path), complete(path.parent):
        while not leases.place(path, me):
            if (holder := leases.read(path)) is None:
                continue  # it was given back in between
            late = time.monotonic() > deadline  # the process that was about to remove it has ended in that moment
            if late or not (leases.has_ended(holder) or _has_submitted(runs, holder)):
                raise _refused(path, name, holder, gone=late)
            if not leases.remove(path, holder):
                time.sleep(0.01)
    try:
        yield
    finally:
        with directories.storage(path), complete(path.parent):
            leases.remove(path, me)


def _has_submitted(runs: Path, holder: Holder) -> bool:
    """Whether a command of another machine has nothing more to do: its run is submitted."""
    folder = runs / holder.run
    if leases.is_here(holder) or not safe_files.is_own_folder(folder):
        return False
    return directories.load(folder).submission is not None


def _refused(path: Path, name: str, holder: Holder, *, gone: bool) -> UsageError:
    since = time.strftime("%H:%M:%S", time.localtime(holder.time))
    hint = "Wait until that command has ended. Then run your command again: it runs the missing points."
    if gone or not leases.is_here(holder):
        hint += f" If that process no longer exists, remove {path}."
    who = f"process {holder.pid} on {holder.host}, since {since}"
    return UsageError(f"Another command is submitting points of the sweep '{name}': {who}", place=str(path), hint=hint)
