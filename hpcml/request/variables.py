"""``--env`` and ``--env-file``: variables of a run, whose values are shown nowhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import NotFoundError, UsageError
from hpcml.safe_files import SETTINGS
from hpcml.sites import settings_layers

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(env_files: Sequence[str], env: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the variables of ``--env-file`` and ``--env``, by name; the last of a name wins, and ``--env`` over files.

    Raises
    ------
    NotFoundError
        If a file cannot be read.
    UsageError
        If a name is invalid or reserved for hpcml, or a variable without a value is not set here.
    """
    variables: dict[str, str] = {}
    for file in env_files:
        for number, line in enumerate(_read(settings_layers.here() / settings_layers.user_path(file), file), 1):
            text = line.strip().removeprefix("export ").strip()
            if text and not text.startswith("#"):
                name, value = _variable(text, f"{file}, line {number}")
                value = value.strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
                variables[name] = value[1:-1] if quoted else value
    for text in env:
        name, value = _variable(text, "--env")
        variables[name] = value
    return tuple(sorted(variables.items()))


def _read(path: Path, shown: str) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            if len(text := file.read(SETTINGS)) < SETTINGS:
                return text.splitlines()
        why = "the file is too large"  # as of a device, which has no end
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8 text"
    hint = "Use a text file of NAME=VALUE lines."
    raise NotFoundError(f"The file of variables cannot be read: {why}", place=shown, hint=hint)


def _variable(text: str, place: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``, or of ``NAME`` as it is here; errors show no value."""
    name, equals, value = text.partition("=")
    name = name.strip() if place != "--env" else name
    if not _NAME.fullmatch(name):
        shown = ascii(name) if equals else "The text"
        raise UsageError(f"{shown} is not a valid variable name", place=place, hint="Write NAME=VALUE.")
    if name.startswith("HPCML_"):
        raise UsageError(f"{name} is reserved for hpcml", place=place, hint="Use --set for values of the profile.")
    if not equals:
        here = settings_layers.process_environment()
        if name not in here:
            raise UsageError(f"The variable {name} is not set in this shell", place=place, hint=f"Write {name}=VALUE.")
        value = here[name]
    return name, value


def carried(options: Sequence[str], env_files: Sequence[str], env: Sequence[str]) -> list[str]:
    """Return a command's options with the variables' values in them, for another machine to read."""
    kept, takes_value = [], False
    for word in options:
        if not takes_value and word not in ("--env", "--env-file") and not word.startswith(("--env=", "--env-file=")):
            kept.append(word)
        takes_value = not takes_value and word in ("--env", "--env-file")
    return [*kept, *(f"--env={name}={value}" for name, value in read(env_files, env))]
