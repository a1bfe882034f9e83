"""Runs as directories: make one whole or not at all, list and find them, read their files, and remove them."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import shlex
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files, typed_json
from hpcml.errors import NoRunError, NotFoundError, StorageError, did_you_mean, nearest
from hpcml.paths import RESERVE_COUNT, RESERVE_SIZE, RunPaths
from hpcml.runs import lib_zip
from hpcml.schedulers import Submission
from hpcml.sites import lookup, settings_layers
from hpcml.typed_json import Table

_JOB = re.compile(r"\d+(_\d+)?", re.ASCII)  # a job's id, or that of an array's task
_ID = re.compile(r"(?P<name>[A-Za-z0-9._-]+)-(?P<time>\d{8}-\d{6}-[0-9a-f]{4})")


class Run(NamedTuple):
    """A run on disk: its id, its files and what submission.json says of how it was handed over, None before that."""

    id: str
    paths: RunPaths
    submission: Submission | None

    @property
    def name(self) -> str:
        """The run's name: its id without date, time and number."""
        return name_of(self.id)

    @property
    def job(self) -> str:
        """Slurm's job id, empty on the local site and before the submission."""
        return self.submission.job if self.submission else ""

    @property
    def may_start_again(self) -> bool:
        """Whether another attempt may follow: it continues until it is done, or the profile asks for ``--requeue``."""
        return bool(self.submission and self.submission.key and self.submission.requeue)


def name_of(run_id: str) -> str:
    """Return a run's name: its id without date, time and number."""
    return run_id.rsplit("-", 3)[0]


def runs_folder_of(site: str, assignments: Sequence[str] = ()) -> Path:
    """Return the folder that holds all runs of a site, of this machine's where none is named."""
    loaded = lookup.load_here(site, settings_layers.here(), assignments)
    return runs_folder(loaded.site.paths.runs, settings_layers.process_environment())


def runs_folder(setting: str, environment: Mapping[str, str]) -> Path:
    """Return the folder that holds all runs, with ``~`` and ``$VARIABLES`` replaced (``$$`` is a dollar sign).

    Raises
    ------
    StorageError
        If a variable in it is not set, or the path is not absolute.
    """
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2]
        if not environment.get(name):
            missing.append(name)
        return environment.get(name, "")

    text = f"$HOME/{setting[2:]}" if setting.startswith("~/") else setting
    text = re.sub(r"\$(?:(\w+)|\{(\w+)\}|\$)", value, text)
    if missing:
        hint = f"Set the environment variable {missing[0]}, or set paths.runs to a folder that all nodes share."
        raise StorageError(
            f"{missing[0]} is not set, but paths.runs uses this variable", place=f"paths.runs: {setting}", hint=hint
        )
    if not text.startswith("/"):
        hint = "Set paths.runs to an absolute path that all nodes share."
        raise StorageError("The runs folder is not an absolute path", place=f"paths.runs: {text}", hint=hint)
    return Path(text)


def check_folder(folder: Path, trusted: Sequence[str]) -> list[str]:
    """Return who of a group may replace the runs in a folder, in sentences.

    Raises
    ------
    StorageError
        If another account or everybody may: what is put there in the place of a waiting run would run as this user.
    """
    with storage(folder):
        risks = safe_files.replaceable(folder, trusted)
    for place, who, meant, unknown in risks:
        if not meant:
            hint = "Choose your own folder with --set paths.runs=…."
            if who == "everybody":
                reason = f"Every user can replace the contents of {place}"
            elif unknown:  # to trust it would be to trust everybody whom this machine does not know
                reason = f"{place} belongs to {who}: this machine cannot identify the owner"
            else:
                reason = f"{place} belongs to {who}, who can replace its contents"
                hint = f"{hint[:-1]}, or trust that account: --set 'paths.trust=[\"{who}\"]'."
            raise StorageError(f"Runs are not safe in this folder: {reason}", place=f"paths.runs: {folder}", hint=hint)
    return [
        f"{who} can replace runs in {folder}: it can write to {place} (allowed by paths.trust)"
        if who.startswith("group ")
        else f"{who} can replace runs in {folder}: they can write to {place}"
        for place, who, *_ in risks
    ]


