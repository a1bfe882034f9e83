"""``hpcml plan``: show the plan of a submission as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.cli import common, submit
from hpcml.sites import layers

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add a submission's options but those that say what becomes of it."""
    submit.add_options(parser, [])
    common.add_json(parser, "taken too; the plan is JSON anyway")


def run(options: Namespace) -> int:
    """Print the plan."""
    common.print_json(layers.as_table(submit.prepare(options, submit.script_spec(options)).plan))
    return 0
