"""``hpcml cancel``: cancel a run, with those that divide the points of a sweep with it, or all of them.

``hpcml rm``: remove runs that have ended, with all their files.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import features_by_point, outputs_brought_back, safe_files, units
from hpcml.cli import common, ls
from hpcml.errors import HpcmlError, NoRunError, StorageError, UsageError
from hpcml.paths import RunPaths
from hpcml.runs import directories, files_of_killed_runs, lib_zip
from hpcml.runs import record as records
from hpcml.terminal import columns, fitted, note, say, say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs import handle

_ENDING = 30.0  # seconds for which rm waits for the job of a named run whose end is recorded
_RULES = ("name", "older_than", "larger_than", "failed", "keep", "until_free")  # of what rm removes


# -- cancel ------------------------------------------------------------------------------------------------------------


def add_cancel_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser, default="")
    parser.add_argument("--all", action="store_true", help="cancel all your active runs in the runs folder")
    parser.add_argument("--yes", action="store_true", help="with --all: cancel without asking for confirmation")
    common.add_site(parser)
    common.add_json(parser)


def run_cancel(options: Namespace) -> int:
    """Tell the run to end, or all; its supervisor is signalled first and has its grace. UsageError for neither."""
    from hpcml.runs import handle

    if options.all == bool(options.run):
        hint = "Name a run, or add --all. Try hpcml cancel --help."
        raise UsageError(
            "RUN is missing" if not options.all else "RUN and --all cannot be combined", place="hpcml cancel", hint=hint
        )
    if options.all:
        return _cancel_all(options)
    *tasks, run = directories.find_all(common.runs_folder(options), options.run)
    tasks.reverse()  # those that wait first, or they would begin in the place of others
    accepted, message = handle.cancel(run)
    others, failed = cancel_each([*tasks, *_dividing(run)])
    if options.json:
        common.print_json(
            {"run": run.id, "cancelled": accepted, "words": message} | ({"others": others} if others else {})
        )
    else:
        say_fitted(message, sys.stdout)
        say_answers(others)
    return failed


def _dividing(run: directories.Run) -> list[directories.Run]:
    """Return the other runs that divide the points of a sweep with this one and have not ended: they would take its."""
    others = features_by_point.collected("runs that share work", run)
    return going(run.paths.directory.parent, [other for other in others if other != run.id])


def going(runs: Path, ids: Sequence[str]) -> list[directories.Run]:
    """Return those of some runs that have not ended, or may not have."""
    from hpcml.runs import handle

    runs_here = [directories.load(runs / run_id) for run_id in ids if safe_files.is_own_folder(runs / run_id)]
    return [standing.run for standing in handle.standings(runs_here) if standing.alive]


def cancel_each(runs: Sequence[directories.Run]) -> tuple[list[dict[str, Any]], int]:
    """Cancel runs; return the answer for each, and the status of the last that could not be."""
    from hpcml.runs import handle

    answers: list[dict[str, Any]] = []
    failed = 0
    for run in runs:
        try:
            accepted, message = handle.cancel(run)
        except HpcmlError as error:
            accepted, message, failed = False, str(error), error.exit_status
        answers.append({"run": run.id, "cancelled": accepted, "words": message})
    return answers, failed


def say_answers(answers: Sequence[dict[str, Any]]) -> None:
    """Print what became of each."""
    for answer in answers:
        for line in str(answer["words"]).split("\n"):
            say_fitted(line, sys.stdout)


def _cancel_all(options: Namespace) -> int:
    """Cancel all runs of this user that have not ended; return the status of the last that could not be."""
    unfinished = _all_going(options)
    if not options.json:
        for run in unfinished:
            say(f"{run.id}  {run.job}".rstrip())
    if not unfinished:
        say("No run is active.", sys.stderr)
    elif not common.confirmed(f"Cancel {units.counted(len(unfinished), 'run')}?", options.yes):
        say("Nothing was cancelled.", sys.stderr)
        return 1
    answers, failed = cancel_each(unfinished)
    if options.json:
        common.print_json(answers)
    else:
        say_answers(answers)
    return failed


def _all_going(options: Namespace) -> list[directories.Run]:
    """Return the runs of this user that have not ended, or may not have."""
    from hpcml.runs import handle

    folder = common.runs_folder(options)
    runs = []
    for run_id in directories.newest(folder, directories.ids(folder)):
        try:
            run = directories.load(folder / run_id)
        except StorageError as error:
            note(f"{run_id}: {error.message}")
            continue
        if (
            run.submission
            and (run.submission.key or run.submission.line)
            and (run.may_start_again or not run.paths.status.exists())
        ):
            runs.append(run)
    return [standing.run for standing in handle.standings(runs) if standing.alive]


# -- rm ----------------------------------------------------------------------------------------------------------------


def add_rm_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = (
        "Without RUN, hpcml removes the runs that match all given options. hpcml also removes files that an "
        "interrupted hpcml rm or hpcml submit left. hpcml keeps runs that may still be active. "
        "If Slurm does not answer, hpcml also keeps runs whose state only Slurm knows. "
        "If a file exists only in a run's code/, hpcml keeps the run unless you add --yes. "
        "hpcml keeps a sweep's list of points. hpcml sweep rm NAME also removes the list of points."
    )
    parser.add_argument("run", metavar="RUN", nargs="*", help=common.RUN)
    ls.add_name(parser)
    parser.add_argument(
        "--older-than", metavar="TIME", help="only runs submitted more than TIME ago, e.g. 30d, 1w, 12h (m: minutes)"
    )
    parser.add_argument("--larger-than", metavar="SIZE", help="only runs that take at least SIZE, e.g. 500M, 2G")
    parser.add_argument("--failed", action="store_true", help=common.FAILED)
    parser.add_argument(
        "--keep", metavar="N", help="always keep the newest N runs (with --name: the newest N of that name)"
    )
    parser.add_argument(
        "--until-free",
        metavar="SIZE",
        help="remove the oldest matching runs first, and stop when SIZE of disk space is free, e.g. 500G, 2T",
    )
    parser.add_argument("--dry-run", action="store_true", help="show which runs would be removed; remove nothing")
    parser.add_argument("--yes", action="store_true", help="remove without asking for confirmation")
    common.add_site(parser)
    common.add_json(
        parser, "print JSON: removed runs, their bytes, and runs that hpcml keeps because they may be active"
    )


class _Removal(NamedTuple):
    """What goes, with its bytes: ended runs, leftover files of interrupted commands, and what only these runs shared.

    ``rests`` has the names of the leftover files.
    """

    runs: dict[Path, int]
    leftovers: dict[Path, int]
    shared: dict[Path, int]
    rests: tuple[tuple[str, Path], ...] = ()

    @property
    def rows(self) -> list[tuple[str, Path, int]]:
        """Each folder and shared file, with what it is."""
        rows = [(path.name, path, size) for path, size in self.runs.items()]
        rows += [(f"leftover files of {name}", path, self.leftovers[path]) for name, path in self.rests]
        return [*rows, *(("lib.zip of these runs", path, size) for path, size in self.shared.items())]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(sum(sizes.values()) for sizes in (self.runs, self.leftovers, self.shared))

    @property
    def summary(self) -> str:
        """What goes, in words."""
        count = len(self.rests)
        also = f" and leftover files of {units.counted(count, 'interrupted command')}" if count else ""
        return f"{units.counted(len(self.runs), 'run')}{also}, {units.format_bytes(self.total)}"

    def carry_out(self) -> None:
        """Remove it."""
        for path in self.runs:
            directories.remove_folder(path)
        for path in self.leftovers:
            directories.remove_leftover(path)
        for folder in {path.parent for path in self.shared}:
            lib_zip.drop_unused(folder)


def run_rm(options: Namespace) -> int:
    """Show what would be removed, how old and how large it is, ask, and remove it."""
    rules = _rules_of(options)
    least, wanted = _size(options.larger_than, "--larger-than"), _size(options.until_free, "--until-free")
    folder = common.runs_folder(options)
    named, unknown = _known(folder, options.run)
    ended, staying = _named(folder, named) if options.run else _matching(folder, options)
    files_left = _files_left(ended, options)
    ended = [path for path in ended if path not in files_left]
    rests = () if options.run else tuple(directories.leftovers(folder))
    left = {path: directories.size(path) for _, path in rests}
    missing = None if options.until_free is None else wanted - _free(folder) - sum(left.values())
    taken = _taken(ended, least, missing)
    in_use = _keep_code_in_use(taken)
    shared = dict(lib_zip.unused_without(folder, [*taken, *left])) if taken or left else {}
    removal = _Removal(taken, left, shared, rests)
    if not options.json:
        _show(removal.rows)
    _say_lost_points(removal)
    _say_what_stays(staying, each=bool(options.run))
    staying |= _say_files_left(files_left) | in_use
    if (short := (missing or 0) - sum(taken.values()) - sum(shared.values())) > 0:
        note(f"{units.format_bytes(short)} of the requested {units.format_bytes(wanted)} cannot be freed")
    if not options.dry_run and (removal.runs or rests):
        if not common.confirmed(f"Remove {removal.summary}?", options.yes):
            say("Nothing was removed.", sys.stderr)
            return 1
        removal.carry_out()
    _say_removed(options, rules, removal, staying, unknown)
    if not options.run:
        _say_environments(folder)
    return 1 if options.run and (staying or unknown) else 0


def removal_of_all(options: Namespace, folder: Path, ids: Sequence[str]) -> _Removal:
    """Show some runs, and return their removal; UsageError if one of them has to stay."""
    ended, staying = _named(folder, {each: directories.find(folder, each) for each in ids}) if ids else ([], {})
    _say_what_stays(staying, each=True)
    staying |= _say_files_left(_files_left(ended, options))
    if staying:
        hint = "Cancel active runs: hpcml cancel RUN. To remove also the files of code/: add --yes."
        raise UsageError("Nothing was removed: some runs have to stay", place=", ".join(staying), hint=hint)
    removal = _Removal(_taken(ended, 0, None), {}, dict(lib_zip.unused_without(folder, ended)) if ended else {})
    if not options.json:
        _show(removal.rows)
    return removal


def _rules_of(options: Namespace) -> list[str]:
    """Return the options that say which runs are meant, as typed; UsageError without them, or beside named runs."""
    given = {f"--{name.replace('_', '-')}": getattr(options, name) for name in _RULES}
    rules = [
        word if value is True else f"{word} {value}" for word, value in given.items() if value not in (None, False)
    ]
    if options.run and rules:
        message = f"RUN and {' '.join(rules)} cannot be combined"
        raise UsageError(message, place="hpcml rm", hint="Give either RUN or these options, not both.")
    if not (options.run or rules):
        hint = "Name runs, or add one or more of --name PATTERN, --older-than 30d, --failed, --keep 20."
        hint = f"{hint} To list the sizes of all ended runs: hpcml rm --dry-run --name '*'."
        raise UsageError("The command does not say which runs to remove", place="hpcml rm", hint=hint)
    return rules


def _say_lost_points(removal: _Removal) -> None:
    """Say which sweeps lose points with these runs."""
    for name, number in _points(removal.runs).items():
        lost = f"the results of its points in {units.counted(number, 'run')}"
        note(f"the sweep '{name}' loses {lost}: hpcml sweep table will show these points as missing")
        note(f"to delete the sweep itself: hpcml sweep rm {shlex.quote(name)}")


def _say_removed(
    options: Namespace, rules: Sequence[str], removal: _Removal, staying: Mapping[str, str], unknown: Sequence[str]
) -> None:
    """Say what was removed, or would be."""
    if options.json:
        key = "would_remove" if options.dry_run else "removed"
        result = {key: [path.name for path in removal.runs], "staying": list(staying), "unknown": unknown}
        common.print_json({**result, "leftovers": len(removal.rests), "bytes": removal.total})
        return
    if not (removal.runs or removal.rests):
        say("Nothing was removed." if options.run else f"No ended run matches {' '.join(rules)}.", sys.stderr)
        return
    stay = f"; {units.counted(len(staying), 'run')} kept" if options.run and staying else ""
    done = "Without --dry-run, hpcml would remove" if options.dry_run else "Removed"
    say(f"{done} {removal.summary}{stay}.", sys.stderr)


def _known(folder: Path, words: Sequence[str]) -> tuple[dict[str, directories.Run], list[str]]:
    """Return the runs by word, and the words that mean none, with a note; NotFoundError if no word means a run."""
    named: dict[str, directories.Run] = {}
    unknown: dict[str, NoRunError] = {}
    for word in words:
        try:
            named[word] = directories.find(folder, word)
        except NoRunError as error:
            unknown[word] = error
    if unknown and not named:
        raise next(iter(unknown.values()))
    for refusal in unknown.values():
        note(refusal.message)
    return named, list(unknown)


def _say_environments(folder: Path) -> None:
    """Say how much disk space the uv environments beside the runs take, if there are some."""
    from hpcml.runs import uv_environments

    if safe_files.is_own_folder(made := folder / uv_environments.FOLDER):
        size = units.format_bytes(directories.size(made))
        note(f"hpcml rm keeps the uv environments of your runs: {size} in {made} (hpcml help uv)")


def _named(folder: Path, runs: Mapping[str, directories.Run]) -> tuple[list[Path], dict[str, str]]:
    """Return the directories of the named runs that have ended, and why the others stay, by their ids."""
    from hpcml.runs import handle

    for name, run in runs.items():
        if others := [each for each in directories.ids(folder) if each != run.id and directories.name_of(each) == name]:
            have = "runs have" if len(others) > 1 else "run has"
            older = f"{len(others)} older {have} this name (to remove all: --name {name})"
            note(f"'{name}' means {run.id}, the newest run; {older}")
    meant = list({run.id: run for run in runs.values()}.values())
    standings, deadline = handle.standings(meant), time.monotonic() + _ENDING
    while any(map(_is_ending, standings)) and time.monotonic() < deadline:
        time.sleep(1)
        standings = handle.standings(meant)
    staying = {standing.run.id: _why_alive(standing) for standing in standings if standing.alive}
    return [standing.run.paths.directory for standing in standings if not standing.alive], staying


def _matching(folder: Path, options: Namespace) -> tuple[list[Path], dict[str, str]]:
    """Return the directories of ended runs that the options mean, oldest first, and the problem of others by id."""
    from hpcml.runs import handle

    before = time.time() - _seconds(options.older_than, "--older-than")
    keep = 0 if options.keep is None else common.whole(options.keep, "--keep")
    named = [each for each in directories.ids(folder) if ls.is_named(directories.name_of(each), options.name or "*")]
    old = directories.newest(folder, named)[: -keep or None]
    standings = handle.standings(_loaded(folder, old, before))
    runs = [run for run in standings if run.status and run.status.failed] if options.failed else standings
    ended = [standing.run.paths.directory for standing in runs if not standing.alive]
    return ended, {standing.run.id: standing.problem for standing in runs if standing.alive}


def _files_left(ended: Sequence[Path], options: Namespace) -> dict[Path, str]:
    """Return, of each run that has files of its script that are nowhere else, a sentence that names them.

    What a killed run did not bring to the original folder is brought first, unless nothing may change.
    """
    sentences = {}
    for path in () if options.yes else ended:
        paths = RunPaths(path)
        with directories.storage(path):
            result, attempt = outputs_brought_back.of(paths), records.newest_attempt(paths) or 0
            is_known = result and result.attempt >= attempt and not records.code_holder(paths)  # which others write to
            if not options.dry_run and not is_known:  # the newest was killed
                result = files_of_killed_runs.settle(paths, attempt)
        if result and (sentence := result.sentence()):
            sentences[path] = sentence
    return sentences


def _say_files_left(files_left: Mapping[Path, str]) -> dict[str, str]:
    """Say which runs stay because of such files, and return the reasons by their ids."""
    for path, sentence in files_left.items():
        note(f"hpcml keeps {path.name}: {sentence[0].lower()}{sentence[1:-1]}; to remove the run too, add --yes")
    return {path.name: sentence for path, sentence in files_left.items()}


def _taken(ended: Sequence[Path], least: int, missing: float | None) -> dict[Path, int]:
    """Return the directories to remove of those that have ended, with their bytes: all, or the oldest that suffice."""
    sizes: dict[Path, int] = {}
    for path in ended:
        if missing is not None and sum(sizes.values()) >= missing:
            break
        if (size := directories.size(path)) >= least:
            sizes[path] = size
    return sizes


def _keep_code_in_use(taken: dict[Path, int]) -> dict[str, str]:
    """Take out the runs whose code other tasks of their array use, and return the reasons by their ids."""
    in_use = {}
    for path in list(taken):
        if (holder := records.code_holder(RunPaths(path))) and holder.directory == path:
            submission = directories.load(path).submission
            tasks = directories.tasks_of(path.parent, submission.array if submission else "")
            if stay := [task.id for task in tasks if task.paths.directory not in taken]:
                del taken[path]
                in_use[path.name] = f"other tasks of its job array use its folder code/, such as {stay[0]}"
                note(f"hpcml keeps {path.name}: {in_use[path.name]}")
    return in_use


def _is_ending(one: handle.Standing) -> bool:
    """Whether a run's end is recorded, but its job is still there: the batch script's last second, or Slurm's."""
    return bool(one.alive and one.status and one.status.over and not one.problem)