def new_id(name: str) -> str:
    """Return a new run id: name, UTC date and time, and the fraction of the second as four hexadecimal digits.

    Ids sort by time so, and two runs of one user have the same one only if they begin within 15 µs.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    return f"{name}-{stamp}-{nanoseconds * 65536 // 10**9:04x}"


def submitted_at(run_id: str) -> float | None:
    """Return the time of a run's submission, in seconds since 1970, as its id tells; None if it is no run's id."""
    if match := _ID.fullmatch(run_id):
        with contextlib.suppress(ValueError):
            day, clock, _ = match["time"].split("-")
            year, month, hour = int(day[:4]), int(day[4:6]), int(clock[:2])
            when = datetime.datetime(
                year, month, int(day[6:]), hour, int(clock[2:4]), int(clock[4:]), tzinfo=datetime.UTC
            )
            return int(when.timestamp())
    return None


_STORAGE_HINTS = {
    errno.ENOSPC: "The file system is full: free some space, or keep runs elsewhere (--set paths.runs=…).",
    errno.EDQUOT: "Your quota is used up: free some space, or keep runs elsewhere (--set paths.runs=…).",
    errno.EFBIG: "The file reached the size limit for files: increase the limit (ulimit -f).",
}


_LITTLE = 65536  # bytes; with less a file system is full


def full(folder: Path) -> str:
    """Return a sentence if the file system of a folder says that it is full; empty if it does not (as for quotas)."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return ""  # whoever reads the run's files says what is wrong with them
    if room.f_bavail * room.f_frsize < _LITTLE:
        return f"the file system of the run is full ({folder})"
    if room.f_files and not room.f_favail:
        return f"the file system of the run is full: no inodes are left ({folder})"
    return ""


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn what can go wrong with files below a path into a StorageError that names it."""
    try:
        yield
    except OSError as error:
        hint = _STORAGE_HINTS.get(error.errno or 0, "Choose another runs folder with --set paths.runs=….")
        place = str(error.filename or path)
        raise StorageError(
            f"The run's files cannot be read or written: {error.strerror}", place=place, hint=hint
        ) from error


@contextlib.contextmanager
def creating(directory: Path, trusted: Sequence[str] = (), like: RunPaths | None = None) -> Iterator[RunPaths]:
    """Make a run's directory (0700): filled under another name and renamed, or, on any failure, not there at all.

    ``like`` as for :func:`hpcml.runs.lib_zip.put`.

    Raises
    ------
    StorageError
        If it cannot be written, or not safely (:func:`check_folder`, with those who are ``trusted``).
    """
    new = directory.with_name(f".{directory.name}.{os.urandom(8).hex()}.new")
    paths = RunPaths(new)
    with storage(directory):
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(directory.parent, trusted)  # since it was looked at, somebody else may have made what was missing
        new.mkdir(mode=0o700)
        try:
            _check_owner(new)
            for folder in (paths.logs, paths.out, paths.code, paths.reserve):
                folder.mkdir(mode=0o700)
            for number in range(RESERVE_COUNT):
                safe_files.write(paths.reserve / str(number), " " * RESERVE_SIZE)
            lib_zip.put(paths.library, directory.parent, like)
            yield paths
            new.rename(directory)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            lib_zip.drop_unused(directory.parent)
            raise


def _check_owner(new: Path) -> None:
    """Refuse a file system on which a new folder is another's: its runs would be passed over as foreign."""
    if not safe_files.is_own_folder(new):
        hint = "Use a file system that records the owners of files (--set paths.runs=…)."
        raise StorageError(
            "Files that you create in this folder do not belong to you", place=str(new.parent), hint=hint
        )


def write_json(path: Path, content: object) -> None:
    """Write a JSON file of the run."""
    safe_files.write(path, json.dumps(content, indent=1, default=str) + "\n")


