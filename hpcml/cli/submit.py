"""``hpcml submit``: from the options to a run, and to its end."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.cli import common, script_options, variables
from hpcml.errors import MEANING, HpcmlError, UsageError
from hpcml.request import record
from hpcml.request.record import Awaited, RunRequest, measure
from hpcml.runs import directories, programs
from hpcml.schedulers.sbatch_options import directive, gpus
from hpcml.sites import layers
from hpcml.terminal import Raw, note, say, say_fitted, say_lines, say_message

if TYPE_CHECKING:  # each command imports what it needs: `submit` is to be fast
    from argparse import Action, ArgumentParser, Namespace

    from hpcml.runs import status as run_status
    from hpcml.runs import submit as submission
    from hpcml.sites.schema import Site

_COUNTS = ("nodes", "gpus_per_node", "cpus_per_node", "max_restarts")
_MEASURES = ("memory_per_node", "time")
EXCLUDE_FAILED = "slurm.exclude_failed"  # where an option of a request comes from
_PYTHON = (".py", ".ipynb")  # with these ends a file is no program, behind `--` too
# Options by group; those that take a value are followed by it or by `=VALUE`.
VALUES = {
    "where": {
        "--site": "the machine's profile, of hpcml site ls (default: HPCML_SITE, else the one found here)",
        "--account": "Slurm account to charge (default: defaults.account of the profile)",
        "--partition": "Slurm partition (default: defaults.partition if the request fits it, else the first that fits)",
        "--qos": "Slurm quality of service (default: defaults.qos, else the partition's)",
        "--dependency": "Slurm dependency, e.g. afterok:123",
        "--after": "start when RUN has ended well; RUN:any: has ended; RUN:fail: failed (repeatable: all of them)",
    },
    "how much": {
        "--nodes": "how many nodes (default: defaults.nodes)",
        "--time": "time limit: 30 (minutes), 2:00:00, 1-12:00:00, 90m (default: defaults.time, else the partition's)",
        "--gpus-per-node": "GPUs on each node, a worker for each: 4, or a100:4 (default: defaults.gpus_per_node)",
        "--cpus-per-node": "CPUs on each node "
        "(default: resources.cpus_per_node, else the partition's, or some GPUs' share of them; else Slurm's)",
        "--memory-per-node": "memory on each node: 120G, or MiB "
        "(default: resources.memory_per_node, else the partition's, or some GPUs' share of it; else Slurm's)",
    },
    "how": {
        "--name": "the run's name: at most 64 letters, digits, . _ - (default: the script's)",
        "--set": "KEY=VALUE of the profile, e.g. workers.per_node=4 (repeatable)",
        "--protocol": "Dask's protocol: auto, ucx or tcp, always with TLS (default: network.protocol)",
        "--gpu-mode": "what GPU workers are for: dask, or polars for cuDF-Polars' DaskEngine (default: gpu.mode)",
        "--image": "run all roles inside this Apptainer image (default: runtime.image, if runtime.kind is image)",
        "--env": "NAME=VALUE for scheduler, workers and script, or NAME as it is here (repeatable)",
        "--env-file": "file of such lines, with comments behind '#'; --env counts above it (repeatable)",
        "--profile": "record a profile: dask, memray, nsys, rmm, several with commas (repeatable)",
        "--max-restarts": "with --until-done: how many attempts may follow the first (20)",
        "--max-node-hours": "with --until-done: begin no attempt that could take all of them together beyond so many",
    },
    "passed to Slurm": {
        "--constraint": "features that the nodes must have",
        "--exclude": "nodes not to take",
        "--nodelist": "nodes to take",
        "--reservation": "reservation to run in",
        "--mail-user": "who gets mail",
        "--mail-type": "when, e.g. END,FAIL",
        "--begin": "not before, e.g. 20:00 or now+1hour",
        "--gres": "gpu:4 or gpu:a100:4, as --gpus-per-node; other resources beside it",
        "--sbatch": "any other option of sbatch in its long form: --sbatch=--licenses=foo (repeatable)",
    },
}
# Slurm's own words for the same.
ALSO = {
    "--account": ("-A",),
    "--partition": ("-p",),
    "--qos": ("-q",),
    "--dependency": ("-d",),
    "--nodes": ("-N",),
    "--time": ("-t",),
    "--memory-per-node": ("--mem",),
    "--name": ("-J", "--job-name"),
    "--constraint": ("-C",),
    "--exclude": ("-x",),
    "--nodelist": ("-w",),
    "--begin": ("-b",),
}
_SEVERAL = ("--set", "--sbatch", "--env", "--env-file", "--profile", "--after")
_OF_ATTEMPTS = ("--max-restarts", "--max-node-hours")
_PASSED = "passed to Slurm"
_EXCLUSIVE = "whole nodes, shared with nobody (default: resources.exclusive)"
FLAGS = {
    "--dry-run": "print the batch script and submit nothing; an image is looked at",
    "--prepare": "write the run and print the sbatch line that submits it; submit nothing",
    "--check": "ask Slurm whether it would take the job (sbatch --test-only); submit nothing; an image is looked at",
    "--wait": "wait, pass on the script's output byte for byte and exit with its status (on a terminal: the default)",
    "--detach": "do not wait (elsewhere: the default)",
    "--json": "print facts as JSON; without --wait it does not wait",
    "--until-done": "go on after the time limit, a preemption or a node's failure, from the script's checkpoints",
    "--own-clusters": "let the script open Dask clusters of its own beside the run's",
}


def add_options(parser: ArgumentParser, flags: Collection[str] = FLAGS) -> None:
    """Add what each verb takes that submits a run; ``flags`` are those of the last group that it has."""
    parser.epilog = (
        "Give hpcml's options before SCRIPT, and the script's own after it; "
        "what follows -- after SCRIPT is never read as an option of hpcml. "
        "In the place of SCRIPT: -m package.module, or -- ./program. "
        "It is started once, on the first node, without MPI or torchrun ranks."
    )
    passed, gres = _actions()
    for title, options in VALUES.items():
        group = parser.add_argument_group(title)
        for option, text in options.items():
            if option in _OF_ATTEMPTS and "--until-done" not in flags:
                continue
            action: str | type[Action] = "append" if option in _SEVERAL else "store"
            if title == _PASSED and option != "--sbatch":
                action = gres if option == "--gres" else passed
            name = option.lstrip("-").replace("-", "_")
            dest = "sbatch" if title == _PASSED else name
            group.add_argument(option, *ALSO.get(option, ()), action=action, help=text, metavar=name.upper(), dest=dest)
        if title == _PASSED:
            group.add_argument("--exclusive", action=passed, nargs=0, help=_EXCLUSIVE, dest="sbatch")
    group = parser.add_argument_group("what to do")
    for flag in flags:
        group.add_argument(flag, action="store_true", help=FLAGS[flag])


def _actions() -> tuple[type[Action], type[Action]]:
    """Return the actions that collect options for sbatch in their order, so that the last of one counts."""
    import argparse

    from hpcml.schedulers import sbatch_options

    class Passed(argparse.Action):
        """One option for sbatch."""

        def __call__(self, _: ArgumentParser, options: Namespace, value: Any, __: str | None = None) -> None:
            """Add it to those that are passed on."""
            text = f"{self.option_strings[0]}={value}" if self.nargs is None else self.option_strings[0]
            options.sbatch = [*(options.sbatch or []), text]

    class Gres(Passed):
        """``--gres``, whose GPUs are hpcml's own."""

        def __call__(self, parser: ArgumentParser, options: Namespace, value: Any, word: str | None = None) -> None:
            """Divide the GPUs from the rest."""
            gpus, rest = sbatch_options.gres(value)
            options.gpus_per_node = gpus or options.gpus_per_node
            if rest:
                super().__call__(parser, options, rest, word)

    return Passed, Gres


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind the verb into hpcml's own and the script with all that follows it.

    The script of ``-m MODULE`` begins with ``-m``, and that of ``-- PROGRAM`` with ``--``.
    """
    takes_value = with_value()
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            script = list(words[position + 1 :])
            if script and script[0].endswith(_PYTHON):  # all that follows it is the script's
                script[1:1] = ["--"] if script[1:] else []
                return list(words[:position]), script
            return list(words[:position]), ["--", *script] if script else []
        if word == "-m":
            return list(words[:position]), list(words[position:])
        if not word.startswith("-") or word == "-":
            return list(words[:position]), list(words[position:])
        position += 2 if word in takes_value else 1
    return list(words), []


def with_value() -> set[str]:
    """Return the options that take a value, with Slurm's own words for them."""
    return {word for group in VALUES.values() for option in group for word in (option, *ALSO.get(option, ()))}


