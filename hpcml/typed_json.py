"""Records as JSON: a typed record (a NamedTuple) from a table of a file, and back.

Keys that a record does not have are ignored: a newer version may have written them. A field with a default may be
missing: an older version did not write it. A value of another type is damage, named by its key (``inside.job.nodes``).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, ForwardRef, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MOST_NUMBER = 1e21  # a larger number is no amount of anything, and some are no float
_Read = Callable[[Any, list[str]], Any]  # returns a value, a blank one where it adds a problem to the list


class DamagedError(ValueError):
    """A table lacks a value, or has one of another type; the message begins with the value's key."""

    @property
    def key(self) -> str:
        """The value's key."""
        return str(self).partition(" ")[0]


def read(kind: type[T], table: object, *, whole: bool = False, spread: tuple[type, ...] = ()) -> T:
    """Return the record that a table of JSON holds.

    Parameters
    ----------
    whole
        Whether each field must be there, also one that has a default.
    spread
        Records whose fields are in the table of the record that holds them.

    Raises
    ------
    DamagedError
        If a value is missing or has another type.
    """
    problems: list[str] = []
    form: Any = kind
    record: T = _reader(form, "none" if whole else "defaults", spread)(table, problems)
    if problems:
        raise DamagedError(problems[0].lstrip())
    return record


def salvage(kind: type[T], table: object) -> tuple[T, list[str]]:
    """Return the record that a table of JSON holds, and a problem for each value that has another type.

    What is missing or damaged is the field's default, or empty.
    """
    problems: list[str] = []
    form: Any = kind
    record: T = _reader(form, "all", ())(table, problems)
    return record, [problem.lstrip() for problem in problems]


def _refuse(problem: str) -> None:
    raise DamagedError(problem.lstrip())


def on_demand(kind: type[T], table: object, tell: Callable[[str], None] = _refuse, within: tuple[type, ...] = ()) -> T:
    """Return a record whose fields are read from a table of JSON at their first use.

    What is missing is the field's default, or empty. So is what is damaged, if ``tell`` returns.

    Parameters
    ----------
    tell
        It is called with each problem, and raises DamagedError if none is given.
    within
        Records that are read in the same way where they are fields of it. All others are read whole.
    """
    return cast("T", _OnDemand(kind, table, tell, within))


class _OnDemand:
    """In place of a record: its fields, properties and methods, of which each field is read at its first use."""

    def __init__(self, kind: Any, table: object, tell: Callable[[str], None], within: tuple[type, ...]) -> None:
        if not isinstance(table, dict):
            tell(" is not a table")
            table = {}
        self._kind, self._table, self._tell, self._within = kind, table, tell, within
        self._readers = _readers_on_demand(kind, within)

    def __getattr__(self, name: str) -> Any:
        """Return a field, which then is an attribute, or what a property or a method makes of the fields."""
        table, tell = self._table, self._tell
        if not (reader := self._readers.get(name)):
            return getattr(self._kind, name).__get__(self)  # kept as an attribute, a method would hold its own object
        if isinstance(reader, _Field):
            value = table.get(name)
            if type(value) is not reader.easy:
                problems: list[str] = []
                value = _read_damaged(reader, table, problems)
                for problem in problems:
                    tell(problem)
        else:
            value = on_demand(reader, table.get(name, {}), lambda problem: tell(_below(name, problem)), self._within)
        self.__dict__[name] = value
        return value


@cache
def _readers_on_demand(kind: Any, within: tuple[type, ...]) -> dict[str, Any]:
    """Return the reader of each field of a record, by name; of a field that is ``within``, its record."""
    hints = fields_of(kind)
    return {name: hint if hint in within else _field(kind, name, "all", ()) for name, hint in hints.items()}


def plain(value: Any, *, digits: int | None = None, brief: bool = False, spread: tuple[type, ...] = ()) -> Any:
    """Return a value, and all that it holds, as tables, lists and what else JSON and TOML know.

    Parameters
    ----------
    digits
        Those that a float keeps after the point; all of them if no number is given.
    brief
        Whether fields that have their default are left out.
    spread
        As in :func:`read`.
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value) is float:
        return value if digits is None else round(value, digits)
    if fields := getattr(value, "_fields", None):
        table: dict[str, Any] = {}
        defaults = value._field_defaults if brief else {}
        for name, field in zip(fields, value, strict=True):
            if name in defaults and defaults[name] == field:
                continue
            part = plain(field, digits=digits, brief=brief, spread=spread)
            table |= part if isinstance(field, spread) else {name: part}
        return table
    if isinstance(value, Mapping):
        return {name: plain(part, digits=digits, brief=brief, spread=spread) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part, digits=digits, brief=brief, spread=spread) for part in value]
    return value.text if hasattr(value, "text") else str(value)


def blank(kind: Any) -> Any:
    """Return the empty value of a type: of a record the one with its defaults."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return blank(arguments[0])
    if kind is Any or type(None) in arguments:
        return None
    if fields := getattr(kind, "_fields", None):
        hints, defaults = fields_of(kind), kind._field_defaults
        return kind(*[defaults[name] if name in defaults else blank(hints[name]) for name in fields])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if origin in (Union, types.UnionType):
        return blank(arguments[0])
    return {} if origin and issubclass(origin, Mapping) else (origin or kind)()


