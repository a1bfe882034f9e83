"""What each command of the command line does with its options; they call, and print what comes back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.errors import (
    MEANING,
    UNREACHABLE,
    ConfigError,
    NotFoundError,
    SlurmUnreachableError,
    StorageError,
    UsageError,
)
from hpcml.runs import directories as runs
from hpcml.sites import layers, lookup
from hpcml.terminal import json_text, note, say, say_lines, shown

if TYPE_CHECKING:  # each command imports what it needs: `submit` is to be fast
    from argparse import Namespace

    from hpcml.runs import status as watch
    from hpcml.schedulers import slurm

_COUNTS = ("nodes", "gpus_per_node", "cpus_per_node")
_ROLES = {"driver": "driver", "scheduler": "scheduler", "worker": "worker", "workers": "worker", "job": "job"}


def print_json(facts: object) -> None:
    """Print facts for a program to read."""
    say_lines(json_text(facts, indent=1))


def here() -> Path:
    """Return the current folder, if it is still there."""
    try:
        return Path.cwd()
    except OSError as error:
        raise NotFoundError("The current folder is gone", place="cwd", hint="Change to another: cd ~") from error


def whole(text: str, option: str) -> int:
    """Return an option's whole number."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"'{text}' is not a whole number", place=option, hint=f"Write {option} 4.")
    return int(text)


def load_site(
    name: str, environment: Mapping[str, str], cwd: Path | None, assignments: Sequence[str] = ()
) -> lookup.LoadedSite:
    """Return a site as :func:`hpcml.sites.load` does, and say which files of settings do not count."""
    loaded = lookup.load(name, environment, cwd, assignments)
    for words in loaded.ignored:
        _note_once(words)
    return loaded


@functools.cache
def _note_once(words: str) -> None:
    note(words)


def _folder(options: Namespace) -> tuple[Path, dict[str, str]]:
    """Return the folder for runs and the environment; no site is needed to look at runs, but it may say where."""
    environment = layers.process_environment()
    loaded = load_site(options.site or "", environment, here(), options.set or ())
    return runs.runs_folder(loaded.site.paths.runs, environment), environment


def find_run(options: Namespace) -> runs.Run:
    """Return the run that the options name."""
    folder, _ = _folder(options)
    return runs.find(folder, options.run)


def ls(options: Namespace) -> int:
    """``hpcml ls``: the newest runs, newest last, with one question to Slurm for those that have not ended."""
    folder, environment = _folder(options)
    most = whole(options.last, "--last")
    known = runs.ids(folder)
    wanted = runs.newest(folder, known, None if options.all else most)
    rows = _rows([folder / name for name in wanted], environment)
    if options.json:
        print_json([row.as_json() for row in rows])
        return 0
    width = max([len(row.run) for row in rows], default=3)
    if rows:
        say(f"{'RUN':<{width}}  {'SITE':<10} {'JOB':>8}  {'STATE':<9} {'STATUS':>6}  WHAT")
    for row in rows:
        code = "" if row.exit_status is None else str(row.exit_status)
        site, job, state = shown(row.site), shown(row.job), shown(row.state)
        say(f"{row.run:<{width}}  {site:<10} {job:>8}  {state:<9} {code:>6}  {row.words[:60]}")
    if len(wanted) == most and (older := known.index(wanted[0]) if wanted else len(known)):
        say(f"{older} older runs are not shown (hpcml ls --all).", sys.stderr)
    return 0


def _rows(directories: list[Path], environment: dict[str, str]) -> list[watch.Status]:
    """Return the state of many runs; what cannot be read or asked is unknown and keeps no other from being shown."""
    from hpcml.runs import status as watch
    from hpcml.schedulers import slurm

    found: list[runs.Run | watch.Status] = []
    for directory in directories:
        try:
            found.append(runs.load(directory))
        except StorageError as error:
            found.append(watch.Status(directory.name, "", words=error.message, directory=str(directory)))
    silent = ""
    known: dict[str, slurm.JobState] = {}
    open_jobs = [
        run.job
        for run in found
        if isinstance(run, runs.Run) and run.job and (run.may_start_again or not run.paths.status.exists())
    ]
    try:
        known = slurm.states(open_jobs, environment)
    except SlurmUnreachableError as error:
        say_lines(f"hpcml: {error}", sys.stderr)
        silent = error.message
    rows = []
    for run in found:
        if isinstance(run, watch.Status):
            rows.append(run)
            continue
        said = known.get(run.job) if run.job in open_jobs else slurm.UNKNOWN  # an end that is written needs no question
        try:
            rows.append(watch.status(run, environment, said, ask=not run.job))
        except StorageError as error:
            rows.append(watch.Status(run.id, "", words=error.message, directory=str(run.paths.directory)))
        if silent and run.job in open_jobs:  # what its own files tell is still true
            rows[-1].silent = silent
            rows[-1].words = rows[-1].words or silent
    return rows


def status(options: Namespace) -> int:
    """``hpcml status RUN``."""
    from hpcml.runs import status as watch
    from hpcml.runs import submit as submission

    folder, environment = _folder(options)
    run, silent = runs.find(folder, options.run), ""
    try:
        run = submission.adopt(run, environment)
    except SlurmUnreachableError as error:
        silent = error.message
    found = watch.status(run, environment)
    found.silent = found.silent or silent
    code = UNREACHABLE if found.silent and found.state == "unknown" else 0
    if options.json:
        print_json(found.as_json())
        return code
    for key, value in _lines(found):
        say(f"{key:<10} {value}")
    for line in found.quote:
        say(f"  | {line}")
    if found.hint:
        say(found.hint)
    return code


