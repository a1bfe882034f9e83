"""``hpcml submit``: from the options to a run, and to its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpcml import features_by_point, safe_files, typed_json
from hpcml.cli import commands, common
from hpcml.errors import CANCELLED, MEANING, NO_PROGRESS, STOPPED, HpcmlError, UsageError
from hpcml.options.parser import add_to
from hpcml.options.reading import request_of
from hpcml.options.table import TAKES_VALUE
from hpcml.runs import directories, script_or_program
from hpcml.sites import settings_layers
from hpcml.states import Phase
from hpcml.terminal import Raw, note, say, say_fitted, say_lines, say_message
from hpcml.workload_forms import Form

if TYPE_CHECKING:  # each command imports what it needs: `submit` is to be fast
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.options.translate.batch_script import Translation
    from hpcml.request.record import RunRequest
    from hpcml.runs import status as run_status
    from hpcml.runs import submit as submission

_OF_FAILED_RANK = 40  # lines of its log
_BEGIN_WITH_MEANING = (CANCELLED, NO_PROGRESS, STOPPED)  # the statuses of ends whose messages do so
_PYTHON = (".py", ".ipynb")  # with these ends a file is no program, behind `--` too


def add_options(parser: Parser, verb: str = "submit") -> None:
    """Add the options of a run that a verb takes."""
    parser.epilog = (
        "Write hpcml's options before SCRIPT, and the script's arguments after SCRIPT. "
        "All words after -- belong to the script. SCRIPT can also be -m package.module, "
        "or -- ./program (not Python). "
        "Without --ranks the script starts once, on the first node. "
        "hpcml help checkpoints shows how to save work and continue later."
    )
    parser.suggest = lambda _given, _known, unknown: _suggest(unknown[0], verb)
    add_to(parser, verb)


def _suggest(word: str, verb: str) -> str:
    """Return the hint where an option of the script or of sbatch belongs."""
    option = word.partition("=")[0]
    script = f"If {option} is an option of the script, write it after the script. "
    slurm = f"If {option} is an option of sbatch, write --sbatch={word}. " if word.startswith("--") else ""
    has_script = commands.COMMANDS[verb].takes == commands.SCRIPT
    return f"{script if has_script else ''}{slurm}To list hpcml's options: hpcml {verb} --help."


def split_script(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind the verb into hpcml's own and the script with all that follows it.

    The script of ``-m MODULE`` begins with ``-m``, and that of ``-- PROGRAM`` with ``--``.
    """
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            script = list(arguments[position + 1 :])
            if script and script[0].endswith(_PYTHON):  # all that follows it is the script's
                script[1:1] = ["--"] if script[1:] else []
                return list(arguments[:position]), script
            return list(arguments[:position]), ["--", *script] if script else []
        if word == "-m":
            return list(arguments[:position]), list(arguments[position:])
        if not word.startswith("-") or word == "-":
            return list(arguments[:position]), list(arguments[position:])
        position += 2 if TAKES_VALUE.get(word) else 1
    return list(arguments), []


def run(options: Namespace) -> int:
    """Submit the script of the command line."""
    return start(options, script_spec(options), may_choose_gpus=True)


def script_spec(options: Namespace) -> RunRequest:
    """Return the request for the script of the command line; one that a laptop sends is received before."""
    from hpcml.runs.submit import script_request

    arguments = options.script_words if options.caller is None else options.caller.stage(options.script_words)
    for check in features_by_point.added("check of arguments"):
        check(arguments, common.here(), options.parser.prog)
    if getattr(options, "translate", False):
        from hpcml.runs import translated

        folder = options.caller.folder_of_script if options.caller else None
        spec, made = translated.request(vars(options), arguments, options.parser, folder)
        _show_translation(made, options)
    else:
        spec = script_request(vars(options), arguments, options.parser)
    return spec if options.caller is None else options.caller.spec(spec)


