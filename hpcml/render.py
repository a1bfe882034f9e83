"""Lay a plan out as a batch script: three filters are the only ways for a value into it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import jinja2

from hpcml import assets
from hpcml.errors import ConfigError, UsageError
from hpcml.plan import Plan

TEMPLATE = "batch.sh.j2"
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+\[\]-]+")


def render(plan: Plan, folders: Sequence[Path] = ()) -> str:
    """Return the text of the batch script.

    Parameters
    ----------
    plan
        What to lay out.
    folders
        Folders searched for ``batch.sh.j2`` before the built-in one, which stays reachable as
        ``hpcml/batch.sh.j2`` (``{% extends "hpcml/batch.sh.j2" %}``).

    Raises
    ------
    ConfigError
        If a template is wrong, with its file and line.
    UsageError
        If a value cannot stand in a batch script.
    """
    try:
        return _environment(folders).get_template(TEMPLATE).render(plan=plan)
    except jinja2.TemplateError as error:
        place = f"{getattr(error, 'filename', None) or TEMPLATE}:{getattr(error, 'lineno', '?')}"
        raise ConfigError(f"The template is wrong: {error}", place=place) from error


def _environment(folders: Sequence[Path]) -> jinja2.Environment:
    builtin = jinja2.FileSystemLoader(str(assets.folder("templates")))
    own = [jinja2.FileSystemLoader(str(folder)) for folder in folders]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([*own, builtin, jinja2.PrefixLoader({"hpcml": builtin})]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the output is bash, and every value passes one of the filters below
    )
    environment.filters |= {"sh": quote, "argv": join, "directive": directive, "comment": comment}
    return environment


def quote(value: object) -> str:
    """Quote one word for bash."""
    return shlex.quote(_without_line_breaks(str(value)))


def join(words: Sequence[str]) -> str:
    """Quote a command for bash."""
    return " ".join(quote(word) for word in words)


def directive(option: tuple[str, str]) -> str:
    """Return an option as a #SBATCH line takes it.

    sbatch parses these lines itself, not through bash: it knows double quotes and backslashes within them (tried with
    22.05; see tests/lab/test_submit.py).
    """
    name, value = option
    if not value:
        return name
    value = _without_line_breaks(value)
    if _PLAIN.fullmatch(value):
        return f"{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def comment(value: object) -> str:
    """Return a text that can stand behind a ``#``."""
    return _without_line_breaks(str(value))


def _without_line_breaks(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        hint = "Rename it, or leave that character out."
        raise UsageError(f"The value {text!r} holds a line break or a control character", place="job.sh", hint=hint)
    return text