@cache
def fields_of(kind: type) -> dict[str, Any]:
    """Return the types of a record's fields by name."""
    if any(isinstance(hint, ForwardRef) for hint in kind.__annotations__.values()):
        return get_type_hints(kind, include_extras=True)  # of a module whose annotations are texts
    return kind.__annotations__


@cache
def _reader(kind: Any, may_miss: str, spread: tuple[type, ...]) -> _Read:
    """Return the function that reads a value; ``may_miss``: ``none`` of a record's fields, ``defaults`` or ``all``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(arguments[1], blank(arguments[0]))
    if origin in (Union, types.UnionType):
        inner = [part for part in arguments if part is not type(None)]
        if len(inner) == len(arguments):
            return _number if set(inner) == {int, float} else _reader(inner[0], may_miss, spread)
        part: Any = Union[tuple(inner)]  # noqa: UP007 - there may be one
        return lambda value, problems: None if value is None else _reader(part, may_miss, spread)(value, problems)
    if hasattr(kind, "_fields"):
        return _of_record(kind, may_miss, spread)
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_reader(arguments[1], may_miss, spread))
    if origin is tuple:
        return _of_list([_reader(part, may_miss, spread) for part in arguments if part is not Ellipsis], kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _of_enum(kind)
    if hasattr(kind, "parse"):
        return _of_measure(kind)
    return _LEAVES.get(kind, _anything)


def _of_measure(kind: Any) -> _Read:
    """Return the function that reads a measure of :mod:`hpcml.units` from its words, or from a number."""

    def read_measure(value: Any, problems: list[str]) -> Any:
        if type(value) in (str, int, float):
            with contextlib.suppress(ValueError):
                return kind(str(value)) if value != "" else kind()
        problems.append(f" is not a measure ({kind.__name__})")
        return kind()

    return read_measure


def _anything(value: Any, _problems: list[str]) -> Any:
    return value


def _text(value: Any, problems: list[str]) -> str:
    if type(value) is str:
        return value
    problems.append(" is not a text")
    return ""


def _flag(value: Any, problems: list[str]) -> bool:
    if type(value) is bool:
        return value
    problems.append(" is not true or false")
    return False


def _whole(value: Any, problems: list[str]) -> int:
    if type(value) is int and -_MOST_NUMBER < value < _MOST_NUMBER:
        return value
    problems.append(" is not a whole number")
    return 0


def _number(value: Any, problems: list[str]) -> int | float:
    if (type(value) is float or type(value) is int) and -_MOST_NUMBER < value < _MOST_NUMBER:
        return value
    problems.append(" is not a number")
    return 0


_LEAVES: dict[Any, _Read] = {
    str: _text,
    bool: _flag,
    int: _whole,
    float: lambda value, problems: float(_number(value, problems)),
}


def _of_enum(kind: type[Enum]) -> _Read:
    members = {member.value: member for member in kind}
    first = next(iter(kind))

    def read_member(value: Any, problems: list[str]) -> Enum:
        if type(value) is str and value in members:
            return members[value]
        try:
            return kind(value)  # an earlier name
        except ValueError:
            problems.append(f" is not one of {', '.join(map(str, members))}")
            return first

    return read_member


def _checked(check: Callable[[Any], Any], empty: Any) -> _Read:
    """Return the function that reads what a function of the annotation checks; it raises ValueError for the rest."""

    def read_checked(value: Any, problems: list[str]) -> Any:
        try:
            return check(value)
        except ValueError as error:
            problems.append(f" {error}")
            return empty

    return read_checked


class _Field(NamedTuple):
    """How a field of a record is read."""

    name: str
    read: _Read
    empty: Any  # its value where it is missing
    may_miss: bool
    is_spread: bool
    easy: type | None  # a value of this type needs no reader


@cache
def _field(kind: Any, name: str, may_miss: str, spread: tuple[type, ...]) -> _Field:
    hint, defaults = fields_of(kind)[name], kind._field_defaults
    return _Field(
        name,
        _reader(hint, may_miss, spread),
        defaults[name] if name in defaults else blank(hint),
        may_miss == "all" or (may_miss == "defaults" and name in defaults),
        hint in spread,
        hint if hint in (str, bool) else None,
    )


def _of_record(kind: Any, may_miss: str, spread: tuple[type, ...]) -> _Read:
    fields = [_field(kind, name, may_miss, spread) for name in fields_of(kind)]
    empty, make = [field.empty for field in fields], tuple.__new__  # kind._make takes twice the time
    by_name = {field.name: (place, field.read, field.easy) for place, field in enumerate(fields)}
    needed = {field.name for field in fields if not field.may_miss}
    spread_names = {field.name for field in fields if field.is_spread}

    def read_record(table: Any, problems: list[str]) -> Any:
        if type(table) is not dict:
            problems.append(" is not a table")
            return blank(kind)
        table = table | dict.fromkeys(spread_names, table) if spread_names else table
        count, values = len(problems), empty.copy()
        for name, value in table.items():
            if field := by_name.get(name):
                place, read_value, easy = field
                values[place] = value if type(value) is easy else read_value(value, problems)
        if len(problems) == count and needed <= table.keys():
            return make(kind, values)
        del problems[count:]
        return make(kind, [_read_damaged(field, table, problems) for field in fields])

    return read_record


def _read_damaged(field: _Field, table: dict[str, Any], problems: list[str]) -> Any:
    """Return a field's value, and add its problems with their keys, which whole tables, the usual ones, do without."""
    if field.name not in table:
        problems += [] if field.may_miss else [f"{field.name} is missing"]
        return field.empty
    found: list[str] = []
    value = field.read(table[field.name], found)
    problems += found if field.is_spread else [_below(field.name, problem) for problem in found]
    return value if not found or hasattr(value, "_fields") else field.empty