def run(options: Namespace) -> int:
    """Submit the script of the command line."""
    return start(options, script_spec(options))


def script_spec(options: Namespace) -> RunRequest:
    """Return the request for the script of the command line; one that a laptop sends is received before."""
    words = options.script_words if options.caller is None else options.caller.stage(options.script_words)
    first = 1 if words[0] in ("-m", "--") and words[1:] else 0  # what stands before the name of another kind
    script = common.here() / words[first]
    check_arguments(words, common.here(), options.parser.prog)
    if words[first + 1 : first + 2] == ["--"] and words[0] != "--":
        words = [*words[: first + 1], *words[first + 2 :]]  # all that follows is the script's
    origins = script_options.lay_below(options, script)
    spec: RunRequest = make_spec(options, words).changed(origins=origins)
    return spec if options.caller is None else options.caller.spec(spec)


def check_arguments(words: Sequence[str], here: Path, prog: str) -> None:
    """Refuse options of hpcml among the script's arguments; after ``--`` all words are the script's."""
    first = 1 if words[0] == "-m" else 0
    if words[0] == "--" or words[first + 1 : first + 2] == ["--"] or not words[first:]:
        return
    typed = f"-m {words[1]}" if first else words[0]
    known = dict.fromkeys((*FLAGS, "--exclusive"), False) | dict.fromkeys(with_value(), True)
    script_options.check_misplaced(words[first + 1 :], typed, here, prog, known)


