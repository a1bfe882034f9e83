"""One option of a run: who takes it, how its text is read, and what it is on the command line and to Slurm."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcml.errors import UsageError
from hpcml.request.record import Awaited, measure
from hpcml.services import declared
from hpcml.terminal import shown
from hpcml.units import TimeLimit, format_time_limit

# Who takes an option: the verbs that start a run, `# hpcml:` lines ("lines"), hpcml.submit ("python"), hpcml.map and
# hpcml.ElasticCluster.
ALL = frozenset(
    ["submit", "rerun", "run", "jupyter", "interconnect", "sweep", "hold", "lines", "python", "map", "elastic"]
)
RUNS = ALL - {"map", "elastic"}
SUBMISSIONS = frozenset(["submit", "rerun", "jupyter", "interconnect", "hold"])
CONTINUED = frozenset(["submit", "rerun", "lines", "python"])


# -- readers: from an option's text (a list of texts if it may be repeated, else True) to the request's value ----------


def whole(text: str, option: str) -> int:
    """Return an option's whole number; UsageError if it is none."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(
            f"'{text}' is not a whole number", place=option, hint=f"Write a whole number, for example {option} 4."
        )
    return int(text)


def plain(text: str, option: str) -> str:
    """Return a text; UsageError if it is empty."""
    if not text.strip():
        raise UsageError(f"{option} is empty", place="hpcml submit", hint="Remove the option, or give it a value.")
    return text


def measured(text: str, option: str) -> object:
    """Return a time limit or an amount of memory, by the option's name."""
    return measure(option.removeprefix("--").replace("-", "_"), plain(text, option))


def hours(text: str, option: str) -> float:
    """Return a number of hours above 0; UsageError if it is none."""
    try:
        number = float(plain(text, option))
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:  # nor is "nan" in this range
        raise UsageError(f"'{text}' is not a number of hours", place=option, hint=f"Write {option} 500.")
    return number


def gpus(text: str, option: str = "--gpus-per-node") -> tuple[str, int]:
    """Divide GPUs of a node into their type and their number: ``a100:4``, or ``4``; else UsageError."""
    kind, _, count = text.rpartition(":")
    if kind and not re.fullmatch(r"[A-Za-z0-9_.+-]+", kind):
        raise UsageError(f"'{text}' is not TYPE:N", place=option, hint=f"Write {option} a100:4.")
    return kind, whole(count, option)


def flag(given: bool, _: str) -> bool:
    """Return the truth of an option without a value."""
    return given


def texts(given: list[str], _: str) -> tuple[str, ...]:
    """Return the texts of an option that may be repeated."""
    return tuple(given)


def services(given: list[str], option: str) -> tuple[str, ...]:
    """Return services of the run as NAME=PORT; UsageError if a text is something else, or a name is repeated."""
    names = [declared(text, option)[0] for text in given]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"Two services have the name {min(repeated)}", place=option, hint="Rename one of them.")
    return tuple(given)


def joined(given: list[str], option: str) -> str:
    """Return the texts of an option that may be repeated, with commas."""
    return plain(",".join(given), option)


def awaited(given: list[str], _: str) -> tuple[Awaited, ...]:
    """Return the runs that are waited for."""
    return tuple(map(Awaited.of, given))


_OF_LISTS = (texts, services, joined, awaited)


def as_word(name: str) -> str:
    """Return the word of the command line for a name in Python."""
    return f"--{name.replace('_', '-')}"


class Option(NamedTuple):
    """One option: ``--name-with-dashes`` on the command line, ``name_with_underscores=`` in Python."""

    name: str
    does: str  # in the help, before its default
    takers: frozenset[str] = ALL  # who takes it
    kinds: frozenset[str] = frozenset()  # the kinds of run that have it (hpcml.kinds); empty: each kind
    read: Callable[[Any, str], Any] = plain  # one of the readers above
    also: tuple[str, ...] = ()  # its other words on the command line: Slurm's
    slurm: tuple[str, ...] = ()  # options of sbatch that it stands for: given, it replaces those of the site
    metavar: str = ""  # the value in the help, by which completion knows what to offer; empty: the name
    values: tuple[str, ...] = ()  # values that completion offers
    passed: bool = False  # sbatch gets it as it is
    default: str = ""  # the key of the site's settings that has its default
    otherwise: str = ""  # the default where that key has no value
    by_slurm: bool = False  # whether only a site with Slurm has that default
    common: frozenset[str] = frozenset()  # the verbs whose --help shows it; --help-all shows all options
    alone: str = ""  # the value that it has if none is written; one is then written after "=" only

    @property
    def word(self) -> str:
        """The option on the command line."""
        return as_word(self.name)

    def help(self, site: object = None, *, has_slurm: bool = True) -> str:
        """Return the option's line in the help; with a site, its own default in the place of the key."""
        key = self.default if "." in self.default else ""  # the site's name is no setting
        otherwise = self.otherwise if has_slurm or not self.by_slurm else "none on this site"
        here, default = "", ", else ".join(filter(None, (key, otherwise)))
        if site and self.default:
            value = functools.reduce(getattr, self.default.split("."), site)
            text = format_time_limit(value) if isinstance(value, TimeLimit) else getattr(value, "text", value)
            usual = f"default on this site: {shown(text)}" if key else f"default: {shown(text)}"
            usual = "always on at this site" if value is True else usual
            here, default = (usual, "") if value else ("", otherwise)
        default = f"default: {default}" if default else ""
        notes = "; ".join(filter(None, (here, default, "repeatable" if self.several else "")))
        return (f"{self.does} ({notes})" if notes else self.does).replace("%", "%%")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.read is flag

    @property
    def takes_word(self) -> bool:
        """Whether the word after it is its value."""
        return not (self.is_flag or self.alone)

    @property
    def several(self) -> bool:
        """Whether it may be repeated."""
        return self.read in _OF_LISTS

    @property
    def asks_slurm(self) -> bool:
        """Whether it is a wish to Slurm, which an existing allocation meets or not."""
        return self.passed or self.name == "sbatch" or bool(self.slurm)


class KindOptions(NamedTuple):
    """What a kind of run adds to the options (``Kind.options``)."""

    rows: dict[str, tuple[Option, ...]] = {}  # by their place in the help: a title of hpcml.request.options.GROUPS
    instead: dict[str, str] = {}  # words of other tools, and the sentence that says what to use
