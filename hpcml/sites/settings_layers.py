"""Layers of settings (files, environment, ``--set``), each value with its origin, and records built from them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from hpcml import safe_files
from hpcml.config_trust import HPCML, Named, Origin
from hpcml.errors import ConfigError, NotFoundError, did_you_mean, nearest
from hpcml.sites import key_permissions, renamed_keys
from hpcml.units import Memory, Seconds, TimeLimit

T = TypeVar("T")
_OF_ALL = ("defaults.account", "defaults.qos")
_SWITCHES = "repairs"  # the table of which one word sets all keys: repairs = false


class Value(NamedTuple):
    """A setting, where it came from as messages say it (``/etc/hpcml/config.toml``, ``--set``), and who set it."""

    value: object
    origin: str
    by: Origin


class Layers:
    """Settings by dotted key; a later layer replaces scalars and lists and merges tables.

    A key that has another name now is kept by the new one. ``notes`` are for the user, in their order.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.notes: dict[str, None] = {}

    def add(self, table: Mapping[str, object], origin: str, by: Origin) -> None:
        """Lay a table over what is there.

        Raises
        ------
        ConfigError
            If it has a key that who set it may not set (:mod:`hpcml.sites.key_permissions`), or a key by both names.
        """
        values = dict(_flatten(table))
        for written, value in values.items():
            key = renamed_keys.current(written)
            if key != written:
                if key in values:
                    problem = f"'{_shown(written)}' is the old name of '{_shown(key)}', which is also set"
                    raise ConfigError(problem, place=origin, hint=f"Remove {_shown(written)}.")
                self.notes[renamed_keys.note_of(written, origin)] = None
            key_permissions.check(key, by, origin)
            below = f"{key}."
            for shadowed in [name for name in self.values if name.startswith(below)]:
                del self.values[shadowed]
            if key in _OF_ALL:  # it replaces those that earlier layers set for single partitions
                of_partition = re.compile(rf"partitions\.[^.]+\.{key.partition('.')[2]}")
                for name in [name for name in self.values if of_partition.fullmatch(name)]:
                    if self.values[name].origin != origin:
                        self.values[name] = Value("", origin, by)  # a partition that has nothing else remains
            self.values[key] = Value(value, origin, by)

    def nested(self) -> dict[str, Any]:
        """Return the settings as nested tables; ConfigError if a value has the place of a table."""
        root: dict[str, Any] = {}
        for key, value in self.values.items():
            table, parts = root, _split(key)
            for part in parts[:-1]:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    hint = f"Remove this setting, or the setting that gives '{part}' a value."
                    raise ConfigError(
                        f"'{part}' is a value, not a table", place=f"{value.origin}: {_shown(key)}", hint=hint
                    )
            table[parts[-1]] = dict(value.value) if isinstance(value.value, dict) else value.value
        return root

    def origin(self, key: str) -> str:
        """Return the place at which a key, or the first key below it, was set; ``default`` if nowhere."""
        if key in self.values:
            return self.values[key].origin
        return next((value.origin for name, value in self.values.items() if name.startswith(f"{key}.")), "default")

    def named(self, *parts: str) -> Named:
        """Return the author of a key (``"cost", "budget"``), else hpcml, for callers that start a program it names."""
        key = ".".join(map(_escape, parts))
        value = self.values.get(key)
        return Named(value.by, f"{value.origin}: {_shown(key)}") if value else HPCML


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{_escape(name)}"
        if key == _SWITCHES and isinstance(value, bool):
            from hpcml.repairs.table import REPAIRS

            yield from ((f"{key}.{row.module}", value) for row in REPAIRS)
        elif isinstance(value, dict) and value:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _escape(name: str) -> str:
    return name.replace(".", "\0")


def _split(key: str) -> list[str]:
    return [part.replace("\0", ".") for part in key.split(".")]


