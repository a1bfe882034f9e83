"""``hpcml sweep``: submit what is missing of a sweep; how sweeps stand, their tables and pictures, and their end."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpcml import features_by_point, safe_files
from hpcml.cli import common, submit
from hpcml.errors import NotFoundError, UsageError, nearest
from hpcml.options.table import TAKES_VALUE
from hpcml.request.record import job_name
from hpcml.runs import directories
from hpcml.sites import settings_layers
from hpcml.sweeps import points, record, results, search
from hpcml.terminal import Raw, columns, fit, note, say, say_fitted, shown
from hpcml.units import counted, format_seconds
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.request.record import RunRequest
    from hpcml.runs.submit import Prepared
    from hpcml.sweeps.submission import Asked, Choice

VERBS = ("status", "table", "plot", "cancel", "rm")
_VALUES = ("--points", "--seed", "--max-fails", "--metric", "--sampler", "--pruner", "--at-once", "--jobs")
_LISTS = ("--grid", "--zip", "--random", "--search")
_FIRST = 3  # points that are shown before a submission
_MOST_JOBS = 100
_DETACHED = 130  # the status of a command that Ctrl-C ended, while its runs go on
_FORMS = (".svg", ".pdf", ".png")  # of a picture, by the end of its file's name


def add_options(parser: Parser) -> None:
    """Add a submission's options, the points, and what is to be done with them."""
    parser.usage = (
        "hpcml sweep SCRIPT --grid NAME=VALUES… [OPTIONS] [-- ARGS…]\n"
        "hpcml sweep SCRIPT --search N NAME=… --metric NAME [OPTIONS] [-- ARGS…]\n"
        "hpcml sweep status|table|plot|cancel|rm [NAME]"
    )
    add = parser.add_argument_group("values of script options (hpcml runs each combination)").add_argument
    add(
        "--grid",
        action="extend",
        nargs="+",
        metavar="NAME=VALUES",
        help="values of script options: k=8,16,32 lr=0.1,0.01 or k=range(1,4) (repeatable)",
    )
    text = "N random points: 9 x=uniform(0,1) k=randint(1,9) c=choice(a,b) r=loguniform(1e-4,1) (repeatable)"
    add("--random", action="append", nargs="+", metavar="N NAME=…", help=text)
    beside = "lists of equal length, taken in order: a=1,2 b=3,4 makes the points a=1 b=3 and a=2 b=4 (repeatable)"
    text = "N points chosen by Optuna, e.g. 9 x=uniform(0,1)"
    add("--search", nargs="+", metavar="N NAME=…", help=text)
    parser.rare += [
        add("--zip", action="append", nargs="+", metavar="NAME=VALUES", help=beside),
        add(
            "--points", action="append", metavar="FILE", help="file with one point per row: .csv or .jsonl (repeatable)"
        ),
        add(
            "--sampler",
            metavar="SAMPLER",
            help="sampler of --search: tpe, cmaes, tpe(n_startup_trials=20) (default: tpe)",
        ),
        add("--seed", metavar="N", default="0", help="random seed of --random and --search (default: 0)"),
    ]
    add = parser.add_argument_group("sweep").add_argument
    text = "metric for search, pruner and table order (default for tables: the first reported metric)"
    add("--metric", metavar="NAME", default="", help=text)
    add("--maximize", action="store_true", help="maximize the metric (default: minimize it)")
    add("--dry-run", action="store_true", help="show the points (of rm: runs); change nothing")
    text = "run only failed points: all, or those with these causes: oom, timeout, node, error, unknown"
    add("--only-failed", nargs="?", const="all", default="", metavar="CAUSE,…", help=text)
    text = "points that a job runs in parallel (default: 1)"
    add("--at-once", metavar="N", default="1", help=text)
    add("--jobs", metavar="N", default="1", help="number of Slurm jobs for the points (default: 1)")
    text = "stop points with a poor metric early: asha, median, hyperband, asha(reduction_factor=3)"
    changed = "do not ask before removing a sweep, or rerunning points whose script, image or arguments changed"
    picture = "with plot: .svg, .pdf or .png file (default: NAME.svg); -o - writes SVG to standard output"
    parser.rare += [
        add("--pruner", metavar="PRUNER", help=text),
        add("--max-fails", metavar="N", help="stop the sweep after more than N failed points (default: never)"),
        add("--yes", action="store_true", help=changed),
        add(
            "--csv",
            nargs="?",
            const="-",
            metavar="FILE",
            help="with table: print the table as CSV, or write it to FILE (--csv=FILE)",
        ),
        add("--output", "-o", metavar="FILE", help=picture),
        parser.add_argument("words", nargs="*", metavar="status|table|plot|cancel|rm NAME", help="show or end a sweep"),
    ]
    submit.add_options(parser, "sweep")
    parser.suggest = _suggest
    parser.describe({"--profile": SUPPRESS})  # refused: a sweep has many scripts
    parser.epilog = (
        "A point is one combination of values. hpcml adds a point's values as options: SCRIPT ARGS… --lr 0.1 --k 16. "
        "To report a metric, call hpcml.run.report(NAME=VALUE) in the script. Add --wait to wait for all points."
    )
    parser.set_defaults(prepare=False, check=False)