def _lines(found: watch.Status) -> list[tuple[str, str]]:
    """Return what is known of a run, each fact under its key."""
    from hpcml.cli.progress import phases

    lines = [("run", found.run), ("site", found.site), ("state", f"{found.state}: {found.words}")]
    if found.job:
        lines.append(("job", f"{found.job} {found.slurm_state}".strip()))
    if found.silent:
        lines.append(("slurm", f"{found.silent} (all this is from the run's own files)"))
    if found.estimate:
        lines.append(("estimate", f"Slurm expects a start at {found.estimate}"))
    if found.nodes:
        lines.append(("nodes", ", ".join(found.nodes)))
    if found.state in ("starting", "running"):
        lines.append(("workers", f"{found.workers}/{found.expected}"))
    lines += [
        (key, value)
        for key in ("jupyter", "versions", "protocol", "security", "fabric")
        if (value := getattr(found, key))
    ]
    lines += [("differ", difference) for difference in found.differences]
    lines += [("warning", warning) for warning in found.warnings]
    lines += phases(found)
    if found.exit_status is not None:
        meaning = MEANING.get(found.exit_status, "") if found.by != "script" else "the script's own"
        lines.append(("status", f"{found.exit_status} ({meaning})" if meaning else str(found.exit_status)))
    return [*lines, ("directory", found.directory)]


def logs(options: Namespace) -> int:
    """``hpcml logs [-f] RUN [ROLE]``."""
    from hpcml.cli.progress import Tail
    from hpcml.runs import status as watch

    name, word = options.run, options.role
    if word is None and name in _ROLES:
        name, word = "last", name  # hpcml logs worker
    role = _ROLES.get(word or "driver")
    if role is None:
        near = layers.nearest(word, list(_ROLES))
        hint = f"Did you mean {near}?" if near else "One of: driver, scheduler, worker, job."
        raise UsageError(f"There is no role '{word}'", place="hpcml logs", hint=hint)
    folder, environment = _folder(options)
    run = runs.find(folder, name)
    tails: dict[Path, Tail] = {}

    def copy() -> None:
        for path in sorted(run.paths.logs.glob("worker-*.log" if role == "worker" else f"{role}.log")):
            header = f"==> {shown(path.name)} <==\n" if role == "worker" else ""
            tail = tails.setdefault(path, Tail(path, sys.stdout, header))
            while tail.copy():
                pass

    if options.follow:
        for _ in watch.follow(run, environment, copy):
            pass
    else:
        copy()
    if role == "driver" and (ended := runs.read_json(run.paths.status)) and ended.get("by") not in ("script", None):
        say(f"hpcml: {ended.get('reason', '')}.", sys.stderr)  # the log itself is the script's alone
    if not tails and not options.follow:
        state = watch.status(run, environment)
        raise NotFoundError(f"The run has no {role} log yet", place=run.id, hint=f"It is {state.state}: {state.words}.")
    return 0


def cancel(options: Namespace) -> int:
    """``hpcml cancel RUN``: tell the run to end; its driver is told first and has its grace."""
    import signal

    from hpcml import subprocesses
    from hpcml.runs import status as watch
    from hpcml.runs import submit as submission
    from hpcml.schedulers import slurm

    folder, environment = _folder(options)
    run = submission.adopt(runs.find(folder, options.run), environment)
    before = watch.status(run, environment)
    if before.state in ("ended", "refused"):
        words, did = f"{run.id} has ended already: {before.words}.", False
    elif run.job:
        slurm.cancel(run.job, environment)
        words, did = f"{run.id} is being cancelled (job {run.job}).", True
    elif "pid" in run.submission:
        pid = int(run.submission["pid"])
        did = subprocesses.signal_process(pid, signal.SIGTERM)
        words = f"{run.id} is being cancelled (process {pid})." if did else f"{run.id} has ended in this moment."
    else:
        raise NotFoundError("The run has no job that could be cancelled", place=run.id, hint=before.hint)
    if options.json:
        print_json({"run": run.id, "cancelled": did, "words": words})
    else:
        say(words)
    return 0


def site(options: Namespace) -> int:
    """``hpcml site ls`` and ``hpcml site show``."""
    environment = layers.process_environment()
    if options.what == "ls":
        return _site_ls(options, environment)
    loaded = load_site(options.name, environment, here(), options.set or ())
    table = layers.as_table(loaded.site)
    if options.json:
        origins = {key.replace("\0", "."): value.origin for key, value in loaded.layers.values.items()}
        print_json({"site": table, "chosen_because": loaded.chosen_because, "origins": origins})
        return 0
    say(f"# {loaded.site.name}: {loaded.chosen_because}")
    for key, value in _flat(table):
        origin = f"  # {loaded.layers.origin(key)}" if options.origin else ""
        say(f"{key} = {json_text(value)}{origin}")
    return 0


def _flat(table: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def _site_ls(options: Namespace, environment: dict[str, str]) -> int:
    rows = []
    try:
        found = load_site("", environment, here(), options.set or ()).site.name
    except ConfigError as error:
        say_lines(f"hpcml: {error}", sys.stderr)
        found = ""
    for name, paths in sorted(lookup.profile_files(environment).items()):
        description = lookup.read_profile(paths[-1]).get("description", "")
        rows.append(
            {"site": name, "here": name == found, "description": description, "files": [str(path) for path in paths]}
        )
    if options.json:
        print_json(rows)
        return 0
    for row in rows:
        say(f"{'*' if row['here'] else ' '} {row['site']:<12} {row['description']}")
    return 0
