"""``hpcml logs``: show a run's logs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import NotFoundError, UsageError
from hpcml.sites import layers
from hpcml.terminal import say, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_ROLES = {"driver": "driver", "scheduler": "scheduler", "worker": "worker", "workers": "worker", "job": "job"}


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, argparse.SUPPRESS)
    parser.add_argument("role", metavar="ROLE", nargs="?", help="driver (default), scheduler, worker or job")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")


def run(options: Namespace) -> int:
    """Print a role's log, and what comes to it."""
    from hpcml.cli.progress import Tail
    from hpcml.runs import record as records
    from hpcml.runs import status as run_status

    word = options.role
    if word is None and options.run in _ROLES:
        options.run, word = "last", options.run  # hpcml logs worker
    role = _ROLES.get(word or "driver")
    if role is None:
        near = layers.nearest(word, list(_ROLES))
        hint = f"Did you mean {near}?" if near else "One of: driver, scheduler, worker, job."
        raise UsageError(f"There is no role '{word}'", place="hpcml logs", hint=hint)
    run = common.find_run(options)
    tails: dict[Path, Tail] = {}

    def copy() -> None:
        for path in sorted(run.paths.logs.glob("worker-*.log" if role == "worker" else f"{role}.log")):
            header = f"==> {shown(path.name)} <==\n" if role == "worker" else ""
            tail = tails.setdefault(path, Tail(path, sys.stdout, header))
            while tail.copy():
                pass

    if options.follow:
        for _ in run_status.follow(run, copy):
            pass
    else:
        copy()
    if role == "driver" and (end := records.outcome(run)) and end.by != "script":
        say(f"hpcml: {end.message}.", sys.stderr)  # the log itself is the script's alone
    if not tails and not options.follow:
        state = run_status.status(run)
        hint = f"It is {state.state}: {state.message}."
        raise NotFoundError(f"The run has no {role} log yet", place=run.id, hint=hint)
    return 0
