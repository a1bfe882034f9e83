"""``hpcml stacks``: what all processes of a run do now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.terminal import columns, fit, say, say_fitted, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.failures.stack_groups import Frame, Group

_NAMED = 16  # processes of a group that are named
_FRAMES, _LIBRARY_FRAMES = 8, 3  # frames of a stack that are shown: of the user's code, and outside it


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    parser.epilog = "The exit status is 1 if a node does not answer, and 66 if the run has no processes."
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Show the stacks of a run's processes, equal ones together."""
    from hpcml.runs import stacks
    from hpcml.runs import status as run_status

    run, status = run_status.now(common.find_run(options))
    answer = stacks.ask(run, status)
    if options.json:
        groups = [
            {
                "count": len(group.processes),
                "place": group.place,
                "stacks": [[frame._asdict() for frame in stack] for stack in group.processes[0].stacks],
                "processes": [
                    {name: getattr(process, name) for name in ("node", "pid", "name", "child", "command", "by", "wait")}
                    for process in group.processes
                ],
            }
            for group in answer.groups
        ]
        common.print_json({"run": run.id, "groups": groups, "missing": answer.missing})
    else:
        for group in answer.groups:
            _show(group)
        if answer.missing:
            nodes = ", ".join(answer.missing)
            say_fitted(f"hpcml received no stacks from {nodes}: see hpcml status {run.id}.", sys.stderr)
    return int(bool(answer.missing))


def _show(group: Group) -> None:
    say_fitted(group.sentence, sys.stdout, rest="  ")
    say_fitted(group.names(_NAMED), sys.stdout, first="  ", rest="  ")
    if not group.processes[0].stacks:
        say(_cut(f"  | {group.processes[0].command}"))
    for number, stack in enumerate(group.processes[0].stacks):
        if number:
            say("  | (another thread)")
        most = _FRAMES if stack[0].is_of_user() else _LIBRARY_FRAMES
        if len(stack) > most:
            say(f"  | ({len(stack) - most} frames are not shown)")
        for frame in stack[-most:]:
            say(_cut(f"  | {_line(frame)}"))


def _line(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} {frame.function}{': ' if frame.code else ''}{frame.code}"


def _cut(line: str) -> str:
    """Return a line that fits the terminal; elsewhere whole."""
    return fit(shown(line), width) if (width := columns(sys.stdout)) else line