def load(directory: Path) -> Run:
    """Return the run in a directory.

    Raises
    ------
    StorageError
        If its record cannot be read, or the folder is not this user's.
    """
    if not safe_files.is_own_folder(directory):
        if directory.is_symlink():
            hint = (
                "Remove the link and move the run's folder itself to this path. "
                "hpcml does not follow links, because other users can create them."
            )
            raise StorageError("The run's folder is a link", place=str(directory), hint=hint)
        hint = "hpcml does not read runs of other users: their files could run commands with your account."
        raise StorageError("The path is not a folder that you own", place=str(directory), hint=hint)
    paths = RunPaths(directory)
    table = read_json(paths.submission)
    if not table or not table.facts:
        return Run(directory.name, paths, None)
    with complete(directory):
        if "error" in table.facts and "exit_status" not in table.facts:
            raise typed_json.DamagedError("exit_status is missing")
        submission = typed_json.read(Submission, table.facts)
    if (submission.line or submission.requeue) and (job := begun_job(paths)):
        submission = submission._replace(job=job, line="")
    if submission.pid and "scheduler" not in table.facts:
        submission = submission._replace(scheduler="local")
    if not (submission.pid or submission.directory):
        submission = submission._replace(run=directory.name)
    return Run(directory.name, paths, submission)


def begun_job(paths: RunPaths) -> str:
    """Return the id that the run's batch script left when it began, empty before."""
    return _job_of(paths.job)


def follow_up(run: Run) -> Run | None:
    """Return the run with the job of its next attempt, which waits for the end of this one; None without one."""
    if run.submission and run.may_start_again and (job := _job_of(run.paths.next_job)):
        return run._replace(submission=run.submission._replace(job=job))
    return None


def _jobs(paths: RunPaths) -> set[str]:
    """Return the jobs of a run's attempts, and the one that waits for the next."""
    jobs = {_job_of(paths.next_job)} - {""}
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir(paths.directory / "attempts")):
            jobs.add(safe_files.read(paths.attempt(int(name)).begun, 100).decode(errors="replace").strip())
    return jobs


def _job_of(link: Path) -> str:
    with contextlib.suppress(OSError):
        if _JOB.fullmatch(job := str(link.readlink())):
            return job
    return ""


def read_json(path: Path) -> Table | None:
    """Return a JSON file of a run, None if it is not there.

    Raises
    ------
    StorageError
        If it cannot be read or is not a JSON table.
    """
    with readable(path):
        try:
            return Table(safe_files.read_json(path))
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what can go wrong with reading a JSON file of a run into a StorageError that names the file."""
    with storage(path):
        try:
            yield
        except ValueError as error:
            problem = "damaged" if isinstance(error, typed_json.DamagedError) else "not valid JSON"
            hint = "The file was changed or truncated. See the other files of the run."
            raise StorageError(f"The file is {problem}: {error}", place=str(path), hint=hint) from error


def ids(folder: Path, name: str = "") -> list[str]:
    """Return the ids of all runs, or of those of a name, oldest first.

    Whose they are is asked for each where others may write to the folder; elsewhere one look at it is enough, and
    :func:`newest` asks for those that are wanted.
    """
    with storage(folder):
        try:
            names = os.listdir(folder)
            stat_result = folder.stat()
        except FileNotFoundError:
            return []
    dated = [
        (match["time"], run_id)
        for run_id in names
        if run_id.startswith(name) and not run_id.startswith(".") and (match := _ID.fullmatch(run_id))
        if not name or match["name"] == name
    ]
    names_in_order = [run_id for _, run_id in sorted(dated)]
    if safe_files.is_ours(stat_result) and not safe_files.written_by_others(stat_result, folder):
        return names_in_order
    return [run_id for run_id in names_in_order if safe_files.is_own_folder(f"{folder}/{run_id}")]


def newest(folder: Path, run_ids: Sequence[str], most: int | None = None) -> list[str]:
    """Return the newest of some ids that are this user's runs, oldest first; all of them if no number is given."""
    return list(changed(folder, run_ids, most))