def _show_translation(made: Translation, options: Namespace) -> None:
    """Print the line that does the same as a batch script, and for a dry run where each line of it went."""
    stream = sys.stdout if options.dry_run else sys.stderr
    if options.json or options.dry_run == "script":
        return
    say(f"in hpcml   {made.line}", stream)  # whole: it is to be copied
    for row in made.rows if options.dry_run else ():
        say_fitted(f"{row.text} → {row.goes_to}", stream, first=f"line {row.number:<5} ", rest=" " * 11)


def service_spec(options: Namespace, form: Form) -> RunRequest:
    """Return the request for a program of hpcml's in the place of a script."""
    return request_of(vars(options), script_or_program.code([form.service], common.here())._replace(form=form))


def start(options: Namespace, spec: RunRequest, *, may_choose_gpus: bool = False) -> int:
    """Submit a request, or do what the options want instead, and wait for its end or not.

    ``may_choose_gpus``: the script's text may choose GPUs, if the request does not.
    """
    from hpcml.runs import submit as submission

    check_modes(options)
    prepared = submission.prepare_request(
        spec, by_hand=options.prepare, dry_run=bool(options.dry_run), may_choose_gpus=may_choose_gpus
    )
    tell_notes(prepared, seen=not (options.dry_run or options.check))
    if options.dry_run:
        show(options, prepared)
    elif not options.json and not options.check:
        tell_forecast(prepared, whole=False)
    if options.dry_run or options.check:
        _look_at_image(submission.check_image(prepared))
        return _check(prepared, options) if options.check else 0
    return hand_over(options, prepared)


def show(options: Namespace, prepared: submission.Prepared, *, asks: bool = True) -> None:
    """Print what would be submitted: a summary, the batch script, or the whole plan as JSON.

    ``asks``: it asks for an allocation, which may cost something.
    """
    if options.json:
        common.print_json(typed_json.plain(prepared.plan))
    elif options.dry_run == "script":
        Raw(sys.stdout).write(prepared.script.encode(), last=True)
        if asks:
            tell_forecast(prepared, whole=True)
    else:
        from hpcml.cli import dry_run

        dry_run.show(prepared, vars(options), _forecast(prepared, whole=True) if asks else [])


def hand_over(options: Namespace, prepared: submission.Prepared) -> int:
    """Submit what is prepared, and wait for its end or not."""
    from hpcml.runs import submit as submission

    if prepared.plan.array:
        from hpcml.cli import submit_array

        return submit_array.hand_over(options, prepared, waits=waits_for_end(options))
    with options.caller.handing_over(prepared.plan.run_id) if options.caller else contextlib.nullcontext():
        run = submission.submit(prepared, by_hand=options.prepare)
    if options.prepare:
        _announce_line(run, as_json=options.json)
        return 0
    waits = waits_for_end(options)
    announce(run, as_json=options.json and not waits)  # with both, the one JSON answer is how the run ended
    if not waits and not options.json:
        wait, logs, status, cancel = (
            common.from_host(common.host_of(options), f"hpcml {verb} {run.id}")
            for verb in ("wait", "logs", "status", "cancel")
        )
        text = f"{wait}, then {logs}"
        if (traits := prepared.spec.code.form.traits).web_service:
            ready = f"When {traits.title} is ready, {status} prints the command to open {traits.title}."
            text = f"{ready} {cancel} ends the session."
        if prepared.spec.code.form is Form.HOLD:
            start = common.from_host(common.host_of(options), f"hpcml run --in {run.id} SCRIPT")
            text = f"{start}; {cancel} ends the hold."
        common.say_row("next", text)
    return wait_for_end(run, as_json=options.json, host=common.host_of(options)) if waits else 0


def tell_forecast(prepared: submission.Prepared, *, whole: bool, jobs: int = 1) -> None:
    """Say what a submission of so many jobs asks for, what it costs at most, and when it may start."""
    from hpcml.runs import gpus_chosen

    lines = _forecast(prepared, whole=whole, jobs=jobs) or gpus_chosen.lines(prepared.plan.gpus_because)
    if prepared.plan.python_from and not whole and not prepared.plan.inside.job.image:
        lines = [*lines, ("python", f"{prepared.plan.python} ({prepared.plan.python_from})")]
    for title, text in lines:
        common.say_row(title, text)


