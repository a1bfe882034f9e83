"""Options in the first comment lines of a script: ``# hpcml:`` and ``#SBATCH``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.errors import HpcmlError, UsageError
from hpcml.options import sbatch_options, sbatch_tasks
from hpcml.options.parser import no_option
from hpcml.options.table import OPTIONS
from hpcml.request.option import as_word
from hpcml.schedulers import sbatch_lines
from hpcml.terminal import note

if TYPE_CHECKING:
    from hpcml.options.parser import Parser

_MOST = 1 << 16  # bytes in which the first comment lines are looked for


def lay_below(
    given: dict[str, Any], script: Path, parser: Parser, *, as_is: bool = False
) -> tuple[tuple[str, str], ...]:
    """Add to ``given`` what the script's own lines say and it does not; return those options with their lines.

    ``# hpcml: --nodes 4`` is read as the command line is, by ``parser``. Of ``#SBATCH`` lines what hpcml has an option
    for counts, and a note names the others. Settings of the lines stay apart, with their lines: ``given["line_set"]``.
    With ``as_is`` the scheduler reads them itself, and only lines of hpcml's count.

    Raises
    ------
    UsageError
        If a line of hpcml's is wrong; the place is the line. Or if the script is no run without its #SBATCH lines.
    """
    text = start_of(script)
    lines = list(_lines(text, r"hpcml:" if as_is else r"hpcml:|SBATCH\s"))
    if not lines:
        return ()
    single: dict[str, tuple[Any, str]] = {}
    several: dict[str, list[tuple[Any, str]]] = {}
    unused: list[str] = []
    for number, word, options in lines:
        place = f"line {number} of {script.name}"
        values, rest = _read(parser, options, place, sbatch=word != "hpcml:")
        unused += [f"{' '.join(rest)} (line {number})"] if rest else []
        for name, value in values.items():
            if isinstance(value, list):
                several.setdefault(name, []).extend((element, place) for element in value)
            else:
                single[name] = (value, place)
    origins = tuple(_laid(given, single, several))
    of_sbatch = [(number, options) for number, word, options in lines if word != "hpcml:"]
    if of_sbatch and "grid" not in given:  # a sweep is what an array becomes
        sbatch_tasks.check(script.name, text, of_sbatch, given)
    if unused:
        advice = "" if given.get("ranks") or "grid" in given else sbatch_tasks.advice(of_sbatch)
        ignored = f"hpcml ignores these #SBATCH lines in {script.name}: {', '.join(unused)}"
        note(f"{ignored}. {advice}".removesuffix(".") if advice else ignored)
    return origins


def lay_translated(
    given: dict[str, Any], lines: Sequence[tuple[str, str]], parser: Parser
) -> tuple[tuple[str, str], ...]:
    """Add to ``given`` the options that a batch script was translated to, each with its line, as :func:`lay_below`."""
    single: dict[str, tuple[Any, str]] = {}
    several: dict[str, list[tuple[Any, str]]] = {name: list(given.get(f"line_{name}") or ()) for name in ("set",)}
    for place, options in lines:
        for name, value in _read(parser, options, place, sbatch=False)[0].items():
            if isinstance(value, list):
                several.setdefault(name, []).extend((text, place) for text in value)
            else:
                single[name] = (value, place)
    return tuple(_laid(given, single, {name: values for name, values in several.items() if values}))


def _read(parser: Parser, options: str, place: str, *, sbatch: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a line by name, and the words without one; UsageError for a wrong line of hpcml's."""
    try:
        return _parsed(parser, options, sbatch=sbatch)
    except (HpcmlError, ValueError) as error:
        if sbatch:
            return {}, [options]
        if isinstance(error, HpcmlError):
            raise UsageError(error.message, place=place, hint=error.hint) from error
        message, hint = f"The options in this line cannot be read: {error}", "Close the quotes in this line."
        raise UsageError(message, place=place, hint=hint) from error


def _laid(
    given: dict[str, Any], single: dict[str, tuple[Any, str]], several: dict[str, list[tuple[Any, str]]]
) -> Iterator[tuple[str, str]]:
    """Add what was not given; yield each option that counts and its line."""
    for name, (value, place) in single.items():
        if given.get(name) in (None, False):
            given[name] = value
            yield as_word(name) + ("" if value is True else f" {value}"), place
    for name, values in several.items():
        typed = given.get(name) or []
        if name == "set":
            given["line_set"] = values
        else:
            given[name] = [*(value for value, _ in values), *typed]
        typed_keys = {text.partition("=")[0] for text in typed}
        for text, place in values:
            key = text.partition("=")[0]
            if key not in typed_keys:  # of a variable the value may be secret
                yield {"sbatch": text, "env": f"--env {key}"}.get(name, f"{as_word(name)} {text}"), place


def _parsed(parser: Parser, text: str, *, sbatch: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a line's options by name, and the words without an option of hpcml; only #SBATCH lines may have such."""
    arguments = shlex.split(text.replace("--gres ", "--gres=") if sbatch else text, comments=sbatch)
    if not sbatch and {"-h", "--help"} & set(arguments):
        raise UsageError("--help works only on the command line", hint="Remove the option from the script.")
    arguments = _gpus_of_gres(arguments) if sbatch else arguments
    options, rest = parser.parse_known_args([word for word in arguments if word not in ("-h", "--help")])
    if rest and not sbatch:
        raise no_option(rest, parser)
    values = {name: value for name, value in vars(options).items() if value not in (None, False, parser)}
    for name in sbatch_options.NAMESAKES if sbatch else ():
        rest += [f"--{name}={word}" for word in values.pop(name, ())]
    typed = [name for name, option in OPTIONS.items() if "lines" not in option.takers]
    for name in [name for name in typed if values.pop(name, None)]:
        if not sbatch:
            raise UsageError(
                f"{as_word(name)} works only on the command line", hint="Remove the option from the script."
            )
        rest.append(f"--{name}")
    return values, rest


def _gpus_of_gres(arguments: list[str]) -> list[str]:
    """Return the words of sbatch with the GPUs of ``--gres=gpu:4`` as hpcml's option."""
    options = []
    for word in arguments:
        option, _, value = word.partition("=")
        if option != "--gres" or not value:
            options.append(word)
            continue
        gpus, rest = sbatch_options.gres(value)
        options += [f"--gpus-per-node={gpus}"] if gpus else []
        options += [f"--sbatch=--gres={rest}"] if rest else []
    return options


def start_of(script: Path) -> str:
    """Return the beginning of a script; nothing if it is not a file, which the check of scripts reports."""
    try:
        if not script.is_file():
            return ""
        with script.open("rb") as file:
            return file.read(_MOST).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _lines(text: str, words: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, first word and options of each line that holds options, before the first line of code.

    ``words`` is the pattern of such first words.
    """
    for number, line in sbatch_lines.first_comments(text):
        if match := re.match(rf"#\s*({words})\s*(.*)", line):
            yield number, match[1].strip(), match[2].strip()