def changed(folder: Path, run_ids: Sequence[str], most: int | None = None) -> dict[str, int]:
    """Return :func:`newest` runs with when each one's folder was last changed, in nanoseconds since 1970."""
    stamps: list[tuple[str, int]] = []
    for name in reversed(run_ids):
        if len(stamps) == most:
            break
        if stat_result := safe_files.own_folder(f"{folder}/{name}"):
            stamps.append((name, stat_result.st_mtime_ns))
    return dict(reversed(stamps))


def find(folder: Path, word: str) -> Run:
    """Return the run that the user means: a run id, its beginning, a name (the newest), a job id, or ``last``.

    ``last`` is the newest run that was submitted, or a refused one if there is no other.

    Raises
    ------
    NotFoundError
        If there is none, or several begin so.
    """
    run_ids = ids(folder)
    if not run_ids:
        raise NotFoundError("There are no runs", place=str(folder), hint="Submit a run: hpcml submit SCRIPT.")
    if word == "last":
        if last := _last(folder, run_ids):
            return last
        raise NotFoundError("You have no runs", place=str(folder), hint="Submit a run: hpcml submit SCRIPT.")
    if word in run_ids:
        return load(folder / word)
    if _JOB.fullmatch(word) and (run := _with_job(folder, run_ids, word)):
        return run
    if named := newest(folder, [name for name in run_ids if name_of(name) == word], 1):
        return load(folder / named[0])
    begun = newest(folder, [name for name in run_ids if word and name.startswith(word)])
    if len(begun) > 1:
        names = ", ".join(begun[-4:])
        raise NotFoundError(f"The ids of several runs begin with '{word}'", place=str(folder), hint=f"One of: {names}.")
    if not begun and (tasks := tasks_of(folder, word)):
        name = tasks[0].name.rpartition("_")[0]
        hint = f"Name a task, such as {tasks[0].id}. To list the tasks: hpcml ls --name '{name}_*'."
        raise NotFoundError(f"'{word}' is a job array, not one run", place=str(folder), hint=hint)
    if not begun:
        near = nearest(word, [*run_ids, *{name_of(name) for name in run_ids}, "last"])
        hint = did_you_mean(near, "List your runs: hpcml ls.")
        raise NoRunError(f"There is no run '{word}'", place=str(folder), hint=hint)
    return load(folder / begun[0])


def find_all(folder: Path, word: str) -> list[Run]:
    """Return the run that a word means, or those of the tasks if it means a job array."""
    return tasks_of(folder, word) or [find(folder, word)]


def tasks_of(folder: Path, word: str) -> list[Run]:
    """Return the runs of the tasks of a job array by the array's id or job number, in their order; none without one."""
    run_ids = ids(folder)
    array = word
    if word.isdecimal():
        last = _with_job(folder, run_ids, word, of_array=True)
        array = last.submission.array if last and last.submission else ""
    name, *stamp = array.rsplit("-", 3)
    task = re.compile(rf"{re.escape(name)}_(\d+)-{re.escape('-'.join(stamp))}", re.ASCII)
    tasks = {int(match[1]): run_id for run_id in run_ids if stamp and (match := task.fullmatch(run_id))}
    runs = [load(folder / run_id) for _, run_id in sorted(tasks.items()) if safe_files.is_own_folder(folder / run_id)]
    return [run for run in runs if run.submission is None or run.submission.array == array]


def _last(folder: Path, run_ids: Sequence[str]) -> Run | None:
    refused = None
    for run_id in reversed(run_ids):
        if safe_files.is_own_folder(f"{folder}/{run_id}"):
            run = load(folder / run_id)
            if not (run.submission and run.submission.error):
                return run
            refused = refused or run
    return refused


def _with_job(folder: Path, run_ids: list[str], job: str, *, of_array: bool = False) -> Run | None:
    """Return the newest run of a job id, also of an earlier attempt; a record that cannot be read is not the one.

    ``of_array``: the newest task of the job array of that id.
    """
    for name in reversed(run_ids):
        with contextlib.suppress(StorageError):
            run = load(folder / name)
            if run.submission and run.submission.hold:  # the job is the hold's
                continue
            if of_array:
                if run.job.startswith(f"{job}_"):
                    return run
                continue
            if job == run.job or (run.may_start_again and job in _jobs(run.paths)):
                return run
    return None