def prepare(options: Namespace, spec: RunRequest) -> submission.Prepared:
    """Return what would be submitted, and say what is to be noted of it."""
    from hpcml.runs import submit as submission

    loaded = common.load_site(options.site or "", spec.code.cwd, options.set or ())
    spec = _without_bad_nodes(loaded.site, spec, learn=not getattr(options, "dry_run", True))
    prepared = submission.prepare(loaded, spec)
    for text in prepared.notes:
        note(text)
    return prepared


def _without_bad_nodes(site: Site, spec: RunRequest, *, learn: bool) -> RunRequest:
    """Say which nodes failed within a day, and leave them out where the profile says so."""
    if site.scheduler != "slurm" or {"--exclude", "--nodelist"} & dict(spec.place.sbatch).keys():
        return spec  # there are no nodes to choose, or the user chooses them
    import time

    from hpcml.runs import bad_nodes

    now = time.time()
    if learn:
        bad_nodes.learn(directories.runs_folder(site.paths.runs, layers.process_environment()), site.name, now)
    if not (bad := bad_nodes.Memory(site.name).nodes(now)):
        return spec
    note(bad_nodes.sentence(bad))
    if not site.slurm.exclude_failed:
        return spec
    sites_own = [line.partition("=")[2] for line in site.slurm.extra if line.startswith("--exclude=")]
    names = ",".join([*sites_own, *(one.node for one in bad)])
    origin = (f"--exclude {names}", EXCLUDE_FAILED)
    return spec.changed(sbatch=(*spec.place.sbatch, ("--exclude", names)), origins=(*spec.origins, origin))


