"""Layers of settings: TOML files, the environment and ``--set``, merged key by key, each value with its origin."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpcml.errors import ConfigError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A setting and where it came from, e.g. ``/etc/hpcml/config.toml`` or ``--set``."""

    value: object
    origin: str


class Layers:
    """Settings by dotted key; a later layer replaces scalars and lists and merges tables."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def add(self, table: Mapping[str, object], origin: str) -> None:
        """Lay a table over what is there."""
        for key, value in _flatten(table):
            below = f"{key}."
            for shadowed in [name for name in self.values if name.startswith(below)]:
                del self.values[shadowed]
            self.values[key] = Value(value, origin)

    def nested(self) -> dict[str, Any]:
        """Return the settings as nested tables."""
        root: dict[str, Any] = {}
        for key, value in self.values.items():
            table, parts = root, _split(key)
            for part in parts[:-1]:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise ConfigError(f"'{part}' is both a value and a table", place=f"{value.origin}: {key}")
            table[parts[-1]] = value.value
        return root

    def origin(self, key: str) -> str:
        """Return where a key, or the first key below it, was set; ``default`` if nowhere."""
        if key in self.values:
            return self.values[key].origin
        return next((value.origin for name, value in self.values.items() if name.startswith(f"{key}.")), "default")


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{_escape(name)}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _escape(name: str) -> str:
    return name.replace(".", "\0")


def _split(key: str) -> list[str]:
    return [part.replace("\0", ".") for part in key.split(".")]


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as a table.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not TOML; the place is the file, and the line where the parser stopped.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"The file cannot be read: {error.strerror}", place=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file is not valid TOML: {error}", place=str(path), hint="Mend that line.") from error


def from_assignments(assignments: tuple[str, ...]) -> dict[str, Any]:
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
            raise ConfigError(f"'{assignment}' is not KEY=VALUE", place="--set", hint="Write --set workers.threads=8.")
        layers.values[key] = Value(_toml_value(text.strip()), "--set")
    return layers.nested()


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the table that ``HPCML_SECTION__KEY=value`` variables spell (``HPCML_WORKERS__PER_NODE=8``)."""
    words = []
    for name, text in sorted(environment.items()):
        if name.startswith("HPCML_") and "__" in name:
            words.append(f"{name.removeprefix('HPCML_').lower().replace('__', '.')}={text}")
    return from_assignments(tuple(words))


def _toml_value(text: str) -> object:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def process_environment() -> dict[str, str]:
    """Return a copy of this process's environment; the only place outside the allocation that reads it."""
    return dict(os.environ)


def build(schema: type[T], layers: Layers) -> T:
    """Return a dataclass filled from the layers, checking every key and type.

    Raises
    ------
    ConfigError
        For an unknown key (with the nearest known one) or a value of the wrong type, with file and key as the place.
    """
    return _build(schema, layers.nested(), layers, "")


def _build(schema: type[T], table: Mapping[str, Any], layers: Layers, prefix: str) -> T:
    hints = typing.get_type_hints(schema)
    names = [field.name for field in dataclasses.fields(schema)]  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{prefix}{_escape(name)}"
        if name not in names:
            raise _unknown_key(name, names, f"{layers.origin(key)}: {prefix}{name}")
        arguments[name] = _convert(hints[name], value, layers, key)
    return schema(**arguments)


def _unknown_key(name: str, names: list[str], place: str) -> ConfigError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(names))}."
    return ConfigError(f"Unknown key '{name}'", place=place, hint=hint)


def _convert(kind: Any, value: Any, layers: Layers, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
        origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, _expect(dict, value, "a table", layers, key), layers, f"{key}.")
    if origin is dict:
        inner = typing.get_args(kind)[1]
        table = _expect(dict, value, "a table", layers, key)
        return {name: _convert(inner, item, layers, f"{key}.{_escape(name)}") for name, item in table.items()}
    if origin is tuple:
        items = _expect(list, value, "a list of texts", layers, key)
        return tuple(_expect(str, item, "a list of texts", layers, key) for item in items)
    if kind is bool:
        return _expect(bool, value, "true or false", layers, key)
    if kind is int:
        return _expect(int, value, "a whole number", layers, key)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # time = 30 and memory = 4000 are written without quotes
    return _expect(str, value, "a text in quotes", layers, key)


def _expect(kind: type, value: Any, words: str, layers: Layers, key: str) -> Any:
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    place = f"{layers.origin(key)}: {key.replace(chr(0), '.')}"
    raise ConfigError(f"The value {value!r} should be {words}", place=place)