def _suggest(_given: Namespace, _known: list[str], unknown: list[str]) -> str:
    """Return the hint how a sweep takes an option of the script."""
    option = unknown[0].partition("=")[0]
    values = f"To try values of the script's option {option}, write --grid {option.lstrip('-')}=VALUE,VALUE."
    return f"{values} To pass {option} to each point, write it after --."


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind the verb into hpcml's options and the script with what follows ``--``."""
    end = words.index("--") if "--" in words else len(words)
    options, arguments = list(words[:end]), list(words[end + 1 :])
    with_value = {word for word, takes in TAKES_VALUE.items() if takes} | set(_VALUES)
    position = 0
    while position < len(options):
        word = options[position]
        if word in VERBS:
            return _names_first(words, with_value), []
        if not word.startswith("-") or word == "-":
            rest = ["--", *arguments] if arguments else []
            after = options[position + 1 :]
            stray = [text for text in after[:1] if not text.startswith("-")]  # a list before SCRIPT would take it
            return [*stray, *options[:position], *after[len(stray) :]], [word, *rest]
        position += 2 if word in with_value else 1
        if word in _LISTS:
            position += word in ("--random", "--search")
            while position < len(options) and re.match(r"[^-/=][^/=]*=", options[position]):
                position += 1
    return options, []


def _names_first(words: Sequence[str], with_value: set[str]) -> list[str]:
    """Return the words of a verb with its NAME before the options, as argparse takes it."""
    names, options = list[str](), list[str]()
    for before, word in zip(["", *words], words, strict=False):
        is_value = before in with_value or before in ("-o", "--output")
        (options if is_value or word.startswith("-") else names).append(word)
    file = words[words.index("--csv") + 1 :][:1] if "--csv" in words else []
    if len(names) > 2 and file and file[0] in names:  # a word more than verb and NAME
        names.remove(file[0])
        options[options.index("--csv")] = f"--csv={file[0]}"
    return [*names, *options]


def run(options: Namespace) -> int:
    """Look at a sweep, or submit what is missing of it; UsageError or NotFoundError for another first word."""
    verb, *rest = options.words or [""]
    if verb in VERBS and not options.script_words:
        return _look(options, verb, rest)
    script = (options.script_words or [""])[0]
    near = nearest(script, VERBS)
    if near and not (common.here() / script).exists():
        raise NotFoundError(
            f"There is no script '{script}'", place="hpcml sweep", hint=f"Did you mean hpcml sweep {near}?"
        )
    if options.words and script.isidentifier() and not (common.here() / script).exists():
        hint = f"The verbs are {', '.join(VERBS)}. To show the log of a point: hpcml logs NAME point:N."
        raise UsageError(f"'{script}' is no script here, and not a verb", place="hpcml sweep", hint=hint)
    if options.words:
        hint = "Write the script's own arguments after --, at the end of the command."
        if "=" in verb:
            hint = f"Write a parameter of the grid as --grid {verb}. {hint}"
        raise UsageError(f"'{verb}' is not an option", place="hpcml sweep", hint=hint)
    if not options.script_words:
        raise UsageError("SCRIPT is missing", place="hpcml sweep", hint="Name a Python file.")
    return _begin(options)