def read_toml(path: Path, *, obeyed: bool = False) -> dict[str, Any]:
    """Return a TOML file as a table.

    Parameters
    ----------
    obeyed
        Whether what it says is done, so that nobody else may have written it (:func:`hpcml.safe_files.read_setting`).

    Raises
    ------
    ConfigError
        If the file cannot be read or is not TOML; the place is the file, and the line where the parser stopped.
    """
    import tomllib

    try:
        text = safe_files.read_setting(path) if obeyed else safe_files.read(path, ours=False, follow=True).decode()
        return safe_files.parsed(tomllib.loads, text)
    except OSError as error:
        hint = "Give yourself read permission, or move the file elsewhere so that hpcml does not read it."
        raise ConfigError(f"The file cannot be read: {error.strerror}", place=str(path), hint=hint) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are of its kind
        raise ConfigError(f"The file is not valid TOML: {error}", place=str(path), hint="Correct this line.") from error


def from_assignments(assignments: Sequence[str], source: str = "--set") -> dict[str, Any]:
    """Return the table that a list of ``KEY=VALUE`` (dotted keys, TOML values, bare words as text) spells.

    Raises
    ------
    ConfigError
        If a word has no ``=`` or an empty key.
    """
    layers = Layers()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key or ".." in f".{key}.":
            raise ConfigError(f"'{assignment}' is not KEY=VALUE", place=source, hint="Example: --set workers.threads=8")
        value = _toml_value(text.strip())
        for name, item in _flatten({key: value}) if key == _SWITCHES else [(key, value)]:
            layers.values[name] = Value(item, source, Origin.TYPED)  # whose it is, who adds it says
    return layers.nested()


