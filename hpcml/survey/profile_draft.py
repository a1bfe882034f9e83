"""A profile while it is written: values, how each is known, remarks and questions; and what of an older one stays."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcml.sites.schema import Fact
from hpcml.sites.settings_layers import Layers
from hpcml.terminal import shown

SCHEDULER = "slurm"  # of whose machines profiles are written
SLURM, NODE, LOGIN = "Slurm's own answer", "a job on a node", "the login node"
_MARK = ", read by hpcml site init"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 118
Table = tuple[str, ...]


class How(NamedTuple):
    """How a value is known: by whose answer (``SLURM`` …) to which question; ``concluded``: it was not said itself."""

    who: str
    question: str
    concluded: bool = False

    @property
    def confidence(self) -> str:
        """As a fact has it."""
        return "guessed" if self.concluded else "confirmed"

    @property
    def source(self) -> str:
        """As a fact has it."""
        return f"{self.who}{_MARK}: {shown(self.question)}"


def read_by(source: str) -> str:
    """Return whose answer a fact of ours comes from; nothing if it is not ours."""
    who, mark, _ = source.partition(_MARK)
    return who if mark and who in (SLURM, NODE, LOGIN) else ""


class Told(NamedTuple):
    """A fact as a profile has it."""

    confidence: str
    date: str
    source: str
    value: str = ""

    @property
    def text(self) -> str:
        """As a table of TOML."""
        value = f"value = {toml(self.value)}, " if self.value else ""
        return f"{{ {value}confidence = {toml(self.confidence)}, date = {self.date}, source = {toml(self.source)} }}"


class Draft:
    """Values by table and name, facts by dotted key, remarks by table; all in the order in which they came."""

    def __init__(self, date: str) -> None:
        self.date = date
        self.values: dict[Table, dict[str, object]] = {(): {}}
        self.facts: dict[str, Told] = {}
        self.remarks: dict[Table, list[str]] = {}
        self.questions: list[str] = []

    def set(self, table: Table, name: str, value: object, how: How) -> None:
        """Set a value, and how it is known; one that says nothing (0, empty) is left out."""
        if value or value is False:
            self.values.setdefault(table, {})[name] = value
            self.facts[".".join((*table, name))] = Told(how.confidence, self.date, how.source)

    def choose(self, table: Table, name: str, value: object) -> None:
        """Set a value that hpcml chooses by itself: nothing is known of it."""
        self.values.setdefault(table, {})[name] = value

    def tell(self, key: str, value: str, how: How) -> None:
        """Add a fact that is no setting."""
        if value:
            self.facts[key] = Told(how.confidence, self.date, how.source, shown(value))

    def remark(self, table: Table, text: str) -> None:
        """Write a comment above a table."""
        self.values.setdefault(table, {})
        self.remarks.setdefault(table, []).append(shown(text))

    def ask(self, table: Table, text: str) -> None:
        """Write a question above a table that only somebody who knows the machine can answer."""
        self.questions.append(shown(text))
        self.remark(table, f"QUESTION: {text}")

    def text(self, heading: Sequence[str]) -> str:
        """Return the profile."""
        lines = [*_comments(heading)]
        for table in _in_order(self.values):
            values = self.values[table]
            above = [*_comments(self.remarks.get(table, []))]
            if table:
                lines += ["", *above]
                lines += [f"[{'.'.join(map(_name, table))}]"] if values else []
            else:
                lines += above
            lines += [f"{_name(name)} = {toml(value)}" for name, value in values.items()]
        lines += ["", *_comments(["To show the source of each value: hpcml site show NAME --facts."]), "[facts]"]
        lines += [f"{toml(key)} = {fact.text}" for key, fact in self._short_facts()]
        return "\n".join([*lines, ""])

    def _short_facts(self) -> Iterator[tuple[str, Told]]:
        """Yield the facts; the most frequent fact of a table's values applies to the table."""
        common: dict[str, Told] = {}
        for table, values in self.values.items():
            facts_of_table = [self.facts[key] for name in values if (key := ".".join((*table, name))) in self.facts]
            whole = table and facts_of_table and len(facts_of_table) == len(values)
            if whole and not any(other[: len(table)] == table and other != table for other in self.values):
                fact, times = Counter(facts_of_table).most_common(1)[0]
                if times > 1:
                    common[".".join(table)] = fact
        done = set()
        for key, fact in self.facts.items():
            above = key.rpartition(".")[0]
            if fact.value or common.get(above) != fact:
                yield key, fact
            elif above not in done:
                done.add(above)
                yield above, fact


def _in_order(tables: dict[Table, dict[str, object]]) -> list[Table]:
    """Return the tables so that those below one follow it."""
    first: dict[str, int] = {}
    for table in tables:
        first.setdefault(table[0] if table else "", len(first))
    return sorted(tables, key=lambda table: (first[table[0] if table else ""], len(table) > 1))


def _comments(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        line = "#"
        for word in text.split():
            if len(line) + len(word) >= _WIDTH and line != "#":
                yield line
                line = "#  "
            line += f" {word}"
        yield line


def _name(text: str) -> str:
    return text if _BARE.fullmatch(text) else toml(text)


def toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_name(name)} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


# -- an older profile -------------------------------------------------------------------------------------------------


def keep_older(draft: Draft, old: Layers, written: dict[str, Fact], *, probed: bool) -> list[str]:
    """Lay over a draft what an older profile has from others than this command; return the keys that differ.

    Parameters
    ----------
    old
        The older profile's own table alone.
    written
        The facts of its file.
    probed
        Whether a node was asked now: else what one said before stays.
    """
    kept = []
    before = {(*table, name): value for table, values in draft.values.items() for name, value in values.items()}
    for escaped, value in old.values.items():
        parts = tuple(part.replace("\0", ".") for part in escaped.split("."))
        if parts[0] in ("facts", "extends", "description"):
            continue
        key = ".".join(parts)
        above = next((name for name in _and_above(key) if name in written), "")
        fact = written.get(above)
        if fact is not None and not _stays(fact, probed=probed):
            continue
        table, name = parts[:-1], parts[-1]
        holder = draft.values.get(table[:-1], {}).get(table[-1]) if table else None
        if isinstance(holder, dict):  # as identify.environment
            holder[name] = value.value
        else:
            draft.values.setdefault(table, {})[name] = value.value
            draft.facts.pop(key, None)
            if fact is not None:
                draft.facts[key] = Told(fact.confidence, fact.date, fact.source)
        if not isinstance(holder, dict) and before.get(parts) != value.value:
            kept.append(key)
    for key, fact in written.items():
        if fact.value and _stays(fact, probed=probed):
            draft.facts[key] = Told(fact.confidence, fact.date, fact.source, fact.value)
    return kept


def _stays(fact: Fact, *, probed: bool) -> bool:
    who = read_by(fact.source)
    return not who or (who == NODE and not probed)


def _and_above(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
