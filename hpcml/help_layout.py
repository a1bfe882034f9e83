"""Lay out what ``--help`` prints for the terminal's width: words are whole, and examples stay lines of their own."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable

from hpcml.terminal import folded

WIDEST = 118  # columns; longer lines are hard to read
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")  # between an example and what it says


class HelpLayout(argparse.HelpFormatter):
    """A formatter of argparse's: paragraphs are folded between words, indented lines stay lines.

    An indented block in which a line is too long has what stands behind a gap below its line; a command in it that is
    still too long goes on after a backslash.
    """

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 24) -> None:
        super().__init__(prog, indent_increment, max_help_position)
        self._width = min(self._width, WIDEST)
        if self._width >= 100:  # room for long options and what they mean on one line
            self._max_help_position = 44

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Name the value of an option once, behind all its spellings."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return folded(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for kind, block in itertools.groupby(text.strip("\n").split("\n"), _kind):
            if kind == "empty":
                lines.append("")
            elif kind == "paragraph":
                lines += folded(" ".join(block), width, first=indent, rest=indent)
            else:
                lines += _indented(list(block), width)
        return "\n".join(lines)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Add the usage; one that is written out is folded too, each line of it by itself."""
        if usage and usage is not argparse.SUPPRESS:
            room, rest = self._width - len("usage: "), " " * len("usage:   ")
            usage = f"\n{' ' * len('usage: ')}".join(
                "\n".join(folded(line, room, rest=rest)) for line in usage.split("\n")
            )
        super().add_usage(usage, actions, groups, prefix)


def _kind(line: str) -> str:
    if not line.strip():
        return "empty"
    return "indented" if line.startswith(" ") else "paragraph"


def _indented(block: list[str], width: int) -> list[str]:
    if all(len(line) <= width for line in block):
        return block
    lines = []
    for line in block:
        margin = line[: len(line) - len(line.lstrip())]
        example, *remarks = _GAP.split(line.strip())
        open_end = " \\" if example.startswith(("python", "hpcml")) else ""
        deeper = f"{margin}    "
        lines += folded(example, width, first=margin, rest=deeper, open_end=open_end)
        for remark in remarks:
            lines += folded(remark, width, first=deeper, rest=deeper)
    return lines