@contextlib.contextmanager
def complete(directory: Path) -> Iterator[None]:
    """Turn what a damaged file of a run lacks, or has of another kind, into a StorageError that names the run."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        hint = "The file was changed or truncated. See the logs of the run."
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        message = f"A file in the run's directory is damaged ({problem})"
        raise StorageError(message, place=str(directory), hint=hint) from error


# -- removal -----------------------------------------------------------------------------------------------------------


_LEFT = re.compile(r"\.(?P<run>.+)\.[0-9a-f]{16}\.(?P<end>removed|new)")
_NEW_FOR = 86400  # seconds for which a directory that was not finished may be a submission's that goes on
_OTHERS = 1000  # times that another command may be the first to remove something


def size(directory: Path) -> int:
    """Return the bytes that the removal of a run's directory frees; what cannot be read is left out.

    Links are not followed, and a file with hard links elsewhere is left out: lib.zip (:mod:`hpcml.runs.lib_zip`).
    """
    total, shared = 0, Counter[tuple[int, int, int]]()
    with contextlib.suppress(RecursionError):  # folders within folders without an end
        for _, _, names, folder in os.fwalk(directory):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another command removes it
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if status.st_nlink == 1:
                        total += status.st_blocks * 512
                    else:
                        shared[status.st_ino, status.st_nlink, status.st_blocks] += 1
    return total + sum(blocks * 512 for (_, links, blocks), found in shared.items() if found >= links)


def leftovers(folder: Path) -> list[tuple[str, Path]]:
    """Return the remains of runs of this user's, with their ids: a removal or a submission was killed half-way."""
    with storage(folder):
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
    paths = []
    for name in names:
        match, path = _LEFT.fullmatch(name), folder / name
        if not match or submitted_at(match["run"]) is None or not safe_files.is_own_folder(path):
            continue
        with contextlib.suppress(FileNotFoundError):  # it is gone by now
            if match["end"] == "removed" or path.stat().st_ctime < time.time() - _NEW_FOR:
                paths.append((match["run"], path))
    return paths


def remove_folder(directory: Path) -> None:
    """Remove the directory of a run, and all that is in it; what links in it lead to stays.

    It is renamed first, so that no other command sees half of a run.

    Raises
    ------
    StorageError
        If it is not this user's folder, or something in it cannot be removed.
    """
    going = directory.with_name(f".{directory.name}.{os.urandom(8).hex()}.removed")
    with storage(directory):
        if not safe_files.is_own_folder(directory):
            hint = "hpcml does not delete this folder. Check the folder with ls -ld, and remove it with rm."
            raise StorageError("The run's folder is not yours, or is a link", place=str(directory), hint=hint)
        directory.rename(going)
    remove_leftover(going)


def remove_leftover(directory: Path) -> None:
    """Remove what is left of a run; StorageError if something in it cannot be removed."""
    for _ in range(_OTHERS):
        try:
            _open_to_us(directory)
            shutil.rmtree(directory)
        except FileNotFoundError:  # another command removes it too
            pass
        except RecursionError as error:
            hint = f"Remove the folder yourself: rm -rf {shlex.quote(str(directory))}."
            message = "The run has too many folders within one another"
            raise StorageError(message, place=str(directory), hint=hint) from error
        except OSError as error:
            hint = f"Remove the remaining files yourself: {directory}."
            message = f"The run could not be removed completely: {error.strerror}"
            raise StorageError(message, place=str(error.filename), hint=hint) from error
        if not os.path.lexists(directory):
            return


def _open_to_us(directory: os.PathLike[str]) -> None:
    """Let this user write to the folders below one, as a script may have forbidden."""
    for _, _, _, folder in os.fwalk(directory):
        stat_result = os.fstat(folder)
        if stat_result.st_uid == os.geteuid() and stat.S_IMODE(stat_result.st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(folder, stat.S_IMODE(stat_result.st_mode) | stat.S_IRWXU)
