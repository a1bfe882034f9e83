"""What a scheduler says of its machine, for ``hpcml doctor`` and ``hpcml site init``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Fields = dict[str, str]  # what a scheduler says of one thing, by the names that it gives
VERSION = "SLURM_VERSION"  # the field of the configuration that has the scheduler's version


class Kind(NamedTuple):
    """Nodes of one kind in a partition."""

    partition: str
    nodes: int
    cpus: int
    threads: int  # of a core
    memory: int  # MiB that jobs may have
    gpus_by_type: tuple[tuple[str, int], ...] = ()  # types as a request names them, empty where they have none
    one: str = ""  # the name of one of the nodes

    @property
    def gpus(self) -> int:
        """How many GPUs a node has."""
        return sum(count for _, count in self.gpus_by_type)


class Tables(NamedTuple):
    """The answers of a scheduler; each is empty where it gave none."""

    config: Fields = {}
    partitions: dict[str, Fields] = {}  # by name
    kinds: tuple[Kind, ...] = ()
    kinds_by: str = ""  # the command that answered with the kinds
    qos: dict[str, Fields] = {}  # by name
    associations: tuple[Fields, ...] = ()  # the user's
    account: str = ""  # the user's default one
    refused: Fields = {}  # the reason by the command that gave no answer


class Association(NamedTuple):
    """A right of the user's to charge an account."""

    account: str
    partition: str  # empty for all
    qos: tuple[str, ...]
    default_qos: str


class Machine(Protocol):
    """What is asked of a scheduler about its machine; a module with these functions is one. Timeouts are in seconds.

    An answer is a sentence instead of a table where the scheduler gives a reason for none.
    """

    def read(self, user: str) -> Tables:
        """Return all facts that a user on a login node gets; SlurmUnreachableError if nothing answers."""

    def kinds_of_nodes(self, text: str) -> tuple[Kind, ...]:
        """Return the kinds of nodes by what a node itself was asked about them."""

    def configuration(self, timeout: float) -> Fields | str:
        """Return the scheduler's configuration."""

    def partition(self, name: str, timeout: float) -> Fields | str:
        """Return the limits and the state of a partition; an empty table if there is no such partition."""

    def associations(self, timeout: float) -> list[Association] | str:
        """Return the user's associations."""

    def room(self, directives: Sequence[tuple[str, str]], timeout: float) -> int | None:
        """Return the number of further jobs with these directives that may be submitted; None without a limit."""


def kill_wait(config: Fields | str) -> int | None:
    """Return the seconds between SIGTERM and SIGKILL at a job's end; None if the configuration does not say it."""
    match = re.match(r"\d{1,6}", config.get("KillWait", "")) if isinstance(config, dict) else None
    return int(match[0]) if match else None


def grace_within(wait: int) -> str:
    """Return the next step if a run's end takes longer than a KillWait."""
    if wait < 2:
        return "Ask the site's support for a longer KillWait: hpcml needs two seconds or more."
    return f"Set deadlines.script_grace = '{wait // 2}s' in the profile."


def amounts(text: str) -> Fields:
    """Return ``cpu=32,mem=512G,gres/gpu=4`` as a table."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in pairs if value}
