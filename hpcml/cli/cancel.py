"""``hpcml cancel``: cancel a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.terminal import say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser, default=None)
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Tell the run to end; its driver is told first and has its grace."""
    from hpcml.runs import handle

    run = common.find_run(options)
    told, message = handle.cancel(run)
    if options.json:
        common.print_json({"run": run.id, "cancelled": told, "words": message})
    else:
        say(message)
    return 0
