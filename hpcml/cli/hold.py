"""``hpcml hold``: keep an allocation, in which ``hpcml run --in`` starts runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcml import schedulers
from hpcml.cli import common, submit
from hpcml.cli import run as in_allocation
from hpcml.errors import SiteError, UsageError
from hpcml.hold_queue import Part
from hpcml.request.record import NOT_SAID
from hpcml.units import Memory, TimeLimit, format_memory_for_slurm, format_time_limit
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.request.record import RunRequest
    from hpcml.runs.holds import Hold
    from hpcml.runs.submit import Prepared


def add_options(parser: Parser) -> None:
    """Add a submission's options and the hold's own."""
    submit.add_options(parser, "hold")
    parser.epilog = (
        "To start a run in the hold, type hpcml run --in last SCRIPT. To end the hold and its runs, type "
        "hpcml cancel HOLD. HOLD is the hold's id or name (default: hold). "
        "hpcml ls shows holds and the cost of their idle time."
    )
    name, wait = "hold's name (default: hold)", "wait for the hold's end, and exit with its status"
    parser.describe({"--name": name, "--wait": wait, "--detach": "do not wait for the hold (default)"})
    group = parser.add_argument_group("the hold")
    common.add_idle(group, "hold", "only at the time limit", default="30m")
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


def run_in(options: Namespace, spec: RunRequest) -> int:
    """Put a run into the kept allocation that ``--in`` names, and wait for its end or not; Ctrl-C detaches."""
    hold, spec = place_in(options, spec)
    prepared = prepared_in(hold, spec)
    submit.check_modes(options)
    submit.tell_notes(prepared, seen=not options.dry_run)
    if options.dry_run:
        submit.show(options, prepared, asks=False)
        return 0
    if options.check:
        schedulers.get(prepared.plan.scheduler).check(hold.run.paths.script)
    status = submit.hand_over(options, prepared)
    hold.wait_for_nodes(prepared.plan.run_id)
    return status


def place_in(options: Namespace, spec: RunRequest) -> tuple[Hold, RunRequest]:
    """Return the hold that ``--in`` names, and the request as a run in it has it.

    Raises
    ------
    HpcmlError
        If there is no such hold, or the run cannot start in it.
    """
    from hpcml.runs import holds

    hold = holds.find(common.runs_folder(options), getattr(options, "in"))
    hold.check(spec, no_wait=options.no_wait)
    spec = fitted(spec, hold).changed(hold=str(hold.run.paths.directory), site=hold.site, image=hold.image)
    if options.no_wait and not spec.place.part:
        hold.check_free(spec.size.nodes)
    return hold, spec


def prepared_in(hold: Hold, spec: RunRequest) -> Prepared:
    """Return the prepared run to start in a hold; HpcmlError if it cannot be."""
    prepared = in_allocation.prepare(spec, schedulers.in_hold)
    hold.check_image(prepared.plan.inside.job.image)
    return prepared


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
    if part := part_of(spec, hold):
        gpus, cpus, memory = part[0]
        given = given._replace(nodes=given.nodes[:1], gpus=gpus, cpus=cpus, memory=memory)
        spec = spec.changed(part=part, memory_per_node=Memory())
    elif 0 < spec.size.nodes < count:
        given = given._replace(nodes=given.nodes[: spec.size.nodes])
    limit = spec.size.time if "--time" not in typed else TimeLimit()
    left = max(0, int(given.end - time.time())) if given.end else 0
    if limit and given.end and limit > left:
        problem = f"--time requests {limit.text}, but {format_time_limit(left)} is left of the hold"
        raise UsageError(problem, place=hold.run.id, hint="Request less time, or start another hold.")
    spec = in_allocation.fitted(spec.changed(time=TimeLimit()) if limit else spec, given, hold.run.id)
    return spec.changed(time=limit) if limit else spec


def part_of(spec: RunRequest, hold: Hold) -> tuple[Part, ...]:
    """Return the run's part of a node and the node's own, if it asks for a part; nothing of whole nodes.

    What the command line does not name is the same share of the node. A script's own lines ask for no part.

    Raises
    ------
    UsageError
        If there is no such part.
    SiteError
        If it is not known what a node of the hold has.
    """
    given, size, lines = hold.allocation, spec.size, in_allocation.of_lines(spec).keys()
    gpus = NOT_SAID if "--gpus-per-node" in lines else size.gpus_per_node
    cpus = NOT_SAID if "--cpus-per-node" in lines else size.cpus_per_node
    memory = 0 if {"--memory-per-node", "--mem"} & lines else int(size.memory_per_node) >> 20
    node = Part(given.gpus, given.cpus, given.memory)
    less = [amount for amount in zip((gpus, cpus, memory), node, strict=True) if 0 < amount[0] < amount[1]]
    if hold.record.plan.inside.job.one_machine or not less:
        return ()
    if not (hold.status.allocation.nodes or (hold.record.plan.cpus and node.memory)):
        hint = "Start the run when the hold runs, or request whole nodes."
        problem = "Until the hold starts, hpcml does not know the CPUs and memory of its nodes"
        raise SiteError(problem, place=hold.run.id, hint=hint)
    if size.nodes > 1 and "--nodes" not in lines:
        hint = "Use --nodes 1, or request all CPUs, memory and GPUs of the nodes."
        raise UsageError("A run that takes a part of a node cannot have several nodes", place="--nodes", hint=hint)
    if gpus == NOT_SAID and given.gpus:
        hint = "Add --gpus-per-node N (0: none)."
        raise UsageError("It is not said how many GPUs the part of the node has", place=hold.run.id, hint=hint)
    amount, whole = (gpus, given.gpus) if gpus > 0 else less[0]
    part = Part(
        max(0, gpus),
        cpus if cpus > 0 else max(1, given.cpus * amount // whole),
        memory or given.memory * amount // whole,
    )
    if not part.fits((), node):
        has = f"{node.gpus} GPUs, {node.cpus} CPUs and {format_memory_for_slurm(node.memory << 20)} of memory"
        problem = f"The run requests more than a node of the hold has: {has}"
        raise UsageError(problem, place=hold.run.id, hint="Request less.")
    return part, node
