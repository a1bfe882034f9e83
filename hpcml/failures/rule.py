"""What a rule is: a text of a program, its cause and what to do."""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import NamedTuple


class Role(StrEnum):
    """What a line shows: the beginning of a failure, a consequence of one, or less."""

    ROOT = "root"
    CASCADE = "cascade"  # something else failed before
    CONFIRMATION = "confirmation"  # that the kernel killed a process out of memory; not which, nor what began it
    TEARDOWN = "teardown"  # the noise of an end
    WARNING = "warning"  # slow or near a limit, and no end


class Retry(StrEnum):
    """Which option is worth a try."""

    NONE = ""
    EXCLUDE = "exclude"  # the node that shows the line
    MEMORY = "memory"
    TIME = "time"


class Where(Flag):
    """Whose output a row is about."""

    LOG = auto()  # a run's logs, line by line
    SUBMISSION = auto()  # sbatch, which refused a job
    IMAGE = auto()  # Apptainer or SingularityCE (1.4 was tried; they share the code), which did not enter an image
    BUILD = auto()  # the same programs, which did not build one


class Rule(NamedTuple):
    """A text, and its meaning."""

    name: str
    role: Role
    pattern: str
    cause: str  # a clause
    remedy: str = ""  # sentences
    short: str = ""  # the cause in at most six words
    retry: Retry = Retry.NONE
    where: Where = Where.LOG
    of_ranks: str = ""  # the remedy in a run of ranks, where it is another