# -- a submission ------------------------------------------------------------------------------------------------------


def _begin(options: Namespace) -> int:
    """Submit the points that no run has ended or is running."""
    from hpcml.sweeps import submission

    seed = common.whole(options.seed, "--seed")
    optuna = (options.search or (), options.sampler or "", options.pruner or "", options.metric)
    study = search.search(*optuna, maximize=options.maximize, seed=seed)
    spec = submit.script_spec(options)
    wanted = _wanted(options, study, seed)
    _check(spec)
    names = {value.name for point in wanted for value in point} | (study.space.keys() if study else set())
    submission.check_names(names, spec.code.arguments)
    submit.check_modes(options)
    max_fails = None if options.max_fails is None else common.whole(options.max_fails, "--max-fails")
    jobs, name = _jobs(options), job_name(spec)
    at_once = common.positive(options.at_once, "--at-once")
    spec = spec.changed(name=name, sweep=name, at_once=at_once, options=_typed(options))
    hold, prepared = _prepared(options, spec, jobs)
    submit.tell_notes(prepared, seen=not options.dry_run)
    submission.check_worker_groups(prepared)
    if study:
        submission.check_packages(prepared, study.packages)
    runs = Path(prepared.plan.directory).parent
    planned, key = submission.planned(prepared, wanted, study)
    asked = submission.Asked(max_fails, jobs, options.metric, options.maximize, study, key)
    if options.dry_run:
        _look_again(options, asked, prepared, planned, say_it=True)
        say("Nothing was submitted.", sys.stderr)
        return 0
    agreed, printed = options.yes, False
    while True:  # once, or twice where a question is asked: it holds up nobody else
        with record.held(runs, name, prepared.plan.run_id):
            look = _look_again(options, asked, prepared, planned, say_it=not printed)
            if not look.chosen:
                if look.before.runs and not look.progress.under_way:  # a point's number stays while it runs
                    record.save(runs, look.before._replace(points=tuple(look.planned)))
                return 0
            if agreed or not look.stale:
                started = submission.submit(look, asked)
                break
        printed = agreed = True
        question = (
            f"{look.stale} points are stale: the script, the image or the arguments changed. Run these points again?"
        )
        if not common.confirmed(question, yes=False):
            say("Nothing was submitted.", sys.stderr)
            return 1
    status = _wait(options, started, name)
    if hold:
        hold.wait_for_nodes(started[0].id)
    return status


def _check(spec: RunRequest) -> None:
    """Refuse what no sweep can start."""
    if spec.code.form is not Form.SCRIPT:
        hint = "Submit the program without a sweep, or call the program from a Python file."
        raise UsageError("The script of a sweep must be a Python file", place=spec.code.script.name, hint=hint)
    if spec.value("profile"):
        hint = "Profile one point of the sweep: hpcml submit --profile … SCRIPT ARGS…."
        raise UsageError("A sweep cannot record profiler output", place="--profile", hint=hint)


def _prepared(options: Namespace, spec: RunRequest, jobs: int) -> tuple[Any, Prepared]:
    """Return the prepared submission, and the hold in which it starts, None without one."""
    from hpcml.runs import submit as runs_submit
    from hpcml.sweeps import submission

    if getattr(options, "in") is None:
        dry_run = bool(options.dry_run)
        return None, runs_submit.prepare_request(submission.with_python(spec), dry_run=dry_run, may_choose_gpus=True)
    if jobs > 1:
        hint = "Remove --jobs. --at-once N runs N points in parallel."
        raise UsageError("A sweep in a hold is one run, without jobs of its own", place="--jobs", hint=hint)
    hold, spec = features_by_point.only("place in a kept allocation")(options, spec)
    prepared = features_by_point.only("plan in a kept allocation")(hold, submission.with_python(spec))
    return hold, prepared._replace(notes=(*prepared.notes, *prepared.plan.notices))


def _typed(options: Namespace) -> tuple[str, ...]:
    """Return the options that give the points, as they were typed."""
    typed = [(f"--{name}", value) for name in ("grid", "points") for value in getattr(options, name) or ()]
    lists = [(f"--{name}", *values) for name in ("zip", "random") for values in getattr(options, name) or ()]
    return (*itertools.chain(*typed, *lists), *(("--search", *options.search) if options.search else ()))


