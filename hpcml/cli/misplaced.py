"""Options of hpcml among the words after the script, which hpcml would pass to the script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import UsageError
from hpcml.options.table import TAKES_VALUE
from hpcml.runs import modules_code_uses
from hpcml.runs.checks import script_checks


def check(arguments: Sequence[str], here: Path, prog: str) -> None:
    """Refuse options of hpcml among the script's arguments; after ``--`` all words are the script's.

    Parameters
    ----------
    arguments
        The script, or ``-m`` and the module, and what follows.
    prog
        The command, as ``hpcml submit``.

    Raises
    ------
    UsageError
        If the script's text has no such option: it would run with other settings than the user meant.
    """
    is_module = arguments[0] == "-m"
    first = 1 if is_module else 0
    if arguments[0] == "--" or arguments[first + 1 : first + 2] == ["--"] or not arguments[first:]:
        return
    script, arguments = " ".join(arguments[: first + 1]), arguments[first + 1 :]
    own = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    options = [word.partition("=")[0] for word in own]
    asked = {word for word in TAKES_VALUE.keys() & options if word.startswith("--")}  # short ones may mean anything
    file = modules_code_uses.module_file(here / script[3:]) if is_module else here / script
    if not asked or file is None or not file.is_file():
        return  # a module of the environment may take any option
    folder = here if is_module else file.resolve().parent
    misplaced = asked - script_checks.options_taken(file, folder, asked)
    if not misplaced:
        return
    moved = _with_values(own, misplaced)
    listed, alone = " and ".join(sorted(misplaced)), len(misplaced) == 1
    verb, pronoun = ("comes", "it") if alone else ("come", "them")
    what = f"{listed} {verb} after {file.name}, so hpcml would pass {pronoun} to {file.name}"
    typed = script if is_module else shlex.quote(script)
    hint = f"To use {listed} for hpcml, write before {typed}: {shlex.join(moved)}. "
    hint += f"To pass {listed} to {file.name}, write -- after {typed}."
    raise UsageError(what, place=prog, hint=hint)


def _with_values(words: Sequence[str], options: set[str]) -> list[str]:
    """Return those of some words that are one of some options, with their values."""
    found: list[str] = []
    for at, word in enumerate(words):
        if word.partition("=")[0] in options:
            found += words[at : at + (2 if TAKES_VALUE.get(word) else 1)]
    return found
