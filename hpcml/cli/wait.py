"""``hpcml wait``: wait until runs have ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.runs import directories
from hpcml.terminal import say_fitted, say_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.add_argument("run", metavar="RUN", nargs="*", help=f"{common.RUN} (default: last)")
    common.add_site(parser)
    common.add_json(parser, "print a JSON list with the output of hpcml status --json for each RUN")


def run(options: Namespace) -> int:
    """Wait for each run; return the exit status of the last that failed, 0 if none did."""
    folder = common.runs_folder(options)
    runs = [run for word in options.run or ("last",) for run in directories.find_all(folder, word)]
    return wait_for(runs, as_json=options.json)


def wait_for(runs: Sequence[directories.Run], *, as_json: bool) -> int:
    """Wait for each run, and print how it ended; return the exit status of the last that failed, 0 if none did."""
    from hpcml.runs import handle

    handles = [handle.RunHandle(run) for run in runs]
    answers, failed = [], 0
    try:
        if sys.stderr.isatty() and not as_json:
            subject = handles[0].id if len(handles) == 1 else f"{len(handles)} runs"
            say_fitted(f"Waiting for {subject}. Ctrl-C ends this command; runs continue.", sys.stderr)
        for waited_for in handles:
            last = waited_for.wait_status()
            answers.append(last.as_json())
            exit_status = handle.exit_status_of(last)
            failed = exit_status or failed
            if not as_json:
                say_fitted(f"{waited_for.id}  {last.state}  {exit_status}  {last.message}", sys.stdout, rest="  ")
    except KeyboardInterrupt:
        say_lines("\nStopped waiting. The runs continue.", sys.stderr)
        return 130
    if as_json:
        common.print_json(answers)
    return failed