def from_environment(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a table and its variable for each ``HPCML_SECTION__KEY=value`` (``HPCML_WORKERS__PER_NODE=8``)."""
    for name, text in sorted(environment.items()):
        if name.startswith("HPCML_") and "__" in name:
            section, _, rest = name.removeprefix("HPCML_").partition("__")
            section = section.lower()
            rest = rest if section == "environment" else rest.lower()  # names of variables keep their capitals
            key = f"{section}.{rest.replace('__', '.')}"
            yield from_assignments([f"{key}={text}"], name), name


def _toml_value(text: str) -> object:
    import tomllib

    try:
        table = safe_files.parsed(tomllib.loads, f"v = {text}")
    except ValueError:
        return text
    value = table["v"]
    plain = len(table) == 1 and isinstance(value, (str, int, float, bool, list, dict))
    return value if plain else text  # 01:00:00 is a time of day to TOML, and a line break begins another key


def here() -> Path:
    """Return the current folder; NotFoundError if it no longer exists."""
    try:
        return Path.cwd()
    except OSError as error:
        raise NotFoundError(
            "The current folder no longer exists", place="cwd", hint="Change to an existing folder: cd ~"
        ) from error


def process_environment() -> dict[str, str]:
    """Return a copy of this process's environment; the only place outside the allocation that reads it."""
    return dict(os.environ)


def forget(names: Collection[str]) -> None:
    """Remove variables from this process's environment, and so from that of the jobs it submits."""
    for name in names:
        os.environ.pop(name, None)


def build(schema: type[T], layers: Layers, below: str = "") -> T:
    """Return a record (a NamedTuple class) filled from the layers, checking every key and type.

    Parameters
    ----------
    schema
        Its annotations must be types, not texts: its module does without ``from __future__ import annotations``.
    below
        The table to build from; all of the layers if empty.

    Raises
    ------
    ConfigError
        For an unknown key (with the nearest known one) or a value of the wrong type, with file and key as the place.
    """
    table = layers.nested()
    return _build(schema, table.get(below, {}) if below else table, layers, f"{below}." if below else "")


def _build(schema: type[T], table: Mapping[str, Any], layers: Layers, prefix: str) -> T:
    kinds, defaults = schema.__annotations__, getattr(schema, "_field_defaults", {})
    arguments: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{prefix}{_escape(name)}"
        if name not in kinds:
            raise _unknown_key(name, list(kinds), f"{layers.origin(key)}: {_shown(prefix)}{name}")
        if kinds[name] in (Memory, Seconds, TimeLimit):
            arguments[name] = _measure(kinds[name], value, defaults.get(name), layers, key)
        else:
            arguments[name] = _convert(kinds[name], value, layers, key)
    return schema(**arguments)


def _measure(kind: Any, value: Any, default: Any, layers: Layers, key: str) -> Any:
    """Return a duration or a size; empty words are none where that is the default."""
    text = _convert(str, value, layers, key)
    if not text and default is not None and not default.text:
        return default
    try:
        return kind(text)
    except ValueError as error:
        place = f"{layers.origin(key)}: {_shown(key)}"
        raise ConfigError(str(error), place=place, hint="Correct this value.") from error


def _unknown_key(name: str, names: list[str], place: str) -> ConfigError:
    hint = did_you_mean(nearest(name, names), f"Valid keys: {', '.join(sorted(names))}.")
    return ConfigError(f"Unknown key '{name}'", place=place, hint=hint)


def _convert(kind: Any, value: Any, layers: Layers, key: str) -> Any:
    if hasattr(kind, "_fields"):
        return _build(kind, _expect(dict, value, "a table", layers, key), layers, f"{key}.")
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        table = _expect(dict, value, "a table", layers, key)
        return {name: _convert(inner, item, layers, f"{key}.{_escape(name)}") for name, item in table.items()}
    if get_origin(kind) is tuple:
        items = _expect(list, value, "a list of strings", layers, key)
        return tuple(_expect(str, item, "a list of strings", layers, key) for item in items)
    if kind is bool:
        return _expect(bool, value, "true or false", layers, key)
    if kind is int:
        number: int = _expect(int, value, "a whole number", layers, key)
        return number if number >= 0 else _expect(str, value, "a whole number", layers, key)
    if (isinstance(value, (int, float)) and not isinstance(value, bool)) or hasattr(value, "isoformat"):
        return str(value)  # time = 30, time = 01:00:00 and memory = 4000 may be written without quotes
    return _expect(str, value, "a string in quotes", layers, key)


def _expect(kind: type, value: Any, description: str, layers: Layers, key: str) -> Any:
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    place = f"{layers.origin(key)}: {_shown(key)}"
    raise ConfigError(
        f"The value {value!r} must be {description}", place=place, hint=f"Write the value as {_EXAMPLES[description]}."
    )


_EXAMPLES = {
    "a table": "a table: a line [table], then a line for each key",
    "a list of strings": '["one", "two"]',
    "true or false": "true or false, without quotes",
    "a whole number": "4, without quotes",
    "a string in quotes": '"text"',
}


def _shown(key: str) -> str:
    return key.replace("\0", ".")


def user_path(text: str) -> Path:
    """Return a path in which ``~`` or ``~NAME`` is a user's home; as in a shell, the name of nobody stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for the name of nobody


_SAFE_PATH = "PYTHONSAFEPATH"
SAFE_PATH = "hpcml"  # its value here, by which a process knows that the user did not set it
_umask: list[int] = []  # the user's own, once it was narrowed


def narrow_umask() -> None:
    """Let others write to nothing that hpcml makes, whatever the umask; the script keeps the user's."""
    umask = os.umask(0o077)
    os.umask((umask | 0o022) & 0o077)
    _umask[:] = _umask or [umask]


@contextlib.contextmanager
def narrowed_umask() -> Iterator[None]:
    """Have :func:`narrow_umask` hold for a while: in a program that is not hpcml's own."""
    before = list(_umask)
    umask = os.umask(0o077)
    os.umask(umask)
    _umask[:] = [umask]
    narrow_umask()
    try:
        yield
    finally:
        os.umask(umask)
        _umask[:] = before


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Keep the working folder out of the imports of Pythons that start meanwhile: submitit has no option for that."""
    before = os.environ.get(_SAFE_PATH, "")
    os.environ[_SAFE_PATH] = before or SAFE_PATH
    try:
        yield
    finally:
        if not before:
            os.environ.pop(_SAFE_PATH, None)


def user_umask() -> int:
    """Return the umask that this process was started with; one that would shut the user out does not."""
    umask = _umask[0] if _umask else os.umask(0o077)
    if not _umask:
        os.umask(umask)
    return umask & 0o077
