"""The options of a run, in one table: the command line, ``# hpcml:`` lines, Python and completion read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcml.errors import UsageError
from hpcml.request.record import Awaited, measure

# Who takes an option: the verbs that start a run, `# hpcml:` lines ("lines"), hpcml.submit ("python"), hpcml.map and
# hpcml.ElasticCluster.
_ALL = frozenset(["submit", "rerun", "run", "jupyter", "fabric", "sweep", "lines", "python", "map", "elastic"])
_RUNS = _ALL - {"map", "elastic"}
_SUBMISSIONS = frozenset(["submit", "rerun", "jupyter", "fabric"])
_CONTINUED = frozenset(["submit", "rerun", "lines", "python"])


def whole(text: str, option: str) -> int:
    """Return an option's whole number."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"'{text}' is not a whole number", place=option, hint=f"Write {option} 4.")
    return int(text)


def _text(text: str, option: str) -> str:
    if not text.strip():
        raise UsageError(f"{option} is empty", place="hpcml submit", hint="Leave it out, or give it a value.")
    return text


def _measure(text: str, option: str) -> object:
    return measure(option.removeprefix("--").replace("-", "_"), _text(text, option))


def _hours(text: str, option: str) -> float:
    try:
        hours = float(_text(text, option))
    except ValueError:
        hours = 0.0
    if not 0 < hours < 1e9:  # nor is "nan" in this range
        raise UsageError(f"'{text}' is no number of hours", place=option, hint=f"Write {option} 500.")
    return hours


def gpus(text: str, option: str = "--gpus-per-node") -> tuple[str, int]:
    """Divide GPUs of a node into their type and their number: ``a100:4``, or ``4`` of no type."""
    kind, _, count = text.rpartition(":")
    if kind and not re.fullmatch(r"[A-Za-z0-9_.-]+", kind):
        raise UsageError(f"'{text}' is not TYPE:N", place=option, hint=f"Write {option} a100:4.")
    return kind, whole(count, option)


def _flag(given: bool, _: str) -> bool:
    return given


def _awaited(texts: list[str], _: str) -> tuple[Awaited, ...]:
    return tuple(map(Awaited.of, texts))


def _joined(texts: list[str], option: str) -> str:
    return _text(",".join(texts), option)


def as_word(name: str) -> str:
    """Return the word of the command line for a name in Python."""
    return f"--{name.replace('_', '-')}"


class Option(NamedTuple):
    """One option: ``--name-with-dashes`` on the command line, ``name_with_underscores=`` in Python."""

    name: str
    help: str
    takers: frozenset[str] = _ALL
    read: Callable[[Any, str], Any] = _text  # makes the request's value from the text (a list if several, else True)
    also: tuple[str, ...] = ()  # its other words on the command line: Slurm's
    slurm: tuple[str, ...] = ()  # options of sbatch that it stands for: given, it replaces those of the site
    metavar: str = ""  # the value in the help, by which completion knows what to offer; empty: the name
    several: bool = False  # it may be repeated
    passed: bool = False  # sbatch gets it as it is

    @property
    def word(self) -> str:
        """The option on the command line."""
        return as_word(self.name)

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.read is _flag

    @property
    def asks_slurm(self) -> bool:
        """Whether it is a wish to Slurm, which an existing allocation meets or not."""
        return self.passed or self.name == "sbatch" or bool(self.slurm)


