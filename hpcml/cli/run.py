"""``hpcml run``: run a script inside an existing allocation, in the foreground, and exit with its status."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcml import features_by_point, schedulers, subprocesses
from hpcml.cli import common, submit
from hpcml.errors import SiteError, SlurmUnreachableError, UsageError
from hpcml.options.table import OPTIONS
from hpcml.request.record import RunRequest
from hpcml.schedulers import existing_allocation
from hpcml.terminal import note, say_lines
from hpcml.units import Memory, TimeLimit

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.paths import RunPaths
    from hpcml.runs import directories
    from hpcml.runs.submit import Prepared
    from hpcml.schedulers.existing_allocation import Allocation

_STEPS_END = 30.0  # seconds that the run's steps have when it has written its end
_LONGER = 5.0  # seconds by which a time limit must have been put off to count
_GIVEN = ("nodes", "gpus_per_node", "cpus_per_node")  # what may be asked for if the allocation has it
_REFUSED = {name for name, one in OPTIONS.items() if one.asks_slurm and name not in (*_GIVEN, "name")}


def add_options(parser: Parser) -> None:
    """Add a submission's options; the help leaves out those that ``run`` refuses."""
    submit.add_options(parser, "run")
    printed = "--dry-run=script prints the batch script; --dry-run --json prints all details of the run"
    here = {"--dry-run": f"print a summary and run nothing; {printed}"}
    here["--json"] = "print JSON about how the run ended; the script's output stays in logs/script.log"
    all_of_it = "N must equal the number in the allocation (default: that number); only with --in, N can be smaller"
    here |= {OPTIONS[name].word: all_of_it for name in _GIVEN}
    here["--nodes"] = "number of nodes (default: all of the allocation); only with --in, N can be smaller"
    here["--detach"] = "with --in: do not wait for the run's end (default: wait)"
    here["--gpus-per-node"] = "0: workers use only CPUs; a smaller N than the allocation's only with --in, of one node"
    here |= {OPTIONS[name].word: argparse.SUPPRESS for name in _REFUSED}
    here["--memory-per-node"] = "only with --in: memory of a part of one node"
    here["--time"] = "with --in: time limit of the run (default: the time that is left of the hold)"
    parser.describe(here)
    parser.set_defaults(prepare=False, check=False, wait=False)
    parser.description = (
        "Run a script in an existing allocation (hpcml hold, salloc or your own batch script). "
        "By default, the run uses all nodes of the allocation. Give Slurm's options to hpcml hold, salloc or sbatch."
    )


def run(options: Namespace) -> int:
    """Run the script, pass on its output, and return its status; a signal ends the run, not the allocation."""
    from hpcml.runs import submit as submission

    if getattr(options, "in") is not None:
        options.wait = not (options.detach or options.dry_run)
        return int(features_by_point.only("run in a kept allocation")(options, submit.script_spec(options)))
    for name in ("no_wait", "detach"):
        if getattr(options, name):
            raise UsageError(f"{OPTIONS[name].word} needs --in", place=OPTIONS[name].word, hint="Add --in RUN.")
    given = existing_allocation.current()
    prepared = prepare(fitted(submit.script_spec(options), given), schedulers.in_allocation)
    submit.tell_notes(prepared, seen=not options.dry_run)
    if options.dry_run:
        submit.show(options, prepared, asks=False)
        return 0
    try:
        others = existing_allocation.other_steps(given.job)
    except SlurmUnreachableError:
        others = []  # a note less
    if others:
        note(f"other job steps use nodes of this allocation: {', '.join(others)}")
    ending = _Ending()
    here = submission.submit(prepared)
    ending.begin(here.paths, given, prepared.plan.inside.job.signal_lead)
    if not options.json:
        submit.announce(here, as_json=False)
    status = submit.wait_for_end(here, as_json=options.json)
    _wait_for_steps(here)
    return status


