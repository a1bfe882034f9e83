"""``hpcml hold``: keep an allocation, in which ``hpcml run --in`` starts runs."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hpcml import schedulers
from hpcml.cli import common, submit
from hpcml.cli import run as in_allocation
from hpcml.errors import UsageError
from hpcml.forms import Form
from hpcml.units import TimeLimit, format_time_limit

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.request.record import RunRequest
    from hpcml.runs.holds import Hold


def add_options(parser: Parser) -> None:
    """Add a submission's options and the hold's own."""
    submit.add_options(parser, "hold")
    parser.epilog = (
        "To start a run in the hold: hpcml run --in last SCRIPT. To end the hold with its runs: hpcml cancel HOLD "
        "(HOLD: its id, or its name: hold, unless --name says otherwise). "
        "hpcml ls shows holds, and what their idle time cost."
    )
    name, wait = "hold's name (default: hold)", "wait for the hold's end, and exit with its status"
    parser.describe({"--name": name, "--wait": wait, "--detach": "do not wait for the hold (default)"})
    group = parser.add_argument_group("the hold")
    group.add_argument(
        "--idle",
        metavar="TIME",
        default="30m",
        help="end a hold that is unused for TIME; off: only at the time limit (default: 30m)",
    )
    group.add_argument(
        "--keep-cluster",
        action="store_true",
        help="after each run, start the processes of the next run ahead: its script begins sooner",
    )


def run(options: Namespace) -> int:
    """Submit the hold, and wait for its end only if that was asked for: runs come by other commands."""
    idle = common.parse_idle(options.idle)
    others = ("dry_run", "prepare", "check", "wait")
    options.detach = options.detach or not any(getattr(options, mode) for mode in others)
    return submit.start(options, submit.service_spec(options, Form.HOLD).changed(idle=idle, keeps=options.keep_cluster))


def run_in(options: Namespace) -> int:
    """Put a script into a kept allocation, pass on its output, and return its status; Ctrl-C detaches."""
    from hpcml.runs import holds
    from hpcml.runs import submit as submission

    spec = submit.script_spec(options)
    hold = holds.find(common.runs_folder(options), getattr(options, "in"))
    hold.check(spec, no_wait=options.no_wait)
    spec = fitted(spec, hold).changed(hold=str(hold.run.paths.directory), site=hold.site, image=hold.image)
    prepared = in_allocation.prepare(spec, schedulers.in_hold)
    hold.check_image(prepared.plan.inside.job.image)
    submit.tell_notes(prepared, seen=not options.dry_run)
    if options.dry_run:
        submit.show(options, prepared, asks=False)
        return 0
    with options.caller.handing_over(prepared.plan.run_id) if options.caller else contextlib.nullcontext():
        run = submission.submit(prepared)
    submit.announce(run, as_json=options.json and options.detach)
    if options.detach:
        return 0
    status = submit.wait_for_end(run, as_json=options.json, host=common.host_of(options))
    hold.wait_for_nodes(run)
    return status


def fitted(spec: RunRequest, hold: Hold) -> RunRequest:
    """Return the request with what the hold has; it may ask for fewer nodes and less time, and for the hold's terms.

    Raises
    ------
    UsageError
        If the command line asks for anything else.
    """
    given, typed = hold.allocation, in_allocation.of_lines(spec).keys()
    for name, value in hold.terms.items():
        asked = spec.value(name)
        if asked and f"--{name}" not in typed:
            if asked != value:
                problem = f"--{name} requests {asked}, but the hold has {value or 'none'}"
                raise UsageError(problem, place=hold.run.id, hint=f"Remove --{name}.")
            spec = spec.changed(**{name: ""})
    count = len(given.nodes)
    if spec.size.nodes > count and "--nodes" not in typed:
        hint = f"Use --nodes {count}{' or fewer' if count > 1 else ''}, or start a larger hold."
        raise UsageError(f"--nodes requests {spec.size.nodes}, but the hold has {count}", place=hold.run.id, hint=hint)
    if 0 < spec.size.nodes < count:
        given = given._replace(nodes=given.nodes[: spec.size.nodes])
    limit = spec.size.time if "--time" not in typed else TimeLimit()
    left = max(0, int(given.end - time.time())) if given.end else 0
    if limit and given.end and limit > left:
        problem = f"--time requests {limit.text}, but {format_time_limit(left)} is left of the hold"
        raise UsageError(problem, place=hold.run.id, hint="Request less time, or start another hold.")
    spec = in_allocation.fitted(spec.changed(time=TimeLimit()) if limit else spec, given, hold.run.id)
    return spec.changed(time=limit) if limit else spec