# fmt: off
GROUPS: dict[str, tuple[Option, ...]] = {
    "where": (
        Option("site", "the machine's profile, of hpcml site ls (default: HPCML_SITE, else the one found here)"),
        Option("account", "Slurm account to charge (default: defaults.account of the profile)",
               also=("-A",), slurm=("--account",)),
        Option("partition", "Slurm partition (default: defaults.partition if the request fits it, else the first "
               "that fits)", also=("-p",), slurm=("--partition",)),
        Option("qos", "Slurm quality of service (default: defaults.qos, else the partition's)",
               also=("-q",), slurm=("--qos",)),
        Option("dependency", "Slurm dependency, e.g. afterok:123", _ALL - {"elastic"},
               also=("-d",), slurm=("--dependency",)),
        Option("after", "start when RUN has ended well; RUN:any: has ended; RUN:fail: failed (repeatable: all of them)",
               _RUNS, _awaited, slurm=("--dependency",), several=True),
    ),
    "how much": (
        Option("nodes", "how many nodes (default: defaults.nodes)", _ALL - {"elastic"}, whole,
               also=("-N",), slurm=("--nodes",)),
        Option("time", "time limit: 30 (minutes), 2:00:00, 1-12:00:00, 90m (default: defaults.time, else the "
               "partition's)", read=_measure, also=("-t",), slurm=("--time",)),
        Option("gpus_per_node", "GPUs on each node, a worker for each: 4, or a100:4 (default: defaults.gpus_per_node)",
               read=gpus, slurm=("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task")),
        Option("cpus_per_node", "CPUs on each node (default: resources.cpus_per_node, else the partition's, or some "
               "GPUs' share of them; else Slurm's)", read=whole, slurm=("--cpus-per-task", "--cpus-per-gpu")),
        Option("memory_per_node", "memory on each node: 120G, or MiB (default: resources.memory_per_node, else the "
               "partition's, or some GPUs' share of it; else Slurm's)", read=_measure,
               also=("--mem",), slurm=("--mem", "--mem-per-cpu", "--mem-per-gpu")),
    ),
    "how": (
        Option("name", "the run's name: at most 64 letters, digits, . _ - (default: the script's)",
               also=("-J", "--job-name"), slurm=("--job-name",)),
        Option("set", "a value of the profile, e.g. workers.per_node=4 (repeatable)",
               metavar="KEY=VALUE", several=True),
        Option("image", "run all roles inside this Apptainer image (default: runtime.image, if runtime.kind is image)",
               _ALL - {"map"}),
        Option("env", "NAME=VALUE for scheduler, workers and script, or NAME as it is here (repeatable)", several=True),
        Option("env_file", "file of such lines, with comments after '#'; --env wins over it (repeatable)",
               several=True),
        Option("profile", "record a profile: dask, memray, nsys, rmm, several with commas (repeatable)",
               _RUNS, _joined, several=True),
        Option("max_restarts", "with --until-done: how many attempts may follow the first (20)", _CONTINUED, whole),
        Option("max_node_hours", "with --until-done: stop restarting before the total exceeds this many node-hours",
               _CONTINUED, _hours),
    ),
    "passed to Slurm": (
        Option("constraint", "features that the nodes must have", also=("-C",), passed=True),
        Option("exclude", "nodes not to take", also=("-x",), passed=True),
        Option("nodelist", "nodes to take", also=("-w",), passed=True),
        Option("reservation", "reservation to run in", passed=True),
        Option("mail_user", "who gets mail", passed=True),
        Option("mail_type", "when, e.g. END,FAIL", passed=True),
        Option("begin", "not before, e.g. 20:00 or now+1hour", also=("-b",), passed=True),
        Option("sbatch", "any other option of sbatch in its long form: --sbatch=--licenses=foo (repeatable)",
               several=True),
        Option("exclusive", "whole nodes, shared with nobody (default: resources.exclusive)", read=_flag, passed=True),
    ),
    "what to do": (
        Option("dry_run", "print the batch script, or with --json the plan, and submit nothing; an image is looked at",
               _SUBMISSIONS | {"run"}, _flag),
        Option("prepare", "write the run and print the sbatch line that submits it; submit nothing",
               _SUBMISSIONS | {"python"}, _flag),
        Option("check", "ask Slurm whether it would take the job (sbatch --test-only); submit nothing; an image is "
               "looked at", _SUBMISSIONS, _flag),
        Option("wait", "wait, pass on the script's output byte for byte and exit with its status (on a terminal: the "
               "default)", _SUBMISSIONS | {"sweep"}, _flag),
        Option("detach", "do not wait (elsewhere: the default)", _SUBMISSIONS | {"sweep"}, _flag),
        Option("json", "print facts as JSON; without --wait it does not wait", _SUBMISSIONS | {"sweep", "run"}, _flag),
        Option("until_done", "continue after the time limit, a preemption or a node's failure, from the script's "
               "checkpoints", _CONTINUED, _flag),
        Option("own_clusters", "let the script open Dask clusters of its own beside the run's",
               _CONTINUED | {"jupyter", "run"}, _flag),
    ),
}
# fmt: on
OPTIONS = {option.name: option for group in GROUPS.values() for option in group}
TAKES_VALUE = {word: not option.is_flag for option in OPTIONS.values() for word in (option.word, *option.also)}


def of(taker: str) -> dict[str, Option]:
    """Return the options that a taker has, by name."""
    return {name: option for name, option in OPTIONS.items() if taker in option.takers}
