"""What follows ``--``: a Python interpreter with its script or module, a launcher of ranks, or any other program."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.errors import UsageError
from hpcml.options import sbatch_tasks, script_lines
from hpcml.request import record
from hpcml.runs import modules_code_uses
from hpcml.sites import settings_layers
from hpcml.workload_forms import Form

_PYTHON = re.compile(r"(python|pypy|graalpy)[0-9.]*t?d?")
_WITH_VALUE = "WX"  # options of Python that take a value, beside -c and -m
_PATHLESS = "IP"  # options by which Python does not import from the current folder


class PythonCode(NamedTuple):
    """What a Python interpreter runs: its own words, the script or module with its arguments, and the form."""

    interpreter: tuple[str, ...]
    words: list[str]
    form: Form


def named(script: list[str], here: Path) -> tuple[Path, list[str], Form]:
    """Return the file that the words name, its words, and its form (as in the request); UsageError without a module."""
    form = {"-m": Form.MODULE, "--": Form.PROGRAM}.get(script[0], Form.SCRIPT)
    if form is Form.SCRIPT:
        return here / script[0], script, Form.NOTEBOOK if script[0].endswith(".ipynb") else form
    if not script[1:]:
        raise UsageError("MODULE is missing", place="-m", hint="Write hpcml submit -m package.module.")
    if form is Form.MODULE and not all(word.isidentifier() for word in script[1].split(".")):
        hint = "Write the dotted name, as for python -m: hpcml submit -m package.module."
        raise UsageError(f"'{script[1]}' is not a module name", place="-m", hint=hint)
    name = script[1]
    is_file_here = safe_files.is_file(here / name) and not shutil.which(name, path=_search_path())
    if form is Form.MODULE or "/" in name or is_file_here:
        return here / name, script[1:], form
    return Path(name), script[1:], form


def code(command: list[str], here: Path) -> record.Code:
    """Return the code that is started by the words of a script, of ``-m MODULE`` or of ``-- PROGRAM``.

    Raises
    ------
    UsageError
        If there is no module or program among them.
    """
    path, command, form = named(command, here)
    interpreter: tuple[str, ...] = ()
    if form is Form.PROGRAM and (python := python_code(path, command[1:], here)):
        interpreter, command, form = python
        path = here / command[0]
    places = (Path(os.path.realpath(path.parent)), Path(os.path.realpath(path)).parent)  # also of a ring of links
    sources = tuple(dict.fromkeys(places)) if path.is_absolute() else ()
    in_place = form is Form.PROGRAM and stays(path, here)
    return record.Code(path, tuple(command[1:]), here, form, interpreter, in_place, sources)


def as_batch_script(code: record.Code) -> record.Code:
    """Return the code as that of a batch script, if it is one; all that it uses stays where it is."""
    if not sbatch_tasks.is_batch_script(script_lines.start_of(code.script)):
        return code
    return code._replace(form=Form.BATCH, in_place=True, sources=())


def is_python(program: Path) -> bool:
    """Return True if a program is a Python interpreter, by its name or that of the file to which it leads."""
    executable = str(program) if program.is_absolute() else shutil.which(program, path=_search_path())
    return any(_PYTHON.fullmatch(os.path.basename(name)) for name in (program, os.path.realpath(executable or program)))


def python_code(program: Path, arguments: Sequence[str], here: Path) -> PythonCode | None:
    """Return the user's code that a Python interpreter is to run; None if it has none that can be copied."""
    if not is_python(program):
        return None
    rest, pathless = list(arguments), False
    position = 0
    while position < len(rest):
        word = rest[position]
        if word == "--" or not word.startswith("-"):
            position += word == "--"
            script = here / rest[position] if rest[position:] else None
            is_code = script is not None and _is_code(script, here)
            return PythonCode((str(program), *rest[:position]), rest[position:], Form.SCRIPT) if is_code else None
        if word.startswith("--"):
            position += 1 + (word == "--check-hash-based-pycs")
            continue
        letter, value, kept = _split(word)
        pathless = pathless or any(word in _PATHLESS for word in kept)
        if letter in ("c", "m"):
            named = [value, *rest[position + 1 :]] if value else rest[position + 1 :]
            if letter == "c" or pathless or not named or not _is_module(named[0], here):
                return None
            options = [*rest[:position], *([f"-{kept}"] if kept else [])]
            return PythonCode((str(program), *options), named, Form.MODULE)
        position += 2 if letter and not value else 1
    return None


def stays(program: Path, here: Path) -> bool:
    """Return True if a program is started where it is: an interpreter, or one that is not the user's code here."""
    if not program.is_absolute():
        return True
    inside = os.path.realpath(program).startswith(f"{os.path.realpath(here)}/")
    return not inside or is_python(program) or _in_environment(program)


def _split(word: str) -> tuple[str, str, str]:
    """Return the letter of an interpreter's option that takes a value, that value, and the letters before it."""
    for position, letter in enumerate(word[1:], 1):
        if letter in f"cm{_WITH_VALUE}":
            return letter, word[position + 1 :], word[1:position]
    return "", "", word[1:]


def _is_code(path: Path, here: Path) -> bool:
    """Return True if a script of Python's is the user's: not an archive, a folder or a program of an environment."""
    if not os.path.exists(path):
        return path.is_relative_to(here)  # it is refused as missing; elsewhere it may be on the nodes alone
    return path.is_file() and not zipfile.is_zipfile(path) and not _in_environment(path)


def _is_module(name: str, here: Path) -> bool:
    """Return True if a module of that name is in the current folder."""
    return all(word.isidentifier() for word in name.split(".")) and bool(modules_code_uses.module_file(here / name))


def _in_environment(path: Path) -> bool:
    """Return True if a file is a program or a package of a virtual environment or of conda."""
    above = path.parent.parent
    is_program = path.parent.name == "bin" and ((above / "pyvenv.cfg").exists() or (above / "conda-meta").exists())
    return is_program or "site-packages" in path.parts


def _search_path() -> str:
    return settings_layers.process_environment().get("PATH", "")
