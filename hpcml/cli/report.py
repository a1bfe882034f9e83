"""``hpcml report``: the report of a run as a page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import UsageError
from hpcml.terminal import note, say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, "print the report's data as JSON (report.json)")
    parser.add_argument("--open", action="store_true", help="open the report in a browser on this machine")


def run(options: Namespace) -> int:
    """Make a run's report again from its files, and print its path; UsageError for --open on a login node."""
    from hpcml.runs import report

    if options.open and options.caller:
        hint = f"Copy the report here with hpcml --host HOST fetch {options.run}, and open report.html."
        raise UsageError("The browser would open on the login node", place="--open", hint=hint)
    page = report.make(common.find_run(options))
    if options.json:
        common.print_json(report.facts(page))
    else:
        say(common.typed(page, sys.stdout))
    if options.open:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            note("No browser could be started. Open the report yourself.")
    return 0
