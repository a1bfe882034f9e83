"""``hpcml submit`` and ``hpcml plan``: from the options to a run, and to its end."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from hpcml.cli import runs as commands
from hpcml.errors import (
    INTERNAL,
    MEANING,
    HpcmlError,
    UsageError,
)
from hpcml.plan.request import JobSpec
from hpcml.runs import directories
from hpcml.sites import layers
from hpcml.terminal import Raw, note, say, say_lines

if TYPE_CHECKING:  # each command imports what it needs: `submit` is to be fast
    from argparse import Namespace

    from hpcml.remote.server import Caller
    from hpcml.runs import status as watch
    from hpcml.runs import submit as submission

_COUNTS = ("nodes", "gpus_per_node", "cpus_per_node")


def submit(options: Namespace, script: list[str], *, only_plan: bool, spec: JobSpec | None = None) -> int:
    """``hpcml submit`` and ``hpcml plan``."""
    from hpcml.runs import submit as submission
    from hpcml.schedulers import slurm

    environment = layers.process_environment()
    if not only_plan:
        _check_modes(options)
    caller: Caller | None = getattr(options, "caller", None)
    spec = spec or make_spec(options, script)
    spec = caller.spec(spec) if caller else spec
    loaded = commands.load_site(options.site or "", environment, spec.cwd, options.set or ())
    prepared = submission.prepare(loaded, spec, environment)
    for words in prepared.notes:
        note(words)
    if only_plan:
        commands.print_json(layers.as_table(prepared.plan))
        return 0
    if prepared.plan.slurm and (ignored := slurm.ignored_defaults(environment)):
        words = "give the option, or write [defaults] into the site's settings"
        note(f"{', '.join(ignored)} do not count here: {words}")
    for notice in prepared.plan.notices:
        note(notice)
    if options.dry_run:
        Raw(sys.stdout).write(prepared.script.encode(), last=True)
        _look_at_image(submission.check_image(prepared.plan, loaded))
        return 0
    if options.check:
        _look_at_image(submission.check_image(prepared.plan, loaded))
        return _check(prepared, options, environment)
    with caller.handing_over(prepared.plan.run_id) if caller else contextlib.nullcontext():
        run = submission.submit(prepared, loaded, spec, environment)
    wait = options.wait or (not options.detach and not options.json and sys.stderr.isatty() and sys.stdout.isatty())
    _announce(run, as_json=options.json and not wait)  # with both, the one JSON answer is how the run ended
    return _wait(run, environment, as_json=options.json) if wait else 0


def _look_at_image(known: dict[str, object]) -> None:
    """Say what is to be noted of an image that is not refused, and what only the nodes can tell."""
    notes = known.get("notes")
    for one in notes if isinstance(notes, list) else ():
        note(f"the image: {one}")
    if known:
        note("the image's file was read and nothing started; hpcml image check starts it")


def _check_modes(options: Namespace) -> None:
    chosen = [
        f"--{flag}" for flag in ("dry-run", "check", "wait", "detach") if getattr(options, flag.replace("-", "_"))
    ]
    if options.dry_run and options.json:
        chosen.append("--json")
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other", place="hpcml submit", hint="Give one of them.")


def make_spec(options: Namespace, script: list[str]) -> JobSpec:
    """Return the request; an option that was not given keeps the record's own "not said"."""
    said = {name: value for name in JobSpec._fields if (value := getattr(options, name, None)) is not None}
    for name, value in said.items():
        option = f"--{name.replace('_', '-')}"
        if name in _COUNTS:
            said[name] = commands.whole(value, option)
        elif not value.strip():
            raise UsageError(f"{option} is empty", place="hpcml submit", hint="Leave it out, or give it a value.")
    here = commands.here()
    path = here / script[0]
    sources = tuple(dict.fromkeys((path.parent.resolve(), path.resolve().parent)))
    return JobSpec(script=path, arguments=tuple(script[1:]), cwd=here, sources=sources, **said)


def _check(prepared: submission.Prepared, options: Namespace, environment: dict[str, str]) -> int:
    from hpcml.runs import submit as submission

    if not prepared.plan.slurm:
        raise UsageError("The local site has no Slurm to ask", place="--check", hint="Leave --check out.")
    answer = submission.check(prepared, environment)
    if options.json:
        commands.print_json({"accepted": True, "answer": answer, "reasons": list(prepared.plan.reasons)})
    else:
        say(f"Slurm would take it: {answer}.")
        for reason in prepared.plan.reasons:
            say(f"  {reason}")
    return 0


def _announce(run: directories.Run, *, as_json: bool) -> None:
    if as_json:
        commands.print_json({"run": run.id, "directory": str(run.paths.directory), **run.submission})
        return
    job = f" job {run.job}" if run.job else ""
    say(f"  run        {run.id}{job}  {run.paths.directory}", sys.stderr)
    if run.submission.get("found_again"):
        say("  submission Slurm's answer was lost; the job was found again by its comment", sys.stderr)
    for found in run.submission.get("notes", ()):
        note(str(found))


def _wait(run: directories.Run, environment: dict[str, str], *, as_json: bool) -> int:
    """Show the run until it ends, pass on its output, and return its exit status; Ctrl-C detaches."""
    from hpcml.cli.progress import Progress, Tail
    from hpcml.runs import status as watch

    output = Tail(run.paths.driver_log, sys.stdout, own=True)
    progress = Progress(sys.stderr, environment, output)
    pass_on, mark = (_nothing, _nothing) if as_json else (output.copy_marked, output.mark)
    try:
        last = None
        for last in watch.follow(run, environment, pass_on, before=mark):
            if last.state == "ended" and not as_json:  # all that the script wrote stands before its end
                progress.show_past(last)
                while output.copy():
                    pass
            progress.show(last)
    except KeyboardInterrupt:
        progress.clear()
        say("", sys.stderr)
        say(
            f"Detached; the run goes on. Back to it: hpcml logs -f {run.id}; end it: hpcml cancel {run.id}.", sys.stderr
        )
        return 130
    assert last is not None
    if last.by != "script":
        _explain(last)
    if as_json:
        commands.print_json(last.as_json())
    return INTERNAL if last.exit_status is None else last.exit_status


def _nothing() -> None:
    """Do what --json wants of the script's output."""


def _explain(last: watch.Status) -> None:
    """Say why hpcml or Slurm ended a run; the script's own end speaks for itself."""
    status = last.exit_status or 0
    meaning = MEANING.get(status, "")
    error = HpcmlError(
        last.words[:1].upper() + last.words[1:],
        place=f"status {status}: {meaning}" if meaning else "",
        hint=last.hint,
        quote=tuple(last.quote),
    )
    say_lines(f"hpcml: {error}", sys.stderr)
