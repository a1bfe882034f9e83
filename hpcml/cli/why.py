"""``hpcml why``: why a run failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.cli.ls import cut
from hpcml.errors import StorageError
from hpcml.terminal import say, say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.failures.evidence import Line
    from hpcml.runs import directories
    from hpcml.runs.why import Answer

_WIDEST = 240  # characters of a quoted line


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser)
    parser.add_argument("--bundle", action="store_true", help="pack what support needs into RUN.tar.gz here")


def run(options: Namespace) -> int:
    """Show why a run failed."""
    from hpcml.runs import why

    run = common.find_run(options)
    answer = why.why(run)
    if options.bundle:
        return _bundle(run, answer, as_json=options.json)
    if options.json:
        common.print_json(answer.as_json())
        return 0
    _show(answer)
    return 0


def _bundle(run: directories.Run, answer: Answer, *, as_json: bool) -> int:
    """Pack the run's record and its logs, without secrets, into a file in the current folder."""
    from hpcml.runs import bundle

    target = common.here() / f"{run.id}.tar.gz"
    if target.exists():
        raise StorageError("The file is there already", place=str(target), hint="Remove it, or go to another folder.")
    count = bundle.write(run, answer, target)
    if as_json:
        common.print_json({"bundle": str(target), "files": count})
    else:
        say(f"{target}: {count} files.")
        say_fitted("Secrets and the values of variables were taken out; look at it before you send it.", sys.stdout)
    return 0


def sentence(answer: Answer) -> str:
    """Return the cause in one line."""
    text = answer.cause[:1].upper() + answer.cause[1:]
    if not answer.known:
        text = f"Not known: {answer.cause}"
    if answer.occurrences > 1:
        where = f" on {_named(answer.nodes)}" if answer.nodes else ""
        text += f" ({answer.occurrences} times{where})"
    elif answer.nodes:
        text += f" (on {_named(answer.nodes)})"
    return f"{text.rstrip('.')}."


def _named(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more nodes" if len(nodes) > 4 else "")


def _show(answer: Answer) -> None:
    key = "cause" if answer.failed else "run"
    say_fitted(sentence(answer), sys.stdout, first=f"{key:<10} ", rest=" " * 11)
    if not answer.failed:
        say(f"{'state':<10} {answer.state}")
    for title, lines in (("evidence", answer.evidence), ("then", answer.followed), ("warning", answer.warnings)):
        for line in lines:
            if place := _place(line):
                say(f"{title:<10} {place}")
            else:
                say(title)
            say(f"  | {cut(line.text, _WIDEST)}")
    for command in answer.look:
        say(f"{'look':<10} {command}")
    if answer.next_step:
        say_fitted(answer.next_step, sys.stdout, first=f"{'next':<10} ", rest=" " * 11)
    if answer.again:
        say(f"{'again':<10} {answer.again}")


def _place(line: Line) -> str:
    parts = [line.file]
    if line.number:
        parts.append(f"line {line.number}")
    if line.time:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time)))
    if line.node:
        parts.append(f"on {line.node}")
    return ", ".join(part for part in parts if part)
