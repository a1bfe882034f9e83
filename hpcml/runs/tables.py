"""Tables of a run's files, which may have been changed: each value is of the kind that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from hpcml.errors import StorageError

T = TypeVar("T")


class Table:
    """A table of a file that may have been changed: a value is of the kind asked for, or the file is damaged."""

    def __init__(self, facts: object) -> None:
        if not isinstance(facts, dict):
            raise TypeError("not a table")
        self.facts: dict[str, object] = facts

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value; without a default it has to be there.

        Raises
        ------
        KeyError, TypeError
            If it is missing or of another kind.
        """
        value = self.facts[key] if default is None else self.facts.get(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{key} is of another kind")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty if there is none; TypeError if it is of another kind."""
        values = self.get(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise TypeError(f"{key} is of another kind")
        return tuple(values)

    def numbers(self, key: str) -> dict[str, float]:
        """Return a table of numbers; KeyError or TypeError if it is missing or damaged."""
        table = Table(self.facts[key])
        return {name: table.number(name) for name in table.facts}

    def number(self, key: str) -> float:
        """Return a number; KeyError or TypeError if it is none."""
        value = self.facts[key]
        return float(value) if isinstance(value, float) else self.get(key, int)

    def record(self, schema: type[T], required: Sequence[str] = ()) -> T:
        """Return a record whose fields' kinds are those of their defaults; ``required`` are keys that must be there."""
        values: dict[str, object] = {}
        for name, default in getattr(schema, "_field_defaults", {}).items():
            if name not in self.facts and name not in required:
                continue
            if isinstance(default, tuple):
                values[name] = self.texts(name)
            else:
                values[name] = self.number(name) if isinstance(default, float) else self.get(name, type(default))
        return schema(**values)


@contextlib.contextmanager
def complete(directory: Path) -> Iterator[None]:
    """Turn what a damaged file of a run lacks, or has of another kind, into a StorageError that names the run."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        hint = "It was changed or cut short; the logs of the run may tell more."
        message = f"The run's record is not complete ({type(error).__name__}: {error})"
        raise StorageError(message, place=str(directory), hint=hint) from error
