"""Lay a plan out as a batch script: four filters are the only ways for a value into it."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import assets, safe_files
from hpcml.errors import ConfigError, HpcmlError, UsageError
from hpcml.plan.make_plan import Plan

if TYPE_CHECKING:  # Jinja2 is imported when a script is rendered: help, ls and status do without
    import jinja2

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
    return renderer(folders)(plan)


def renderer(folders: Sequence[Path] = ()) -> Callable[[Plan], str]:
    """Return :func:`render` for several plans: to read the template takes longest; ConfigError if it fails."""
    import jinja2

    environment = _environment(folders)
    try:
        template = environment.get_template(TEMPLATE)
    except (jinja2.TemplateError, OSError, UnicodeDecodeError) as error:
        raise _template_error(error, None) from error

    def rendered(plan: Plan) -> str:
        try:
            return template.render(plan=plan)
        except (HpcmlError, MemoryError):
            raise
        except Exception as error:  # an expression in a template can fail in any way
            raise _template_error(error, template.filename) from error

    return rendered


def check(plan: Plan) -> None:
    """Raise a UsageError if a value of the plan cannot stand in hpcml's own batch script, without rendering one."""
    apart = plan._replace(inside=None, reasons=(), notices=())  # type: ignore[arg-type] # what no template shows
    for text in _texts((*apart, plan.inside.job.image)):
        _printable(text)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a record of a plan."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _texts(part)


def _template_error(error: Exception, file: str | None) -> ConfigError:
    """Return the error of a template, at its file and line; a run-time error has both in its traceback."""
    file, line = getattr(error, "filename", None) or file, getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if line is None and trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    place = ":".join(str(part) for part in (file or TEMPLATE, line) if part)
    return ConfigError(f"The template contains an error: {error}", place=place, hint="Correct this line.")


def _environment(folders: Sequence[Path]) -> jinja2.Environment:
    import jinja2
    import jinja2.sandbox

    builtin = jinja2.FileSystemLoader(str(assets.folder("templates")))
    user_loaders = [jinja2.FunctionLoader(functools.partial(_named, folder)) for folder in folders]
    # In the sandbox a template reaches the plan and Jinja2's own words, and nothing of Python behind them.
    syntax = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True, "autoescape": False}
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader([*user_loaders, builtin, jinja2.PrefixLoader({"hpcml": builtin})]),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=assets.compiled_templates(syntax),
        **syntax,
    )
    environment.filters |= {"sh": quote, "argv": join, "directive": directive, "comment": comment}
    return environment


def _named(folder: Path, name: str) -> tuple[str, str, None] | None:
    from jinja2.loaders import split_template_path

    return _own(folder.joinpath(*split_template_path(name)))


def _own(path: Path) -> tuple[str, str, None] | None:
    """Return a template of the user's own and its file, None if there is none."""
    try:
        return safe_files.read_setting(path), str(path), None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except safe_files.ForeignError as error:
        copy = "Copy the parts of the template that you need into ~/.config/hpcml/templates."
        hint = f"Remove other users' write access: {error.hint}" if error.hint else copy
        raise ConfigError(f"hpcml does not use this template: {error.why}", place=str(path), hint=hint) from error


def quote(value: object) -> str:
    """Quote one word for bash."""
    return shlex.quote(_printable(str(value)))


def join(arguments: Sequence[str]) -> str:
    """Quote a command for bash."""
    return " ".join(quote(word) for word in arguments)


def directive(option: tuple[str, str]) -> str:
    """Return an option as a #SBATCH line takes it.

    sbatch parses these lines itself, not through bash. Tried with 22.05, and tried again by
    tests/lab/test_golden.py: within double quotes a backslash and a double quote want a
    backslash before them, and nothing else is special there (``$``, ``#``, ``%`` and single quotes stand for
    themselves); without quotes a blank ends the line's option and ``#`` begins a comment.
    """
    name, value = (_printable(part) for part in option)
    if not value:
        return name
    if _PLAIN.fullmatch(value):
        return f"{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def comment(value: object) -> str:
    """Return a text of one line, for a ``#`` comment or another place where it is written as it is."""
    return _printable(str(value))


def _printable(text: str) -> str:
    """Refuse what cannot stand on a line of the script: one value would become two lines, or none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        bad = True  # half a character, from a file name that is not UTF-8
    else:
        bad = any(ord(character) < 32 or ord(character) == 127 for character in text)
    if bad:
        hint = "Remove this character from the value, or rename the file."
        raise UsageError(f"The value {text!a} contains a line break or a control character", place="job.sh", hint=hint)
    return text