def fitted(spec: RunRequest, given: Allocation, place: str = "") -> RunRequest:
    """Return the request with what the allocation has; errors are about ``place``.

    What the script's own lines ask for is meant for a submission: it is left out, with a note.

    Raises
    ------
    UsageError
        If the command line asks for anything else.
    """
    has = _of_allocation(spec, given)
    lines = of_lines(spec)
    others = {name.lstrip("-").replace("-", "_"): value or name for name, value in spec.place.sbatch}
    left_out = _other_type(spec, given, lines, place)
    for name, value in (spec.given() | others).items():
        option = f"--{name.replace('_', '-')}"
        differs = name in has and value != has[name]
        changes = name in others or (name in _REFUSED and name != "sbatch")
        if (differs or changes) and option in lines:
            left_out[name] = "{} ({})".format(*lines[option])
        elif differs:
            hint = f"Remove {option}: a run uses all nodes and resources of the allocation."
            problem = f"{option} requests {value}, but the allocation has {has[name]}"
            raise UsageError(problem, place=place or f"job {given.job}", hint=hint)
        elif changes:
            hint = f"Remove {option} here, and pass it to salloc, sbatch or hpcml hold."
            raise UsageError(f"{option} cannot change an existing allocation", place="hpcml run", hint=hint)
    if left_out:
        note(f"hpcml ignores options that cannot change an existing allocation: {', '.join(left_out.values())}")
    minutes = max(1, int(given.end - time.time()) // 60) if given.end else 0
    nothing = RunRequest()
    unasked = {name: nothing.value(name) for name in (*left_out, "sbatch") if name not in others}
    return spec.changed(
        **{
            **unasked,
            **has,
            "gpu_type": "",
            "memory_per_node": Memory(f"{given.memory}M") if given.memory else Memory(),
            "time": TimeLimit(str(minutes)) if minutes else TimeLimit(),
        }
    )


def _of_allocation(spec: RunRequest, given: Allocation) -> dict[str, int]:
    """Return the size of a run in an allocation, by option; without CPUs it has those of the machine."""
    gpus = given.gpus if spec.size.gpus_per_node else 0  # 0 is asked for: workers on CPUs
    size = {"nodes": len(given.nodes), "gpus_per_node": gpus}
    return size | ({"cpus_per_node": given.cpus} if given.cpus else {})


def _other_type(spec: RunRequest, given: Allocation, lines: dict[str, tuple[str, str]], place: str) -> dict[str, str]:
    """Return the script's line that asks for another type of GPU; UsageError if the command line asks for it."""
    kind = spec.size.gpu_type
    if not (kind and given.gpus and spec.size.gpus_per_node) or {*given.gpu_types} == {kind}:
        return {}
    if line := lines.get("--gpus-per-node"):
        return {"gpu_type": "{} ({})".format(*line)}
    types = " and ".join(given.gpu_types) or "GPUs of which Slurm tells no type"
    problem = f"--gpus-per-node requests GPUs of type {kind}, but the allocation has {types}"
    hint = "Write only the number of GPUs, or get an allocation with this type."
    raise UsageError(problem, place=place or f"job {given.job}", hint=hint)


def of_lines(spec: RunRequest) -> dict[str, tuple[str, str]]:
    """Return the options in the script's own lines by their words, each with its text and its place."""
    return {text.replace("=", " ").split(" ")[0]: (text, place) for text, place in spec.origins}


def prepare(spec: RunRequest, scheduler_of: Callable[[str], str]) -> Prepared:
    """Return the prepared run to start, by the site's scheduler for existing allocations; SiteError if it has none."""
    from hpcml.runs import submit as submission

    place = spec.place
    loaded = common.load_site(place.site, spec.code.cwd, place.settings, place.line_settings)
    scheduler = scheduler_of(loaded.site.scheduler)
    if not scheduler:
        hint = "Name the machine's profile with --site (hpcml site ls)."
        raise SiteError("The site has no Slurm, so it has no allocations", place=f"site {loaded.site.name}", hint=hint)
    loaded = loaded._replace(site=loaded.site._replace(scheduler=scheduler))
    prepared = submission.prepare(loaded, spec)
    return prepared._replace(notes=(*prepared.notes, *prepared.plan.notices))


class _Ending:
    """What ends a run from here: a signal to this process, and the time limit, of which its script is warned before."""

    def __init__(self) -> None:
        self.asked = False
        self.paths: RunPaths | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def begin(self, paths: RunPaths, given: Allocation, lead: float) -> None:
        """Pass on from now what is meant for the run."""
        self.paths = paths
        if self.asked:
            existing_allocation.note(paths, "terminate")
        if given.end:
            threading.Thread(target=self._tell_of_the_limit, args=(given.end, lead), daemon=True).start()

    def _on_signal(self, number: int, _: object) -> None:
        if not self.asked:
            name = signal.Signals(number).name
            say_lines(f"\nhpcml: stopping the run ({name}); the allocation remains.", sys.stderr)
        self.asked = True
        if self.paths:
            existing_allocation.note(self.paths, "terminate")

    def _tell_of_the_limit(self, end: float, lead: float) -> None:
        assert self.paths is not None
        while True:
            time.sleep(max(0.0, end - lead - time.time()))
            try:
                later = existing_allocation.current().end
            except (SiteError, SlurmUnreachableError, UsageError):
                later = end
            if later <= end + _LONGER:
                existing_allocation.note(self.paths, "time-limit")
                return
            end = later


def _wait_for_steps(run: directories.Run) -> None:
    """Wait until the run's steps have gone, so that the next line of a batch script has the nodes to itself."""
    assert run.submission is not None
    pid, started = run.submission.pid, run.submission.started
    deadline = time.monotonic() + _STEPS_END
    while subprocesses.start_time(pid) == started:
        if time.monotonic() > deadline:
            note(f"the run's job steps did not end within {_STEPS_END:g} s after the run")
            return
        time.sleep(0.05)
