"""``hpcml plan``: show the plan of a submission as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.cli import common, submit
from hpcml.sites import layers

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add a submission's options but those that say what becomes of it."""
    submit.add_options(parser, "plan")
    common.add_json(parser, "taken too; the plan is JSON anyway")


def run(options: Namespace) -> int:
    """Print the plan."""
    from hpcml.runs import submit as submission

    common.print_json(layers.as_table(submission.prepare_request(submit.script_spec(options), learn=False).plan))
    return 0
