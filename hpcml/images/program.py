"""The program that builds and runs images: Apptainer, SingularityCE or Singularity."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from hpcml import subprocesses
from hpcml.errors import ImageError

TIMEOUT = 60.0  # seconds for one question to the program; its start from a shared file system may take some
_PROGRAMS = ("apptainer", "singularity")
_VERSION = re.compile(r"(?:(apptainer|singularity-ce|singularity) version )?v?(\d+)\.(\d+)(?:\.(\d+))?")
_NAMES = {"apptainer": "Apptainer", "singularity-ce": "SingularityCE", "singularity": "Singularity"}
# The first version of each that knows the section %arguments and the option --build-arg.
_ARGUMENTS_SINCE = {"apptainer": (1, 2), "singularity-ce": (4, 0)}


class Program(NamedTuple):
    """The program that builds and runs images; ``kind`` is apptainer, singularity-ce or singularity."""

    path: str
    kind: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {'.'.join(map(str, self.version))}"

    @property
    def takes_arguments(self) -> bool:
        """Whether it knows ``%arguments`` and ``--build-arg``."""
        return self.kind in _ARGUMENTS_SINCE and self.version >= _ARGUMENTS_SINCE[self.kind]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of its variables begin with, its own first: Apptainer knows Singularity's too."""
        return ("APPTAINER", "SINGULARITY") if self.kind == "apptainer" else ("SINGULARITY",)


def identify(path: str, answer: str) -> Program:
    """Return which program gives this answer to ``--version``; raise ImageError if none does that knows SIF images."""
    hint = "Install Apptainer 1.2 or newer, load the site's module, or name another with --program."
    match = next((match for line in answer.splitlines() if (match := _VERSION.match(line.strip()))), None)
    if match is None:
        quote = last_lines(answer, 3)
        raise ImageError("This program is neither Apptainer nor Singularity", place=path, hint=hint, quote=quote)
    program = Program(path, match[1] or "singularity", tuple(int(number) for number in match.groups()[1:] if number))
    if program.kind != "apptainer" and program.version < (3,):
        raise ImageError(f"{program} is too old: it knows no SIF images", place=path, hint=hint)
    return program


def find(wanted: str, first: str = "") -> Program:
    """Return the program for images; raise ImageError if there is none, or it cannot be started.

    ``wanted`` is its name or path if the user gave one, and no other is taken then; ``first`` is looked for before
    ``apptainer`` and ``singularity``: the profile's ``runtime.container``.
    """
    names = (wanted,) if wanted else tuple(dict.fromkeys(name for name in (first, *_PROGRAMS) if name))
    paths = (shutil.which(name) for name in names)
    path = next(filter(None, paths), None)
    if path is None:
        hint = "Load the site's module or install Apptainer 1.2 or newer; images can be built on another machine."
        raise ImageError(f"There is no {' and no '.join(names)} here", place="PATH", hint=hint)
    answer = ask([path, "--version"], TIMEOUT)
    if answer.code != 0:
        message = f"It {'does not answer' if answer.code is None else 'fails'} when asked for its version"
        hint = "Try it yourself: is its module loaded, and its file system there?"
        raise ImageError(message, place=path, hint=hint, quote=last_lines(answer.text))
    return identify(path, answer.text)


def ask(command: Sequence[str], timeout: float) -> subprocesses.Answer:
    """Run the program; raise ImageError if it cannot be started."""
    try:
        return subprocesses.run(command, timeout)
    except subprocesses.CommandMissingError as error:
        raise not_started(command[0], error) from error


def not_started(path: str, error: Exception) -> ImageError:
    """Return that the program cannot be started, as an error."""
    hint = "Try it yourself, or name another with --program."
    return ImageError(f"The program for images cannot be started: {error}", place=path, hint=hint)


def last_lines(text: str, count: int = 8) -> tuple[str, ...]:
    """Return the last lines of a program's output, without empty ones and colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "\n")
    return tuple(line.rstrip()[:300] for line in plain.splitlines() if line.strip())[-count:]
