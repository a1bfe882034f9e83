"""What each command of the command line does with its options; they call, and print what comes back."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from argparse import Namespace
from pathlib import Path

from hpcml import config, runs, sites, slurm, units, watch
from hpcml.errors import MEANING, ConfigError, HpcmlError, NotFoundError, SlurmUnreachableError, UsageError
from hpcml.jobs import JobSpec
from hpcml.progress import Progress, Tail

COUNTS = ("nodes", "gpus_per_node", "cpus_per_node")


def _print_json(facts: object) -> None:
    print(json.dumps(facts, indent=1, default=str))


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise NotFoundError("The current folder is gone", place="cwd", hint="Change to another: cd ~.") from error


def submit(options: Namespace, script: list[str]) -> int:
    """``hpcml submit`` and ``hpcml plan``."""
    from hpcml import submit as submission

    environment = config.process_environment()
    _check_modes(options)
    loaded = sites.load(options.site or "", environment, _here(), tuple(options.set or ()))
    spec = _spec(options, script)
    prepared = submission.prepare(loaded, spec, environment)
    if options.command == "plan":
        _print_json(dataclasses.asdict(prepared.plan))
        return 0
    for notice in prepared.plan.notices:
        print(f"hpcml: note: {notice}.", file=sys.stderr)
    if options.dry_run:
        print(prepared.script, end="")
        return 0
    if options.check:
        return _check(prepared, options, environment)
    run = submission.submit(prepared, loaded, spec, environment)
    _announce(run, options.json)
    wait = options.wait or (not options.detach and not options.json and sys.stderr.isatty() and sys.stdout.isatty())
    return _wait(run, environment, as_json=options.json) if wait else 0


def _check_modes(options: Namespace) -> None:
    chosen = [flag for flag in ("dry_run", "check", "wait", "detach") if getattr(options, flag)]
    if len(chosen) > 1:
        names = " and ".join(f"--{flag.replace('_', '-')}" for flag in chosen)
        raise UsageError(f"{names} exclude each other", place="hpcml submit", hint="Give one of them.")


def _spec(options: Namespace, script: list[str]) -> JobSpec:


    values: dict[str, object] = {}
    for field in dataclasses.fields(JobSpec):
        text = getattr(options, field.name, None)
        if text is not None:
            values[field.name] = _whole(text, field.name) if field.name in COUNTS else text
    here = _here()
    return JobSpec(script=here / script[0], arguments=tuple(script[1:]), cwd=here, **values)  # type: ignore[arg-type]


def _whole(text: str, name: str) -> int:
    option = f"--{name.replace('_', '-')}"
    if not text.isdecimal():
        raise UsageError(f"'{text}' is not a whole number", place=option, hint=f"Write {option} 4.")
    return int(text)


def _check(prepared: object, options: Namespace, environment: dict[str, str]) -> int:
    from hpcml import submit as submission

    assert isinstance(prepared, submission.Prepared)
    if not prepared.plan.slurm:
        raise UsageError("The local site has no Slurm to ask", place="--check", hint="Leave --check out.")
    answer = submission.check(prepared, environment)
    if options.json:
        _print_json({"accepted": True, "answer": answer, "reasons": prepared.plan.reasons})
    else:
        print(f"Slurm would take it: {answer}.")
        for reason in prepared.plan.reasons:
            print(f"  {reason}")
    return 0


def _announce(run: runs.Run, as_json: bool) -> None:
    if as_json:
        _print_json({"run": run.id, "directory": str(run.paths.directory), **run.submission})
        return
    job = f" job {run.job}" if run.job else ""
    print(f"  run        {run.id}{job}  {run.paths.directory}", file=sys.stderr, flush=True)
    if run.submission.get("found_again"):
        print("  submission Slurm's answer was lost; the job was found again by its comment", file=sys.stderr)


def _wait(run: runs.Run, environment: dict[str, str], *, as_json: bool) -> int:
    """Show the run until it ends, pass on its output, and return its exit status; Ctrl-C detaches."""
    progress = Progress(sys.stderr, environment)
    output = Tail(run.paths.driver_log, sys.stdout)

    def pass_on() -> None:
        if not as_json:
            while output.copy():
                pass

    try:
        last = None
        for last in watch.follow(run, environment, pass_on):
            progress.show(last)
    except KeyboardInterrupt:
        progress.close()
        print(f"\nDetached; the run goes on. Back to it: hpcml logs -f {run.id}; end it: hpcml cancel {run.id}.",
              file=sys.stderr)  # fmt: skip
        return 130
    assert last is not None
    assert last.exit_status is not None
    if last.by != "script":
        _explain(last)
    if as_json:
        _print_json(last.as_json())
    return last.exit_status


def _explain(last: watch.Status) -> None:
    """Say why hpcml or Slurm ended a run; the script's own end speaks for itself."""
    status = last.exit_status or 0
    meaning = MEANING.get(status, "")
    error = HpcmlError(last.words[:1].upper() + last.words[1:], place=f"status {status}: {meaning}" if meaning else "",
                       hint=last.hint, quote=tuple(last.quote))  # fmt: skip
    print(f"hpcml: {error}", file=sys.stderr)


