"""``hpcml interconnect``: measure the interconnect between nodes, or show a run's measurement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hpcml.cli import common, submit
from hpcml.errors import NotFoundError, StorageError, UsageError
from hpcml.run_files import Recorded
from hpcml.runs import directories
from hpcml.terminal import say, say_fitted
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser


def add_options(parser: Parser) -> None:
    """Add a submission's options, and the run whose measurement is shown instead."""
    submit.add_options(parser, "interconnect")
    parser.epilog = (
        "Without RUN, hpcml submits a job that measures the interconnect between each pair of its nodes. "
        "hpcml waits for the job's end, unless you add --detach."
    )
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help="show the interconnect measurement of RUN")


def run(options: Namespace) -> int:
    """Show RUN's measurement, or submit the job that measures every node against every other."""
    if options.run:
        return _show_measurement(options)
    if not (options.detach or options.dry_run or options.prepare or options.check):
        options.wait = True
    return submit.start(options, submit.service_spec(options, Form.INTERCONNECT))


def _show_measurement(options: Namespace) -> int:
    for name in ("nodes", "gpus_per_node", "dry_run", "prepare", "check", "wait", "detach"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            hint = f"Remove RUN to measure again, or remove {option} to show the measurement of RUN."
            raise UsageError(f"{option} applies only to a new measurement", place="hpcml interconnect RUN", hint=hint)
    run = common.find_run(options)
    attempts = [run.paths.attempt(number) for number in Recorded(run.paths).attempts]
    measured = [attempt.interconnect for attempt in attempts if attempt.interconnect.exists()]
    if not measured:
        hint = "CPU runs that use TLS do not measure the interconnect. To measure: hpcml interconnect --nodes N."
        raise NotFoundError("The run did not measure the interconnect", place=run.id, hint=hint)
    table = directories.read_json(measured[-1])
    facts: Any = table.facts if table else {}
    if options.json:
        common.print_json(facts)
        return 0
    try:
        verdict = facts["verdict"]
        say_fitted(verdict["line"], sys.stdout, rest="  ")
        for sentence in filter(None, (*verdict["problems"], verdict["remedy"])):
            say_fitted(sentence, sys.stdout, first="  ", rest="    ")
        for pair in facts["measurement"]["pairs"]:
            rate = pair["bytes"] / 1024**3 / pair["seconds"] if pair["seconds"] else 0.0
            say(f"  {pair['scope']:<7} {pair['source']} → {pair['target']}  {pair['error'] or f'{rate:.2f} GiB/s'}")
    except (KeyError, TypeError, AttributeError) as error:
        hint = "The file was changed or truncated. Measure again with hpcml interconnect --nodes N."
        message = f"The measurement is not complete ({type(error).__name__}: {error})"
        raise StorageError(message, place=str(measured[-1]), hint=hint) from error
    return 0