def _why_alive(one: handle.Standing) -> str:
    if _is_ending(one):
        return "the run's job has not ended yet: try again in a minute"
    return one.problem or (one.status.message if one.status else "") or "the run has not ended"


def _loaded(folder: Path, run_ids: Sequence[str], before: float) -> list[directories.Run]:
    """Return those of some runs that were submitted before then; one that cannot be read stays, and is named."""
    runs = []
    for run_id in run_ids:
        submitted = directories.submitted_at(run_id)
        if submitted is None or submitted > before:
            continue
        try:
            runs.append(directories.load(folder / run_id))
        except StorageError as error:
            note(f"{run_id} stays: {error.message}")
    return runs


def _points(ended: Iterable[Path]) -> Counter[str]:
    """Return the number of these runs with points of each sweep; a run with a damaged request can be removed too."""
    sweeps: Counter[str] = Counter()
    for path in ended:
        with contextlib.suppress(StorageError):
            request = records.Record(RunPaths(path)).request
            if request and request.spec.sweep:
                sweeps[request.spec.sweep] += 1
    return sweeps


def _free(folder: Path) -> int:
    """Return the bytes that the file system of a folder has for this user; 0 if there is no folder."""
    with directories.storage(folder):
        try:
            room = os.statvfs(folder)
        except FileNotFoundError:
            return 0
    return room.f_bavail * room.f_frsize


