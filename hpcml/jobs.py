"""What the user asks for, before any site has had its say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import NotFoundError, UsageError

_NAME_TAKEN = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A request: a script, its arguments and what was said about the allocation (empty or None: not said).

    ``cwd`` is where the script runs: the folder that the user submitted from, so that relative data paths hold.
    """

    script: Path
    arguments: tuple[str, ...]
    cwd: Path
    name: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_per_node: str = ""
    time: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    image: str = ""
    protocol: str = ""
    dependency: str = ""


def check_script(script: Path) -> None:
    """Refuse a script that cannot run, before anything is written.

    Raises
    ------
    NotFoundError
        If it does not exist, is a folder or cannot be read.
    UsageError
        If it is empty or its path holds a line break.
    """
    if any(character in str(script) for character in "\n\r\0"):
        raise UsageError("The script's path holds a line break", place=repr(str(script)), hint="Rename the file.")
    try:
        with script.open("rb") as file:
            first = file.read(1)
    except FileNotFoundError as error:
        hint = "Check the spelling; options of hpcml go before SCRIPT, the script's own behind it."
        raise NotFoundError("There is no such script", place=str(script), hint=hint) from error
    except IsADirectoryError as error:
        raise NotFoundError("This is a folder, not a script", place=str(script), hint="Name a .py file.") from error
    except OSError as error:
        raise NotFoundError(f"The script cannot be read: {error.strerror}", place=str(script)) from error
    if not first:
        raise UsageError("The script is empty", place=str(script), hint="Was it saved?")


def job_name(spec: JobSpec) -> str:
    """Return the run's name: as given, else the script's, reduced to what a job name and a folder may hold.

    Raises
    ------
    UsageError
        If a name was given that holds other characters or is too long.
    """
    if spec.name:
        if _NAME_TAKEN.search(spec.name) or len(spec.name) > LONGEST_NAME or not spec.name[0].isalnum():
            hint = f"Use letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, a letter or digit first."
            raise UsageError(f"The name {spec.name!r} cannot be used", place="--name", hint=hint)
        return spec.name
    return _NAME_TAKEN.sub("-", spec.script.stem).strip("-._")[:LONGEST_NAME] or "run"
