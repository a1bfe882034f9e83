"""``hpcml site init``: write a profile of this machine from what it says of itself."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import ConfigError, UsageError
from hpcml.terminal import say_fitted, say_lines, say_message

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hpcml.survey.draft import Draft

_FLAGS = ("probe", "print", "force", "refresh", "yes")
_DEADLINE = "10m"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def add_options(parser: ArgumentParser) -> None:
    """Add what only ``init`` takes."""
    parser.add_argument(
        "--probe",
        action="store_true",
        help="init: look at a node too, by a job of two minutes at most on one or two nodes",
    )
    parser.add_argument("--print", action="store_true", help="init: print the profile, and write nothing")
    parser.add_argument("--force", action="store_true", help="init: replace a profile that is there")
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="init: read again, show the difference, and write if you agree; your own values stay",
    )
    parser.add_argument("--yes", action="store_true", help="init --refresh: agree beforehand")
    parser.add_argument(
        "--account", "-A", metavar="ACCOUNT", default="", help="init --probe: who pays for the job (Slurm's default)"
    )
    parser.add_argument(
        "--partition",
        "-p",
        metavar="PARTITION",
        default="",
        help="init --probe: where it runs (the first that has GPUs)",
    )
    parser.add_argument(
        "--qos", "-q", metavar="QOS", default="", help="init --probe: its QoS (one whose name speaks of debugging)"
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        default=_DEADLINE,
        help="init --probe: how long it may wait and run before it is cancelled (10m)",
    )


def given(options: Namespace) -> str:
    """Return the first option that only ``init`` takes and that is given, as it is written; nothing if none is."""
    names = (*_FLAGS, "account", "partition", "qos")
    found = next(
        (name for name in names if getattr(options, name)), "deadline" if options.deadline != _DEADLINE else ""
    )
    return f"--{found}" if found else ""


def run(options: Namespace, show_difference: Callable[[Sequence[str], Sequence[str]], bool]) -> int:
    """Write the profile of this machine, or show how it differs from the one that is there."""
    from hpcml.sites import layers, lookup
    from hpcml.survey import machine
    from hpcml.units import parse_seconds

    (name,) = options.names
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        hint = "Write hpcml site init mycluster; its file is mycluster.toml."
        raise UsageError(f"'{name}' cannot be a profile's name", place="SITE", hint=hint)
    environment = layers.process_environment()
    path = lookup.config_folders(environment)[-1] / "profiles" / f"{name}.toml"
    _check_place(path, options)
    seconds = max(1.0, common.parsed(parse_seconds, options.deadline, "--deadline", "10m"))
    survey = machine.Survey()
    if options.probe:
        common.end_by_signals()  # as by Ctrl-C the job is cancelled
        say_message("hpcml: looking at a node by a job of two minutes at most; Ctrl-C cancels it.")
        survey.probe(options.account, options.partition, options.qos, seconds)
    kept = survey.keep_of(path) if options.refresh else []
    survey.check()
    heading = _heading(name, survey.date)
    text = survey.draft.text(heading)
    if options.print:
        say_lines(text.rstrip("\n"))
    elif options.refresh:
        with survey.on_disk(heading) as new:
            differs = show_difference([str(path), str(new)], ["there", "now"])
        _refresh(options, path, text, kept, differs=differs)
    else:
        machine.put(path, text)
        _say_written(options, path, survey.draft)
    return 0


def _check_place(path: Path, options: Namespace) -> None:
    there = path.exists() or path.is_symlink()
    if options.refresh and not there:
        hint = f"Write it first: hpcml site init {path.stem}."
        raise ConfigError("There is no profile to read again", place=str(path), hint=hint)
    if there and not (options.force or options.refresh or options.print):
        hint = "Give --refresh to see what differs, --force to replace it, or another name."
        raise UsageError("There is a profile of that name", place=str(path), hint=hint)


def _heading(name: str, date: str) -> tuple[str, ...]:
    return (
        f"{name}: what this machine said of itself on {date}, written by hpcml site init.",
        "Change what is wrong, and take the value's fact out or write your own: --refresh then leaves it as it is.",
        "QUESTION marks what no command tells. Answer it with a value, and take the line out.",
    )


def _refresh(options: Namespace, path: Path, text: str, kept: list[str], *, differs: bool) -> None:
    from hpcml.survey import machine

    if kept:
        say_fitted(f"Left as they are: {', '.join(kept)}.", sys.stdout, rest="  ")
    if not differs:
        return
    if not common.confirmed(f"Write it to {path}?", options.yes):
        say_fitted("Nothing is written.", sys.stdout)
        return
    machine.put(path, text, old=True)
    say_fitted(f"{path} is written; the one before is beside it as {path.name}.old.", sys.stdout)


def _say_written(options: Namespace, path: Path, draft: Draft) -> None:
    names = {
        one: [table[1] for table in draft.values if len(table) == 2 and table[0] == one]
        for one in ("partitions", "qos")
    }
    if options.json:
        common.print_json({"path": str(path), **names, "questions": draft.questions})
        return
    counts = f"{len(names['partitions'])} partitions, {len(names['qos'])} QoS"
    say_fitted(f"{common.typed(path, sys.stdout)} is written: {counts}.", sys.stdout)
    say_fitted(f"{len(draft.questions)} questions in it are for you; they begin with QUESTION.", sys.stdout)
    say_fitted(f"  hpcml site show {path.stem} --facts", sys.stdout)
    say_fitted(f"  hpcml doctor --site {path.stem}", sys.stdout)
    say_fitted(f"  hpcml submit --site {path.stem} --nodes 2 --check first.py", sys.stdout)