def _forecast(prepared: submission.Prepared, *, whole: bool, jobs: int = 1) -> list[tuple[str, str]]:
    """Return the titles and texts of :func:`tell_forecast`; none on this machine."""
    import datetime

    from hpcml import schedulers
    from hpcml.runs import forecast, gpus_chosen

    if schedulers.get(prepared.plan.scheduler).ONE_MACHINE:
        return []
    estimate = forecast.look(prepared, whole=whole, jobs=max(jobs, len(prepared.plan.array)))
    asks, *others = forecast.lines(estimate, datetime.datetime.now(), whole=whole)  # noqa: DTZ005 - as sbatch tells it
    return [asks, *(("", text) for _, text in gpus_chosen.lines(prepared.plan.gpus_because)), *others]


def _look_at_image(table: dict[str, object]) -> None:
    """Say what is to be noted of an image that is not refused, and what only the nodes can tell."""
    notes = table.get("notes")
    for text in notes if isinstance(notes, list) else ():
        note(text)
    if table:
        note("hpcml read the file of the image but did not start the image (to start the image: hpcml image check)")


def check_modes(options: Namespace) -> None:
    """Raise UsageError if two options say what becomes of a submission, or one is for runs in a hold only."""
    modes = ("dry-run", "prepare", "check", "wait", "detach")
    chosen = [f"--{mode}" for mode in modes if getattr(options, mode.replace("-", "_"))]
    if len(chosen) > 1:
        raise UsageError(
            f"{' and '.join(chosen)} cannot be combined", place="hpcml submit", hint="Use only one of these options."
        )
    if getattr(options, "no_wait", False) and not getattr(options, "in"):
        raise UsageError("--no-wait needs --in", place="--no-wait", hint="Add --in RUN.")


def _check(prepared: submission.Prepared, options: Namespace) -> int:
    from hpcml.runs import submit as submission

    answer = submission.check(prepared)
    if options.json:
        common.print_json({"accepted": True, "answer": answer, "reasons": list(prepared.plan.reasons)})
    else:
        say_fitted(f"Slurm would accept the job: {answer}.", sys.stdout)
        for reason in prepared.plan.reasons:
            say_fitted(reason, sys.stdout, first="  ", rest="    ")
    return 0


def tell_notes(prepared: submission.Prepared, *, seen: bool) -> None:
    """Show all notes on a request, or of one that is submitted (``seen``) those that its folder has not shown yet."""
    from hpcml.runs import notes

    if seen:
        notes.show(prepared.notes, prepared.always, prepared.project_notes)
        return
    for text in dict.fromkeys(prepared.notes):
        note(text)


def announce(run: directories.Run, *, as_json: bool) -> None:
    """Say which run it is and where, on stderr, or as JSON, and the notes that were not shown before."""
    assert run.submission is not None
    if as_json:
        common.print_json(common.submitted(run))
        return
    job = f" job {run.job}" if run.job else ""
    folder = common.typed(run.paths.directory, sys.stderr)
    common.say_row("run", f"{run.id}{job}  {folder}")
    if run.submission.found_again:
        text = "Slurm's answer was lost, but hpcml found the job by the job's comment"
        common.say_row("submission", text)
    from hpcml.runs import notes

    notes.show_submitted(run.submission)


def _announce_line(run: directories.Run, *, as_json: bool) -> None:
    """Say which run was prepared on stderr, and on stdout the line that submits it, alone."""
    announce(run, as_json=as_json)
    if run.submission and not as_json:
        Raw(sys.stdout).write(f"{run.submission.line}\n".encode(), last=True)


def waits_for_end(options: Namespace) -> bool:
    """Whether the command waits for the end of what it submits: as asked, else on a terminal."""
    terminal = sys.stderr.isatty() and sys.stdout.isatty()
    return bool(options.wait or (not options.detach and not options.json and terminal))