def _folder(options: Namespace) -> tuple[Path, dict[str, str]]:
    environment = config.process_environment()
    loaded = sites.load("", environment, _here(), tuple(options.set or ()))
    return runs.runs_folder(loaded.site.paths.runs, environment), environment


def ls(options: Namespace) -> int:
    """``hpcml ls``: all runs, newest last, with one question to Slurm for those that have not ended."""
    folder, environment = _folder(options)
    found = runs.every(folder)
    open_jobs = [run.job for run in found if run.job and not run.paths.status.exists()]
    try:
        known = slurm.states(open_jobs, environment)
    except SlurmUnreachableError as error:
        print(f"hpcml: {error}", file=sys.stderr)
        known = {}
    rows = [watch.status(run, environment, known.get(run.job, slurm.UNKNOWN)) for run in found]
    if options.json:
        _print_json([row.as_json() for row in rows])
        return 0
    width = max([len(row.run) for row in rows], default=3)
    if rows:
        print(f"{'RUN':<{width}}  {'SITE':<10} {'JOB':>8}  {'STATE':<9} {'STATUS':>6}  WHAT")
    for row in rows:
        status = "" if row.exit_status is None else str(row.exit_status)
        print(f"{row.run:<{width}}  {row.site:<10} {row.job:>8}  {row.state:<9} {status:>6}  {row.words[:60]}")
    return 0


def status(options: Namespace) -> int:
    """``hpcml status RUN``."""
    folder, environment = _folder(options)
    run = _adopt(runs.find(folder, options.run), environment)
    found = watch.status(run, environment)
    if options.json:
        _print_json(found.as_json())
        return 0
    lines = [("run", found.run), ("site", found.site), ("state", f"{found.state}: {found.words}")]
    if found.job:
        lines.append(("job", f"{found.job} {found.slurm_state}".strip()))
    if found.estimate:
        lines.append(("estimate", f"Slurm expects a start at {found.estimate}"))
    if found.nodes:
        lines.append(("nodes", ", ".join(found.nodes)))
    if found.state in ("starting", "running"):
        lines.append(("workers", f"{found.workers}/{found.expected}"))
    lines += _phases(found)
    if found.exit_status is not None:
        meaning = MEANING.get(found.exit_status, "") if found.by != "script" else "the script's own"
        lines.append(("status", f"{found.exit_status} ({meaning})" if meaning else str(found.exit_status)))
    lines.append(("directory", found.directory))
    for key, value in lines:
        print(f"{key:<10} {value}")
    for line in found.quote:
        print(f"  | {line}")
    if found.hint:
        print(found.hint)
    return 0


def _phases(found: watch.Status) -> list[tuple[str, str]]:
    """Return how long each phase took, from its events."""
    names = (("scheduler", "allocated", "scheduler-up"), ("workers", "scheduler-up", "workers-ready"),
             ("driver", "driver-started", "driver-ended"), ("teardown", "driver-ended", "torn-down"))  # fmt: skip
    times = found.times
    return [
        ("phase", f"{name:<10} {units.format_seconds(times[end] - times[begin])}")
        for name, begin, end in names
        if begin in times and end in times
    ]