def prepare_to_submit(options: Namespace, spec: RunRequest) -> submission.Prepared:
    """Return what is to be submitted, and say what is to be noted of that; ``hpcml.submit()`` calls it too."""
    from hpcml import schedulers
    from hpcml.sites import lookup

    prepared = prepare(options, spec)
    if ignored := schedulers.get(prepared.plan.scheduler).ignored_defaults():
        if options.prepare:
            note(f"{', '.join(ignored)} count when the line is typed: sbatch reads them")
        else:
            hint = "give the option, or write [defaults] into the site's settings"
            note(f"{', '.join(ignored)} do not count here: {hint}")
    if prepared.loaded.chosen_because == lookup.BY_DEFAULT:
        nodes = prepared.plan.inside.nodes
        which = f"; all {nodes} nodes of the run are this machine" if nodes > 1 else ""
        note(f"the run is on this machine: no sbatch was found{which}")
    for notice in prepared.plan.notices:
        note(notice)
    return prepared


def start(options: Namespace, spec: RunRequest) -> int:
    """Submit a request, or do what the options want instead, and wait for its end or not."""
    from hpcml.runs import submit as submission

    check_modes(options)
    prepared = prepare_to_submit(options, spec)
    if options.dry_run:
        Raw(sys.stdout).write(prepared.script.encode(), last=True)
    if not options.json and not options.check:
        tell_outlook(prepared, whole=options.dry_run)
    if options.dry_run or options.check:
        _look_at_image(submission.check_image(prepared))
        return _check(prepared, options) if options.check else 0
    return hand_over(options, prepared)


def hand_over(options: Namespace, prepared: submission.Prepared) -> int:
    """Submit what is prepared, and wait for its end or not."""
    from hpcml.runs import submit as submission

    with options.caller.handing_over(prepared.plan.run_id) if options.caller else contextlib.nullcontext():
        run = submission.submit(prepared, by_hand=options.prepare)
    if options.prepare:
        _announce_line(run, as_json=options.json)
        return 0
    wait = options.wait or (not options.detach and not options.json and sys.stderr.isatty() and sys.stdout.isatty())
    announce(run, as_json=options.json and not wait)  # with both, the one JSON answer is how the run ended
    return wait_for_end(run, as_json=options.json) if wait else 0


def tell_outlook(prepared: submission.Prepared, *, whole: bool, jobs: int = 1) -> None:
    """Say what a submission of so many jobs would cost and when it may start, as far as the site's profile tells."""
    import datetime

    from hpcml import schedulers
    from hpcml.runs import outlook

    if schedulers.get(prepared.plan.scheduler).ONE_MACHINE:
        return
    found = outlook.look(prepared, whole=whole, jobs=jobs)
    for title, text in outlook.lines(found, datetime.datetime.now(), whole=whole):  # noqa: DTZ005 - as sbatch tells it
        say_fitted(text, sys.stderr, first=f"  {title:<11}", rest=" " * 13)


def _look_at_image(facts: dict[str, object]) -> None:
    """Say what is to be noted of an image that is not refused, and what only the nodes can tell."""
    notes = facts.get("notes")
    for text in notes if isinstance(notes, list) else ():
        note(f"the image: {text}")
    if facts:
        note("the image's file was read and nothing started; hpcml image check starts it")


def check_modes(options: Namespace) -> None:
    """Refuse two options that say what becomes of a submission."""
    modes = ("dry-run", "prepare", "check", "wait", "detach", *(["json"] if options.dry_run else []))
    chosen = [f"--{mode}" for mode in modes if getattr(options, mode.replace("-", "_"))]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other", place="hpcml submit", hint="Give one of them.")


