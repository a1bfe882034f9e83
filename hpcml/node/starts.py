"""Why the system did not start a program, in words: its own word of a missing interpreter names the wrong file."""

from __future__ import annotations

import errno
from typing import NamedTuple

_FIRST_LINE = 256  # bytes, of which Linux reads no more


class Hindrance(NamedTuple):
    """Why a program could not be started, and what to do."""

    reason: str
    hint: str = ""


def hindrance(error: OSError, program: str) -> Hindrance:
    """Return the reason why a program could not be started, from the system's error."""
    if error.errno == errno.ENOEXEC:
        hint = "Build the program for the processor of the nodes. A script needs a first line with #!."
        return Hindrance(f"{error.strerror}: {program}", hint)
    if error.errno == errno.ENOENT and "/" not in program:
        hint = f"The job's PATH has no folder with {program}. Write the program's absolute path, or correct PATH."
        return Hindrance(f"{error.strerror}: {program}", hint)
    if error.errno != errno.ENOENT or (start := _start(program)) is None:
        return Hindrance(f"{error.strerror}: {program}")
    if not start.startswith(b"#!"):
        hint = "Build the program on a node, or use an image with the program's system libraries."
        return Hindrance(f"{error.strerror}: the dynamic loader of {program}", hint)
    interpreter = start[2:].strip(b" \t").replace(b"\t", b" ").partition(b" ")[0].decode(errors="replace")
    interpreter = interpreter.replace("\r", "\\r")  # as of a file from Windows
    hint = "Correct the program's first line, or name the interpreter before the program."
    return Hindrance(f"{error.strerror}: {interpreter}, the interpreter in the first line of {program}", hint)


def _start(program: str) -> bytes | None:
    """Return the first line of a program's file, None if it cannot be read."""
    try:
        with open(program, "rb") as file:
            return file.read(_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return None