def _look_again(
    options: Namespace, asked: Asked, prepared: Prepared, planned: list[record.Planned], *, say_it: bool
) -> Choice:
    """Read what the sweep's runs have written, and say which points are to run."""
    from hpcml.runs import submit as runs_submit
    from hpcml.sweeps import submission

    name, runs = prepared.spec.points.sweep, Path(prepared.plan.directory).parent
    before = record.load(runs, name)
    progress = record.progress(runs, before) if before else record.Progress({}, {})
    chosen, more = submission.choose(prepared, planned, progress, options.only_failed)
    if more.spec != prepared.spec or more.settings:
        place = more.spec.place
        settings = [*place.settings, *more.settings]
        loaded = common.load_site(place.site, more.spec.code.cwd, settings, place.line_settings)
        prepared = runs_submit.prepare(loaded, more.spec, prepared.plan.run_id, dry_run=bool(options.dry_run))
    facts = _facts(name, planned, chosen, progress)
    if say_it:
        taken = sorted(progress.ended[point.key].seconds for point in planned if point.key in progress.ended)
        _tell(prepared, facts, chosen, taken, more.words, min(asked.jobs, len(chosen)))
    if options.json and (options.dry_run or not chosen):
        common.print_json({**facts, "more": list(more.words)})
    stale = record.stale(planned, progress)
    return submission.Choice(before or record.Sweep(name), planned, chosen, stale, prepared, progress)


def _jobs(options: Namespace) -> int:
    """Return in how many jobs at once the points are to run."""
    jobs = common.positive(options.jobs, "--jobs")
    if jobs > _MOST_JOBS:
        hint = (
            "Use fewer jobs: each job runs points until no points are left. Slurm rarely runs so many jobs in parallel."
        )
        raise UsageError(f"{jobs} jobs are more than the maximum of {_MOST_JOBS}", place="--jobs", hint=hint)
    return jobs


def _wait(options: Namespace, started: Sequence[directories.Run], name: str) -> int:
    """Say what was submitted, and wait for its end or not."""
    waits = submit.waits_for_end(options)
    if len(started) == 1:
        submit.announce(started[0], as_json=options.json and not waits)
        if not waits and not options.json:
            _say_where_to_look(name)
        if not waits:
            return 0
        status = submit.wait_for_end(started[0], as_json=options.json)
        if not options.json and status != _DETACHED:
            common.say_row("output", f"of each point: hpcml logs {shlex.quote(name)} point:N (N: hpcml sweep table)")
        return status
    if options.json and not waits:
        common.print_json({"runs": [common.submitted(run) for run in started]})
        return 0
    for run in started:
        submit.announce(run, as_json=False)
    if not waits:
        _say_where_to_look(name)
        return 0
    ends = []
    for run in started:
        ends.append(submit.wait_for_end(run, as_json=options.json))
        if ends[-1] == _DETACHED:
            return _DETACHED
    return _end_of_all(started, ends)


def _say_where_to_look(name: str) -> None:
    common.say_row("look", f"hpcml sweep status {shlex.quote(name)}")


def _end_of_all(started: Sequence[directories.Run], ends: Sequence[int]) -> int:
    """Return the exit status of several runs: what became of the points counts, and not a run that others replaced."""
    given = record.given(started[0])
    ended = {key: end for run in started for key, end in record.ends(run).items()}
    if any(key not in ended for key in given.keys):
        return next((end for end in ends if end), 1)
    return int(any(ended[key].failed for key in given.keys))


def _wanted(options: Namespace, study: search.Search | None, seed: int) -> list[points.Point]:
    """Return the points that the command line asks for."""
    given = [option for option in ("grid", "zip", "points", "random") if getattr(options, option)]
    if study and study.draws:
        if given:
            hint = "Write all values as distributions: c=choice(a,b)."
            raise UsageError(f"--search and --{given[0]} cannot be combined", place="--search", hint=hint)
        return study.points()
    here = common.here()
    paths = [here / settings_layers.user_path(text) for text in options.points or ()]
    request = points.Request(options.grid or (), options.zip or (), paths, options.random or (), seed)
    if text := points.drawn(request):
        note(text)
    return points.points(request)