def _show(rows: Sequence[tuple[str, Path, int]]) -> None:
    width = max((len(name) for name, *_ in rows), default=0)
    cells = []
    for name, path, size in rows:
        submitted = directories.submitted_at(name)
        age = "-" if submitted is None else units.format_age(time.time() - submitted)
        cells.append((name, age, units.format_bytes(size), common.typed(path, sys.stdout)))
    for name, age, amount, folder in [("RUN", "AGE", "SIZE", "FOLDER"), *cells] if rows else ():
        for line in fitted(f"{name:<{width}}  {age:>4}  {amount:>8}", columns(sys.stdout), rest="  ", last=folder):
            say(line)
    sys.stdout.flush()  # the list stands before what is said of it, in a file too


def _say_what_stays(staying: Mapping[str, str], *, each: bool) -> None:
    """Say why each of them stays, or in one line how many may be alive."""
    if each:
        for name, why in staying.items():
            note(f"hpcml keeps {name}, because the run may still be active ({why})")
    elif staying:
        why = next(filter(None, staying.values()), "")
        note(f"hpcml keeps {units.counted(len(staying), 'run')} that may still be active{f' ({why})' if why else ''}")


def _size(text: str | None, option: str) -> int:
    return 0 if text is None else common.parsed(units.parse_memory, text, option, "2G")


def _seconds(age: str | None, option: str) -> float:
    return 0.0 if age is None else common.parsed(units.parse_seconds, age, option, "30d")