def make_spec(options: Namespace, script: list[str]) -> RunRequest:
    """Return the request; an option that was not given keeps the record's own "not said"."""
    given = {name: value for name in record.OPTIONAL if (value := getattr(options, name, None)) is not None}
    given["environment"] = variables.given(options)
    given["sbatch"] = tuple(dict(directive(text, "hpcml submit") for text in given.pop("sbatch", ())).items())
    if isinstance(given.get("profile"), list):
        given["profile"] = ",".join(given["profile"])
    if "gpus_per_node" in given:
        given["gpu_type"], given["gpus_per_node"] = gpus(given["gpus_per_node"])
    if "after" in given:
        given["after"] = tuple(map(Awaited.of, given["after"]))
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("own_clusters", "until_done", "gpu_type", "sbatch", "environment", "after"):
            continue
        if name in _COUNTS:
            given[name] = common.whole(value, option)
        elif not value.strip():
            raise UsageError(f"{option} is empty", place="hpcml submit", hint="Leave it out, or give it a value.")
        elif name in _MEASURES:
            given[name] = measure(name, value)
        elif name == "max_node_hours":
            given[name] = _hours(value, option)
    return RunRequest.of(**_what(script, common.here()), **given)


def _what(script: list[str], here: Path) -> dict[str, Any]:
    """Return the fields of a request that the script's words decide."""
    path, words, form = named(script, here)
    interpreter: tuple[str, ...] = ()
    if form == "program" and (code := programs.code_of(path, words[1:], here)):
        interpreter, words, form = code
        path = here / words[0]
    sources = tuple(dict.fromkeys((path.parent.resolve(), path.resolve().parent))) if path.is_absolute() else ()
    facts = {"script": path, "arguments": tuple(words[1:]), "cwd": here, "sources": sources, "form": form}
    return {**facts, "interpreter": interpreter, "in_place": form == "program" and programs.stays(path, here)}


def _hours(text: str, option: str) -> float:
    """Return an option's number of hours."""
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < 1e9:  # not a number is not within it either
        raise UsageError(f"'{text}' is no number of hours", place=option, hint=f"Write {option} 500.")
    return hours


def named(script: list[str], here: Path) -> tuple[Path, list[str], str]:
    """Return what the words name, its words, and its form (as in the request)."""
    form = {"-m": "module", "--": "program"}.get(script[0], "")
    if not form:
        return here / script[0], script, "notebook" if script[0].endswith(".ipynb") else ""
    if not script[1:]:
        raise UsageError("MODULE is missing", place="-m", hint="Write hpcml submit -m package.module.")
    if form == "module" and not all(word.isidentifier() for word in script[1].split(".")):
        hint = "Write the dotted name, as for python -m: hpcml submit -m package.module."
        raise UsageError(f"'{script[1]}' is no module's name", place="-m", hint=hint)
    name, path = script[1], layers.process_environment().get("PATH", "")
    if form == "module" or "/" in name or ((here / name).is_file() and not shutil.which(name, path=path)):
        return here / name, script[1:], form
    return Path(name), script[1:], form


def _check(prepared: submission.Prepared, options: Namespace) -> int:
    from hpcml.runs import submit as submission

    answer = submission.check(prepared)
    if options.json:
        common.print_json({"accepted": True, "answer": answer, "reasons": list(prepared.plan.reasons)})
    else:
        say_fitted(f"Slurm would take it: {answer}.", sys.stdout)
        for reason in prepared.plan.reasons:
            say_fitted(reason, sys.stdout, first="  ", rest="    ")
    return 0