def wait_for_end(run: directories.Run, *, as_json: bool, host: str = "") -> int:
    """Show the run until it ends, pass on its output, and return its exit status; Ctrl-C detaches.

    ``host`` is how the laptop that sent the command names this machine.
    """
    from hpcml.cli.waiting_display import Progress, Tail
    from hpcml.runs import handle, waiting

    output = Tail(run.paths.script_log, sys.stdout, of_user=True)
    progress = Progress(sys.stderr, settings_layers.process_environment(), output)
    pass_on = (lambda: None) if as_json else output.copy_marked

    def before() -> None:
        progress.fit()
        if not as_json:
            output.mark()

    try:
        last = None
        for last in waiting.follow(run, pass_on, before=before):
            if last.phase == Phase.ENDED and not as_json:  # all that the script wrote stands before its end
                progress.show_past(last)
                while output.copy():
                    pass
                _show_failed_rank(run, last, progress.clear)
            progress.show(last)
    except KeyboardInterrupt:
        progress.clear()
        say_lines(
            f"\nDetached; the run continues.\n  follow it  hpcml logs -f {run.id}\n  end it     hpcml cancel {run.id}",
            sys.stderr,
        )
        return 130
    assert last is not None
    if last.over and not as_json:
        _tell_files(run, last, host)
    _tell_end(run, last, as_json=as_json)  # a failure's cause and the next step stand last
    if as_json:
        common.print_json(last.as_json())
    return handle.exit_status_of(last)


def _show_failed_rank(run: directories.Run, last: run_status.Status, clear: Callable[[], None]) -> None:
    """Pass on the last lines of the rank that failed first; those of rank 0 have been passed on."""
    from hpcml.runs import merged_rank_logs

    if not last.ending.rank:
        return
    clear()
    rank, node = last.ending.rank, last.ending.node
    say(f"  rank {rank:<6} last lines of its log on {node} (all lines: hpcml logs {run.id} rank:{rank})", sys.stderr)
    lines = safe_files.tail(merged_rank_logs.of_failed(run, last), _OF_FAILED_RANK)
    Raw(sys.stdout, of_user=True).write("".join(f"{line}\n" for line in lines).encode(), last=True)


def _tell_files(run: directories.Run, last: run_status.Status, host: str) -> None:
    """Say where a run's results, report, tasks' output and profiles are, and what it could have asked less of."""
    from hpcml.runs import status

    lines = [("results", common.typed(run.paths.out, sys.stderr))] if status.has_results(run) else []
    lines += [
        (title, common.typed(path, sys.stderr)) for title, path in features_by_point.collected("files of an end", run)
    ]
    lines += [("fetch", common.from_host(host, f"hpcml fetch {run.id}"))] if host and lines else []
    lines += features_by_point.collected("advice at an end", run, last)
    for title, text in lines:
        common.say_row(title, text)
    if "task-output" in last.progress.times:
        say(f"  tasks      output of the Dask tasks: hpcml logs {run.id} worker", sys.stderr)
    for title, command in features_by_point.collected("commands of an end", run):
        say(f"  {title:<11}{common.from_host(host, command)}", sys.stderr)  # whole: it is to be copied


def _tell_end(run: directories.Run, last: run_status.Status, *, as_json: bool) -> None:
    """Say why a run failed and what to do, where the line of its end has not said it.

    That is so where it is a sentence of hpcml's own, or where the script chose its number.
    """
    if last.ending.by != "script":
        explain(last)
    if not last.exit_status or as_json:
        return
    for tell in features_by_point.added("cause of an end"):
        tell(run, last)
    if last.ending.by == "script" and last.hint:
        say_message(f"hpcml: {last.hint}")


def explain(last: run_status.Status) -> None:
    """Say why hpcml or Slurm ended a run; the script's own end speaks for itself."""
    status = last.exit_status or 0
    meaning = MEANING.get(status, "")
    if last.ending.by == "user" and not last.hint and not last.ending.quote:
        return  # the last line said it all: the run was cancelled
    error = HpcmlError(
        last.message[:1].upper() + last.message[1:],
        place=f"status {status}" + (f": {meaning}" if status not in _BEGIN_WITH_MEANING else "") if meaning else "",
        hint=last.hint,
        quote=last.ending.quote,
    )
    say_message(f"hpcml: {error}")
