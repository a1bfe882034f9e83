"""``hpcml shell``: a shell on a node of a run, in its image and with its environment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml import schedulers
from hpcml.cli import common
from hpcml.config_trust import HPCML
from hpcml.errors import NotFoundError, UsageError
from hpcml.terminal import say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_IN_IMAGE = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh", "shell")


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = "In a run with Dask, distributed.Client() and hpcml.connect() connect to the run's cluster."
    common.add_run(parser)
    parser.add_argument(
        "node",
        metavar="NODE",
        nargs="?",
        default="",
        help="node of the run, or rank:N for the node of a rank (default: the run's first node)",
    )
    common.add_site(parser)


def run(options: Namespace) -> int:
    """Start the shell on this terminal, and return its exit status; UsageError if it is no terminal."""
    from hpcml import subprocesses
    from hpcml.remote import node_ssh, tunnel_target
    from hpcml.runs import merged_rank_logs, record

    if options.caller or not sys.stdin.isatty():
        hint = "Log in with a terminal (ssh -t HOST), and run hpcml shell in that terminal."
        raise UsageError("A shell needs a terminal", place="hpcml shell", hint=hint)
    run = record.adopt(common.find_run(options))
    status = node_ssh.active(run)
    rank = merged_rank_logs.OF_ONE.fullmatch(options.node)
    name = "" if rank else options.node
    nodes = status.allocation.nodes
    node = tunnel_target.node_of(record.planned(run), nodes, name, int(rank[1]) if rank else None, run.id)
    assert run.submission is not None
    environment = schedulers.get(run.submission.scheduler).clean_environment() | node_ssh.variables(run, status)
    into_image = node_ssh.into_image(run)
    where = f"in the image of run {run.id}, on node {node}" if into_image else f"on node {node} of run {run.id}"
    say_fitted(f"This shell is {where}. The command exit ends the shell, not the run.", sys.stderr)
    on = schedulers.nodes_of(run.submission.scheduler)
    shell = [*into_image, *_IN_IMAGE] if into_image else [environment.get("SHELL") or "bash"]
    try:
        subprocesses.become(
            [*(on.shell_on(run.submission.key, node) if on else ()), *shell], environment, program=HPCML
        )
    except subprocesses.CommandMissingError as error:
        raise NotFoundError(
            f"The shell cannot be started: {error}", place="PATH", hint="Check the variable SHELL."
        ) from error
    return 0