def _tell(
    prepared: Prepared,
    facts: Mapping[str, Any],
    chosen: Sequence[record.Planned],
    taken: Sequence[float],
    more: Sequence[str],
    jobs: int,
) -> None:
    """Say which points there are, which of them are to run, and what that may cost in so many jobs.

    ``facts`` are those of :func:`_facts`, ``taken`` the seconds that the ended points took, in order.
    """
    for position, one in enumerate(chosen[:_FIRST]):
        common.say_row("" if position else "points", points.shown(one.point))
    if len(chosen) > _FIRST:
        common.say_row("", f"… and {counted(len(chosen) - _FIRST, 'more point')}")
    words = {"ok": "done", "pruned": "pruned", "failed": "failed", "under_way": "under way"}
    counts = [f"{facts[key]} {word}" for key, word in words.items() if facts[key]]
    together = min(jobs * prepared.plan.inside.points.at_once, len(chosen))
    parallel = [f"{together} at the same time"] if together > 1 else []
    if len(chosen) > 1 == together:
        parallel = ["one after another in one job (several at the same time: --at-once N or --jobs N)"]
    common.say_row("count", ", ".join([counted(facts["points"], "point"), *counts, f"{len(chosen)} to run", *parallel]))
    if not chosen:
        if facts["failed"] and not facts["under_way"]:
            common.say_row("next", "to run failed points again, add --only-failed")
        return
    for text in more:
        common.say_row("again", text)
    _tell_cost(prepared, len(chosen), taken, jobs)


