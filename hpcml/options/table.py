"""The options of a run, in one table: those of every kind of run, and those that only one kind has."""

from __future__ import annotations

from hpcml.kinds import KINDS
from hpcml.request import options
from hpcml.request.option import KindOptions, Option

_OF_KINDS: dict[str, KindOptions] = {name: kind.options() or KindOptions() for name, kind in KINDS.items()}


def _of_kinds(title: str) -> tuple[Option, ...]:
    """Return the rows that the kinds of run have in a group of the help."""
    rows: dict[str, Option] = {}
    for kind, of_kind in _OF_KINDS.items():
        for row in of_kind.rows.get(title, ()):
            first = rows.get(row.name, row)  # of an option that several kinds have
            rows[row.name] = first._replace(kinds=first.kinds | {kind})
    return tuple(rows.values())


GROUPS = {title: (*rows, *_of_kinds(title)) for title, rows in options.GROUPS.items()}
OPTIONS = {option.name: option for group in GROUPS.values() for option in group}
BY_WORD = {word: option for option in OPTIONS.values() for word in (option.word, *option.also)}
TAKES_VALUE = {word: option.takes_word for word, option in BY_WORD.items()}
# Words of other tools that only a kind of run has an answer to, and the sentence that says what to use.
INSTEAD = {word: sentence for of_kind in _OF_KINDS.values() for word, sentence in of_kind.instead.items()}


def of(taker: str) -> dict[str, Option]:
    """Return the options that a taker has, by name."""
    return {name: option for name, option in OPTIONS.items() if taker in option.takers}