def _adopt(run: runs.Run, environment: dict[str, str]) -> runs.Run:
    """Find the job of a run whose submission was never answered, and record it."""
    if run.submission.get("job") or run.submission.get("status") != 72:
        return run
    found = slurm.find_by_comment(f"hpcml:{run.id}", environment)
    if found is None:
        return run
    runs.write_json(run.paths.submission, {"job": found, "slurm": True, "found_again": True})
    return runs.load(run.paths.directory)


def logs(options: Namespace) -> int:
    """``hpcml logs [-f] RUN [ROLE]``."""
    roles = {"driver": "driver", "scheduler": "scheduler", "worker": "worker", "workers": "worker", "job": "job"}
    if options.run in roles and options.role == "driver":
        options.run, options.role = "last", options.run
    role = roles.get(options.role)
    if role is None:
        raise UsageError(f"There is no role '{options.role}'", place="hpcml logs", hint="One of: driver, scheduler, worker, job.")
    folder, environment = _folder(options)
    run = runs.find(folder, options.run)
    tails: dict[Path, Tail] = {}

    def copy() -> None:
        for path in sorted(run.paths.logs.glob("worker-*.log" if role == "worker" else f"{role}.log")):
            header = f"==> {path.name} <==\n" if role == "worker" else ""
            tail = tails.setdefault(path, Tail(path, sys.stdout, header))
            while tail.copy():
                pass

    if options.follow:
        for _ in watch.follow(run, environment, copy):
            pass
        return 0
    copy()
    if not tails:
        state = watch.status(run, environment)
        raise NotFoundError(f"The run has no {role} log yet", place=run.id, hint=f"It is {state.state}: {state.words}.")
    return 0


def cancel(options: Namespace) -> int:
    """``hpcml cancel RUN``: tell the run to end; its driver is told first and has its grace."""
    from hpcml import shell

    folder, environment = _folder(options)
    run = _adopt(runs.find(folder, options.run), environment)
    before = watch.status(run, environment)
    if before.state in ("ended", "refused"):
        print(f"{run.id} has ended already: {before.words}.")
    elif run.job:
        slurm.cancel(run.job, environment)
        print(f"{run.id} is being cancelled (job {run.job}).")
    elif "pid" in run.submission:
        shell.signal_process(int(run.submission["pid"]), signal.SIGTERM)
        print(f"{run.id} is being cancelled (process {run.submission['pid']}).")
    else:
        raise NotFoundError("The run has no job that could be cancelled", place=run.id, hint=before.hint)
    return 0


def site(options: Namespace) -> int:
    """``hpcml site ls`` and ``hpcml site show``."""
    environment = config.process_environment()
    if options.site_command == "ls":
        return _site_ls(options, environment)
    if options.site_command != "show":
        raise UsageError("Say what to do with sites", place="hpcml site", hint="hpcml site ls, or hpcml site show SITE.")
    loaded = sites.load(options.name, environment, _here(), tuple(options.set or ()))
    if options.json:
        _print_json({"site": dataclasses.asdict(loaded.site), "chosen_because": loaded.chosen_because, "origins": {
            key.replace("\0", "."): value.origin for key, value in loaded.layers.values.items()}})  # fmt: skip
        return 0
    print(f"# {loaded.site.name}: {loaded.chosen_because}")
    for key, value in _flat(dataclasses.asdict(loaded.site)):
        origin = f"  # {loaded.layers.origin(key)}" if options.origin else ""
        print(f"{key} = {json.dumps(value)}{origin}")
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
        here = sites.load("", environment, _here()).site.name
    except ConfigError as error:
        print(f"hpcml: {error}", file=sys.stderr)
        here = ""
    for name, paths in sorted(sites.profile_files(environment).items()):
        description = config.read_toml(paths[-1]).get("description", "")
        rows.append({"site": name, "here": name == here, "description": description, "files": [str(path) for path in paths]})
    if options.json:
        _print_json(rows)
        return 0
    for row in rows:
        print(f"{'*' if row['here'] else ' '} {row['site']:<12} {row['description']}")
    return 0