def announce(run: directories.Run, *, as_json: bool) -> None:
    """Say which run it is and where, on stderr, or as JSON."""
    assert run.submission is not None
    if as_json:
        common.print_json({"run": run.id, "directory": str(run.paths.directory), **run.submission.as_json()})
        return
    job = f" job {run.job}" if run.job else ""
    folder = common.typed(run.paths.directory, sys.stderr)
    say_fitted(f"{run.id}{job}  {folder}", sys.stderr, first="  run        ", rest=" " * 13)
    if run.submission.found_again:
        text = "Slurm's answer was lost; the job was found again by its comment"
        say_fitted(text, sys.stderr, first="  submission ", rest=" " * 13)
    for text in run.submission.notes:
        note(str(text))


def _announce_line(run: directories.Run, *, as_json: bool) -> None:
    """Say which run was prepared on stderr, and on stdout the line that submits it, alone."""
    announce(run, as_json=as_json)
    if run.submission and not as_json:
        Raw(sys.stdout).write(f"{run.submission.line}\n".encode(), last=True)


def wait_for_end(run: directories.Run, *, as_json: bool) -> int:
    """Show the run until it ends, pass on its output, and return its exit status; Ctrl-C detaches."""
    from hpcml.cli.progress import Progress, Tail
    from hpcml.runs import following, handle

    output = Tail(run.paths.driver_log, sys.stdout, own=True)
    progress = Progress(sys.stderr, layers.process_environment(), output)
    pass_on = (lambda: None) if as_json else output.copy_marked

    def before() -> None:
        progress.fit()
        if not as_json:
            output.mark()

    try:
        last = None
        for last in following.follow(run, pass_on, before=before):
            if last.phase == "ended" and not as_json:  # all that the script wrote stands before its end
                progress.show_past(last)
                while output.copy():
                    pass
            progress.show(last)
    except KeyboardInterrupt:
        progress.clear()
        say_lines(
            f"\nDetached; the run goes on.\n  back to it  hpcml logs -f {run.id}\n  end it      hpcml cancel {run.id}",
            sys.stderr,
        )
        return 130
    assert last is not None
    if last.over and not as_json:
        _tell_files(run, last)
    _tell_end(run, last, as_json=as_json)  # a failure's cause and the next step stand last
    if as_json:
        common.print_json(last.as_json())
    return handle.exit_status_of(last)


def _tell_files(run: directories.Run, last: run_status.Status) -> None:
    """Say where a run's report, the output of its tasks and its profiles are."""
    from hpcml.report import profiles
    from hpcml.runs import report

    if page := report.page_of(run):
        say_fitted(common.typed(page, sys.stderr), sys.stderr, first="  report     ", rest=" " * 13)
    if "task-output" in last.times:
        say(f"  tasks      printed lines: hpcml logs {run.id} worker", sys.stderr)
    for command in profiles.commands(run.paths):
        say(f"  profile    {command}", sys.stderr)  # whole: it is to be copied


def _tell_end(run: directories.Run, last: run_status.Status, *, as_json: bool) -> None:
    """Say why a run failed and what to do, where the line of its end has not said it.

    That is so where it is a sentence of hpcml's own, or where the script chose its number.
    """
    if last.by != "script":
        explain(last)
    if not last.exit_status or as_json:
        return
    from hpcml.runs import bad_nodes, why

    answer = why.of_status(run, last)
    bad_nodes.remember(last, answer)
    if answer.failed and answer.rule not in ("", "exit") and answer.cause != last.message:
        say_message(f"hpcml: cause: {answer.sentence} More: hpcml why {run.id}.")
    if last.by == "script" and last.hint:
        say_message(f"hpcml: {last.hint}")


def explain(last: run_status.Status) -> None:
    """Say why hpcml or Slurm ended a run; the script's own end speaks for itself."""
    status = last.exit_status or 0
    meaning = MEANING.get(status, "")
    if last.message == meaning and not last.hint and not last.quote:
        return  # the last line said it all: the run was cancelled
    error = HpcmlError(
        last.message[:1].upper() + last.message[1:],
        place=f"status {status}: {meaning}" if meaning else "",
        hint=last.hint,
        quote=last.quote,
    )
    say_message(f"hpcml: {error}")