def _tell_cost(prepared: Prepared, count: int, taken: Sequence[float], jobs: int) -> None:
    """Say what so many points may cost in so many jobs; ``taken`` are the seconds that others took."""
    inside = prepared.plan.inside
    nodes = f"{f'{jobs} jobs of ' if jobs > 1 else ''}{inside.job.nodes} node{'' if inside.job.nodes == 1 else 's'}"
    if prepared.plan.hold:
        common.say_row("cost", f"none beyond the hold's: {nodes} of the hold until the last point ends")
    elif not inside.job.one_machine:
        submit.tell_forecast(prepared, whole=True, jobs=jobs)
    elif inside.job.time_limit:
        hours = jobs * inside.job.nodes * inside.job.time_limit / 3600
        common.say_row("cost", f"at most {hours:.3g} node-hours: {nodes} for {format_seconds(inside.job.time_limit)}")
    else:
        common.say_row("cost", f"{nodes} until the last point ends (no time limit)")
    if taken:
        middle = taken[len(taken) // 2]
        hours = inside.job.nodes * middle * count / 3600
        common.say_row(
            "",
            f"about {hours:.3g} node-hours if each point takes {format_seconds(middle)} (the median of ended points)",
        )


def _facts(
    name: str, planned: Sequence[record.Planned], chosen: Sequence[record.Planned], progress: record.Progress
) -> dict[str, Any]:
    ended = [progress.ended[point.key] for point in planned if point.key in progress.ended]
    return {
        "sweep": name,
        "points": len(planned),
        "ok": sum(end.state == "ok" for end in ended),
        "pruned": sum(end.state == "pruned" for end in ended),
        "failed": sum(end.failed for end in ended),
        "under_way": sum(point.key in progress.under_way for point in planned),
        "to_run": [{value.name: value.typed for value in point.point} for point in chosen],
    }


# -- a sweep that is there ---------------------------------------------------------------------------------------------


def _look(options: Namespace, verb: str, names: list[str]) -> int:
    """Show how sweeps stand, or one sweep's table or picture, or cancel it."""
    runs = common.runs_folder(options)
    if not names and verb in ("table", "plot") and (newest := record.newest(runs)):
        names = [newest]
        say_fitted(newest, sys.stderr, first="The newest sweep: ")
    if len(names) > 1 or (verb != "status" and not names):
        known = ", ".join(record.names(runs)[:_FIRST]) or "none"
        hint = f"Type hpcml sweep {verb} NAME. Names of sweeps in {runs}: {known}."
        raise UsageError("Add the NAME of one sweep", place=f"hpcml sweep {verb}", hint=hint)
    if verb != "status":
        return {"table": _table, "plot": _plot, "cancel": _cancel, "rm": _rm}[verb](options, runs, names[0])
    sweeps = [record.find(runs, name) for name in names] or [record.find(runs, name) for name in record.names(runs)]
    if not sweeps:
        say("You have no sweeps yet. To start one, see hpcml sweep --help.", sys.stderr)
    answers = []
    for sweep in sweeps:
        progress = record.progress(runs, sweep)
        rows = _rows(options, runs, sweep, progress)
        omitted = results.omitted(sweep, progress)
        answers.append({"sweep": sweep.name, **_counts(rows), "omitted": omitted, "runs": list(sweep.runs)})
        if options.json:
            continue
        say_fitted(results.counts(rows), sys.stdout, first=f"{sweep.name}  ", rest="  ")
        _tell_omitted(omitted, sys.stdout, "  ")
        for text in progress.problems:
            say_fitted(text, sys.stdout, first="  ", rest="    ")
        if names:
            _tell_causes(rows)
            say_fitted(" ".join(sweep.runs[-4:]), sys.stdout, first="  runs     ", rest=" " * 11)
    if options.json:
        common.print_json(answers[0] if names else answers)
    return 0


def _tell_omitted(number: int, stream: TextIO, first: str = "") -> None:
    """Say how many points of the sweep are not shown because its last command did not ask for them."""
    if number:
        text = f"Omitted: {counted(number, 'point')} of earlier commands, or of an earlier version of the script."
        say_fitted(text, stream, first=first, rest=f"{first}  ")


def _counts(rows: Sequence[results.Row]) -> dict[str, int]:
    return {"points": len(rows), **{state: sum(row.state == state for row in rows) for state in results.STATES}}


def _cancel(options: Namespace, runs: Path, name: str) -> int:
    """Cancel all runs of a sweep that go on, and say how its points stand."""
    from hpcml.cli import cancel_rm

    sweep = record.find(runs, name)
    answers, failed = cancel_rm.cancel_each(cancel_rm.going(runs, sweep.runs))
    rows = _rows(options, runs, sweep, record.progress(runs, sweep))
    if options.json:
        common.print_json({"sweep": name, **_counts(rows), "cancelled": answers})
        return failed
    if not answers:
        say("The sweep has no active run.", sys.stderr)
    cancel_rm.say_answers(answers)
    say_fitted(results.counts(rows), sys.stdout, first=f"{name}  ", rest="  ")
    return failed


def _rm(options: Namespace, runs: Path, name: str) -> int:
    """Remove all runs of a sweep, which must have ended, with all their files; then the sweep itself."""
    from hpcml.cli import cancel_rm

    sweep, folder = record.find(runs, name), record.path_of(runs, name).parent
    ids = [run_id for run_id in sweep.runs if safe_files.is_own_folder(runs / run_id)]
    removal = cancel_rm.removal_of_all(options, runs, ids)
    what = f"the sweep '{name}' with {removal.summary}"
    if options.dry_run:
        say(f"Without --dry-run, hpcml would remove {what}.", sys.stderr)
    elif not common.confirmed(f"Remove {what}?", options.yes):
        say("Nothing was removed.", sys.stderr)
        return 1
    else:
        with record.held(runs, name, folder.name):
            if record.find(runs, name).runs != sweep.runs:
                raise UsageError("The sweep was continued meanwhile", place=name, hint="Run your command again.")
            removal.carry_out()
            directories.remove_folder(folder)
        say(f"Removed {what}.", sys.stderr)
    if options.json:
        key = "would_remove" if options.dry_run else "removed"
        common.print_json({"sweep": name, key: [path.name for path in removal.runs], "bytes": removal.total})
    return 0


def _rows(options: Namespace, runs: Path, sweep: record.Sweep, progress: record.Progress) -> list[results.Row]:
    metric = options.metric or results.metric_of(sweep, progress)
    return results.rows(sweep, progress, str(runs), metric, maximize=options.maximize or sweep.maximize)


def _table(options: Namespace, runs: Path, name: str) -> int:
    sweep = record.find(runs, name)
    progress = record.progress(runs, sweep)
    rows = _rows(options, runs, sweep, progress)
    _tell_omitted(results.omitted(sweep, progress), sys.stderr)
    if options.json:
        common.print_json([row._asdict() for row in rows])
    elif options.csv == "-":
        for line in results.as_csv(rows).splitlines():
            say(line)
    elif options.csv:
        _write(_target(options, "--csv", options.csv), results.as_csv(rows))
    else:
        metric = options.metric or results.metric_of(sweep, progress)
        for line in _lines(rows, metric, columns(sys.stdout)):
            say(line)
        first = "Largest" if options.maximize or sweep.maximize else "Smallest"
        order = f" {first} {metric} first{' (--maximize: largest)' * (first == 'Smallest')}." if metric else ""
        say_fitted(f"{results.counts(rows)}.{order}", sys.stderr)
        if not metric and any(row.state == "ok" for row in rows):
            text = "No point has reported a metric. To report one, call hpcml.run.report(NAME=VALUE) in the script."
            say_fitted(text, sys.stderr)
    return 0


def _plot(options: Namespace, runs: Path, name: str) -> int:
    """Draw the sweep into a file."""
    sweep = record.find(runs, name)
    progress = record.progress(runs, sweep)
    metric = options.metric or results.metric_of(sweep, progress)
    rows = _rows(options, runs, sweep, progress)
    _tell_omitted(results.omitted(sweep, progress), sys.stderr)
    printed, maximize = options.output == "-", options.maximize or sweep.maximize
    path = Path() if printed else _target(options, "--output", options.output or f"{name}.svg")
    if not printed and path.suffix not in _FORMS:
        raise UsageError(
            "The file name does not end in .svg, .pdf or .png",
            place=f"--output {path}",
            hint="Write NAME.svg.",
        )
    picture = results.picture(name, rows, metric, maximize=maximize, form=path.suffix[1:] or "svg")
    if printed:
        Raw(sys.stdout).write(picture, last=True)
    else:
        _write(path, picture)
    return 0


def _target(options: Namespace, option: str, text: str) -> Path:
    """Return the file that an option names; a laptop's is not on this machine."""
    if options.caller:
        printed = "plot NAME -o - > NAME.svg" if option == "--output" else "table NAME --csv > NAME.csv"
        hint = f"To write the file on your laptop, type: hpcml --host HOST sweep {printed}."
        raise UsageError("The file would be written on the login node", place=option, hint=hint)
    path = common.here() / settings_layers.user_path(text)
    if path.is_dir():
        raise UsageError("The path is a folder", place=f"{option} {text}", hint="Name a file in the folder.")
    return path


def _write(path: Path, content: str | bytes) -> None:
    """Put a file in place, whole or not at all, and say where it is."""
    with directories.storage(path):
        safe_files.write(path, content, 0o666 & ~settings_layers.user_umask())
    say(common.typed(path, sys.stdout))


def _lines(rows: Sequence[results.Row], metric: str, width: int) -> list[str]:
    """Return the table for a terminal: metric, state, time, point; below what failed its cause."""
    if not rows:
        return []
    cells = [(metric, "state", "time", "N", "point", "")]
    for row in rows:
        value = row.metrics.get(metric)
        text = "nan" if metric in row.metrics and value is None else "" if value is None else f"{value:.6g}"
        spent = "" if row.seconds is None else format_seconds(row.seconds)
        pruned = row.state == "pruned" and row.cause
        cells.append((text, pruned or row.state, spent, str(row.number), row.point, "" if pruned else row.cause))
    wide = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = []
    for reported, state, spent, number, point, cause in cells:
        first = f"{reported:>{wide[0]}}  " if wide[0] else ""
        lines.append(f"{first}{state:<{wide[1]}}  {spent:>{wide[2]}}  {number:>{wide[3]}}  {point}")
        lines += [f"  {cause}"] if cause else []
    return [fit(shown(line), width) if width else shown(line) for line in lines]


def _tell_causes(rows: Sequence[results.Row]) -> None:
    for cause, kind, number, example in results.causes(rows):
        how = f"failed ({kind})" if kind else "failed"
        say_fitted(f"{number} {how}: {cause} (e.g. {example})", sys.stdout, first="  ", rest="    ")
