"""``hpcml help --man``: the manual page, made from the parser when it is asked for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from hpcml import __version__, errors
from hpcml.cli import examples, main
from hpcml.terminal import say

_VARIABLES = {
    "HPCML_HOST": "the login node that runs the command, where --host is not given; empty: this machine",
    "HPCML_SITE": "the site, where --site is not given",
    "HPCML_SECTION__KEY": "a setting of the profile, as HPCML_WORKERS__PER_NODE",
    "HPCML_SYSTEM_CONFIG": "the folder for the machine's settings instead of /etc/hpcml",
}
_FILES = {
    "~/.config/hpcml/config.toml": "your settings; profiles/ and templates/ beside it are your own too",
    "/etc/hpcml/config.toml": "the machine's",
    "hpcml.toml": "those of a project, in its folder",
    "~/.hpcml/runs": "the runs, where the profile names no other folder",
}


def tell(_: Sequence[str]) -> int:
    """Print the manual page, as man reads it."""
    for line in page():
        say(line)
    return 0


def page() -> Iterator[str]:
    """Yield the lines of the manual page."""
    yield f'.TH HPCML 1 "" "hpcml {__version__}" "User Commands"'
    yield from (".SH NAME", r"hpcml \- run a plain Python script on N nodes of a Slurm machine")
    yield from (".SH SYNOPSIS", r".B hpcml", f"{_text('[--host HOST] COMMAND …')}")
    yield from (".SH DESCRIPTION", _text(main.TEXT))
    for note in main.NOTES:
        yield from (".PP", _text(note))
    yield ".SH COMMANDS"
    for command in main.COMMANDS:
        yield from _command(command)
    yield from _list("ENVIRONMENT", _VARIABLES)
    yield from _list("FILES", _FILES)
    yield from _list("EXIT STATUS", {str(status): meaning for status, meaning in errors.MEANING.items()})


def _list(title: str, entries: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, meaning in entries.items():
        yield from (".TP", rf"\fB{_text(name)}\fR", _text(meaning))


def _command(command: str) -> Iterator[str]:
    parser = main.build_parser(command)
    words, does = main.COMMANDS[command]
    yield from (f".SS hpcml {command}", _text(f"{does[:1].upper()}{does[1:]}."))
    yield from (".PP", _text(f"hpcml {command} {words}".strip()))
    yield from _options(parser)
    if parser.epilog:
        yield from (".PP", _text(parser.epilog))
    for words in examples.EXAMPLES.get(command, ())[:1]:
        yield from (".PP", _text(f"Example: hpcml {command} {words}".strip()))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 - there is no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb in action.choices.values():
                yield from (".PP", rf"\fB{_text(verb.prog)}\fR: {_text(verb.description or '')}")
                yield from _options(verb)
        elif action.help != argparse.SUPPRESS and action.dest != "help":
            value = "" if action.nargs == 0 else str(action.metavar)
            names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
            yield from (".TP", f"{names} {_italic(value)}".strip(), _text(action.help or ""))


def _italic(value: str) -> str:
    return rf"\fI{_text(value)}\fR" if value else ""


def _text(text: str) -> str:
    r"""Return a text as roff reads it: no line begins with a request, and ``\`` and ``-`` are themselves."""
    plain = re.sub(r"\s+", " ", text.replace("%%", "%").replace("\\", r"\e").replace("-", r"\-")).strip()
    return rf"\&{plain}" if plain[:1] in (".", "'") else plain