def _below(name: object, problem: str) -> str:
    return f"{name}{problem}" if problem[0] == " " else f"{name}.{problem}"


def _of_mapping(read_part: _Read) -> _Read:
    def read_mapping(table: Any, problems: list[str]) -> dict[str, Any]:
        if not isinstance(table, dict):
            problems.append(" is not a table")
            return {}
        parts = {}
        for name, value in table.items():
            count = len(problems)
            part = read_part(value, problems)
            if len(problems) > count:
                problems[count:] = [_below(name, problem) for problem in problems[count:]]
            else:
                parts[name] = part
        return parts

    return read_mapping


def _of_list(readers: list[_Read], kind: Any) -> _Read:
    """Return the function that reads a list as a tuple: of any length, or of one value for each reader."""
    any_length = get_args(kind)[-1] is Ellipsis
    texts: list[type | None] = [
        part for part in get_args(kind) if part is str
    ]  # a list of nothing but texts needs no reader
    texts = texts if len(texts) == len(readers) else [None] * len(readers)

    def read_list(values: Any, problems: list[str]) -> tuple[Any, ...]:
        if not isinstance(values, (list, tuple)):
            problems.append(" is not a list")
            return ()
        if list(map(type, values)) == (texts * len(values) if any_length else texts):
            return tuple(values)
        if any_length:
            count = len(problems)
            items = tuple([readers[0](value, problems) for value in values])
            if len(problems) > count:
                problems[count:] = [_below("[]", problem) for problem in problems[count:]]
            return items
        if len(values) != len(readers):
            problems.append(f" does not have {len(readers)} values")
            return tuple(map(blank, get_args(kind)))
        return tuple([read_item(value, problems) for read_item, value in zip(readers, values, strict=True)])

    return read_list


class Table:
    """A table whose keys depend on what it is about; a value is of the type asked for, or a DamagedError is raised."""

    __slots__ = ("facts",)

    def __init__(self, record: object) -> None:
        if not isinstance(record, dict):
            raise DamagedError("it is not a table")
        self.facts: dict[str, object] = record

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value, or the default; DamagedError if it has another type, or both are missing."""
        value = self.facts.get(key, default)
        if type(value) is kind or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        raise DamagedError(f"{key} {'has the wrong type' if key in self.facts else 'is missing'}")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty if there is none; DamagedError if it is something else."""
        values = self.get(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise DamagedError(f"{key} has the wrong type")
        return tuple(values)

    def numbers(self, key: str) -> dict[str, float]:
        """Return a table of numbers."""
        table = Table(self.get(key, dict))
        return {name: table.number(name) for name in table.facts}

    def number(self, key: str) -> float:
        """Return a number; DamagedError if it is missing, or none."""
        value = self.facts.get(key)
        if (type(value) is float or type(value) is int) and -_MOST_NUMBER < value < _MOST_NUMBER:
            return value
        raise DamagedError(f"{key} {'is not a number' if key in self.facts else 'is missing'}")
