"""``hpcml shell``: a shell on a node of a run, with the run's environment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml import schedulers
from hpcml.cli import common
from hpcml.errors import NotFoundError, UsageError
from hpcml.origins import HPCML
from hpcml.terminal import say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = "In the shell, distributed.Client() and hpcml.connect() connect to the run's Dask cluster."
    common.add_run(parser)
    parser.add_argument(
        "node", metavar="NODE", nargs="?", default="", help="node of the run (default: the run's first node)"
    )
    common.add_site(parser)


def run(options: Namespace) -> int:
    """Start the shell on this terminal, and return its exit status."""
    from hpcml import script_api, subprocesses
    from hpcml.runs import handle

    if options.caller or not sys.stdin.isatty():
        hint = "Log in with a terminal (ssh -t HOST), and run hpcml shell in that terminal."
        raise UsageError("A shell needs a terminal", place="hpcml shell", hint=hint)
    one = handle.RunHandle(common.find_run(options))
    status = one.now()
    scheduler = handle.scheduler_of(one.run, status)
    node = options.node or (status.allocation.nodes[0] if status.allocation.nodes else "")
    if node not in status.allocation.nodes:
        hint = f"The run's nodes: {', '.join(status.allocation.nodes)}."
        raise NotFoundError(f"The run has no node '{node}'", place=one.id, hint=hint)
    assert one.run.submission is not None
    owner = schedulers.get(one.run.submission.scheduler)
    environment = owner.clean_environment() | script_api.client_variables(*scheduler)
    environment |= handle.node_variables(one.run, status)
    say_fitted(
        f"This shell is on node {node} of run {one.id}. The command exit ends the shell, not the run.", sys.stderr
    )
    nodes = schedulers.nodes_of(one.run.submission.scheduler)
    command = [*(nodes.shell_on(one.run.submission.key, node) if nodes else ()), environment.get("SHELL") or "bash"]
    try:
        subprocesses.become(command, environment, program=HPCML)
    except subprocesses.CommandMissingError as error:
        raise NotFoundError(
            f"The shell cannot be started: {error}", place="PATH", hint="Check the variable SHELL."
        ) from error
    return 0
