"""Who set a value: the user, the machine's administrators, or files that may have come with somebody else's code."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hpcml.errors import ConfigError


class Origin(StrEnum):
    """Who set a value, and so who answers for the program that it names."""

    HPCML = "hpcml"  # hpcml itself
    TYPED = "typed"  # the command line (--set) or a variable of the user's shell
    USER = "user"  # a file of the user's, in ~/.config/hpcml
    SITE = "site"  # the machine's administrators (/etc/hpcml), or a profile that hpcml ships
    PROJECT = "project"  # a project's hpcml.toml or template
    LINE = "line"  # a `# hpcml:` line of a script
    FOUND = "found"  # an environment that the user's shell or the project has, and nobody named

    @property
    def foreign(self) -> bool:
        """Whether the value may have come with somebody else's code."""
        return self in (Origin.PROJECT, Origin.LINE, Origin.FOUND)


class Named(NamedTuple):
    """Who names a program, and where: a file or a line and its key."""

    origin: Origin
    place: str = ""

    def check(self, program: str) -> None:
        """Refuse to start a program here that somebody else's file may name.

        Raises
        ------
        ConfigError
            The file or line, and how the user names the program.
        """
        if self.origin.foreign:
            hint = "Name the program on the command line, or in ~/.config/hpcml/config.toml."
            whose = "a project's file" if self.origin is Origin.PROJECT else "a line of a script"
            message = f"hpcml does not start '{program}' on this machine, because {whose} names it"
            raise ConfigError(message, place=self.place, hint=hint)


HPCML = Named(Origin.HPCML)  # ssh, sbatch, hpcml's own Python: hpcml's code names the program
TYPED = Named(Origin.TYPED, "command line")  # a word of the command line, or a variable of the user's shell


def of_line(place: str) -> Named:
    """Return who names a program in a line of a script."""
    return Named(Origin.LINE, place)
