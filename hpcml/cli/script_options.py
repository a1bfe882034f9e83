"""Options in the script's first comment lines, and options of hpcml that follow the script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.errors import HpcmlError, UsageError
from hpcml.runs import script_checks, script_content
from hpcml.terminal import note

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_MOST = 1 << 16  # bytes in which the first comment lines are looked for
_LINE = re.compile(r"#\s*(hpcml:|SBATCH\s)\s*(.*)")
# What becomes of a submission is for the one who types it.
_ON_THE_COMMAND_LINE = ("dry_run", "check", "wait", "detach", "json", "prepare")


def lay_below(options: Namespace, script: Path) -> tuple[tuple[str, str], ...]:
    """Fill in what the script's own lines say and the command line does not; return those options with their lines.

    ``# hpcml: --nodes 4`` is read as the command line is. Of ``#SBATCH`` lines what hpcml has an option for counts, and
    a note names the others.

    Raises
    ------
    UsageError
        If a line of hpcml's is wrong; the place is the line.
    """
    lines = list(_lines(_start(script)))
    if not lines:
        return ()
    parser: ArgumentParser = options.parser
    single: dict[str, tuple[Any, str]] = {}
    several: dict[str, list[tuple[Any, str]]] = {}
    unused: list[str] = []
    for number, word, text in lines:
        place = f"line {number} of {script.name}"
        try:
            values, rest = _parsed(parser, text, sbatch=word != "hpcml:")
        except (HpcmlError, ValueError) as error:
            if word != "hpcml:":
                unused.append(f"{text} (line {number})")
                continue
            hint = error.hint if isinstance(error, HpcmlError) else "Close the quotes."
            message = error.message if isinstance(error, HpcmlError) else f"The line cannot be read: {error}"
            raise UsageError(message, place=place, hint=hint) from error
        unused += [f"{' '.join(rest)} (line {number})"] if rest else []
        for name, value in values.items():
            if isinstance(value, list):
                several.setdefault(name, []).extend((one, place) for one in value)
            else:
                single[name] = (value, place)
    if unused:
        note(f"of the #SBATCH lines in {script.name} these do not count, hpcml has no counterpart: {', '.join(unused)}")
    return tuple(_laid(options, single, several))


def _laid(
    options: Namespace, single: dict[str, tuple[Any, str]], several: dict[str, list[tuple[Any, str]]]
) -> Iterator[tuple[str, str]]:
    """Set what the command line leaves open; yield each option that counts and its line."""
    for name, (value, place) in single.items():
        if getattr(options, name, None) in (None, False):
            setattr(options, name, value)
            yield f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"), place
    for name, values in several.items():
        given = getattr(options, name, None) or []
        setattr(options, name, [*(value for value, _ in values), *given])
        given_names = {text.partition("=")[0] for text in given}
        for text, place in values:
            key = text.partition("=")[0]
            if key not in given_names:  # of a variable the value may be secret
                yield {"sbatch": text, "env": f"--env {key}"}.get(name, f"--{name.replace('_', '-')} {text}"), place


def _parsed(parser: ArgumentParser, text: str, *, sbatch: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a line's options by name, and the words that are none; only sbatch's may hold such words."""
    words = shlex.split(text, comments=sbatch)
    if not sbatch and {"-h", "--help"} & set(words):
        raise UsageError("--help is for the command line", hint="Take it out.")
    options, rest = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    if rest and not sbatch:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    values = {name: value for name, value in vars(options).items() if value not in (None, False, parser)}
    if sbatch and (slurms := values.pop("profile", None)):  # another thing of the same name
        rest += [f"--profile={word}" for word in slurms]
    for name in [name for name in _ON_THE_COMMAND_LINE if values.pop(name, None)]:
        if not sbatch:
            raise UsageError(f"--{name.replace('_', '-')} is for the command line", hint="Take it out of the script.")
        rest.append(f"--{name}")
    return values, rest


def _start(script: Path) -> str:
    """Return the beginning of a script; nothing of what is none, which is told where scripts are checked."""
    try:
        if not script.is_file():
            return ""
        with script.open("rb") as file:
            return file.read(_MOST).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, first word and options of each line that holds options, before the first line of code."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if found := _LINE.match(line):
            yield number, found[1].strip(), found[2].strip()


def check_misplaced(words: Sequence[str], script: str, here: Path, prog: str, known: Mapping[str, bool]) -> None:
    """Refuse options of hpcml that follow the script, unless the script takes options of these names.

    Parameters
    ----------
    words
        What follows the script, or the module.
    script
        The script as it was typed; a module's words begin with ``-m``.
    prog
        The command, as ``hpcml submit``.
    known
        Its long options, and whether each takes a value.

    Raises
    ------
    UsageError
        If the script's text has no such option: it would run with other settings than the user meant.
    """
    own = list(words[: words.index("--")]) if "--" in words else list(words)
    options = [word.partition("=")[0] for word in own]
    asked = {option for option in known.keys() & options if option.startswith("--")}  # the short ones may mean anything
    is_module = script.startswith("-m ")
    file = script_checks.module_file(here / script[3:]) if is_module else here / script
    if not asked or file is None or not file.is_file():
        return  # a module of the environment may take any option
    folder = here if is_module else file.resolve().parent
    misplaced = asked - script_content.options_taken(file, folder, asked)
    if not misplaced:
        return
    moved: list[str] = []
    rest = list(words)
    for word, option in zip(own, options, strict=True):
        if option in misplaced and word in rest:
            at = rest.index(word)
            count = 2 if known.get(word) and rest[at + 1 :] else 1
            moved += rest[at : at + count]
            del rest[at : at + count]
    listed = ", ".join(sorted(misplaced))
    what = f"{listed} after {file.name} would go to the script, and no such option was found in it"
    typed = script if is_module else shlex.quote(script)
    before = " ".join(filter(None, [prog, shlex.join(moved), typed, shlex.join(rest)]))
    hint = f"For hpcml, type: {before}. For the script, type: {prog} {typed} -- {shlex.join(words)}."
    raise UsageError(what, place=prog, hint=hint)
