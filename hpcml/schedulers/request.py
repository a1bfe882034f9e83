"""What the user asks for; the plan fills in what the site says where the user did not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hpcml.errors import UsageError
from hpcml.units import Memory, TimeLimit

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 64
NOT_SAID = -1  # a count that the user did not give
_MEASURES: dict[str, tuple[type[TimeLimit | Memory], str]] = {
    "time": (TimeLimit, "See sbatch(1), --time."),
    "memory_per_node": (Memory, "Units are powers of 1024."),
}


ENDS = {"ok": "to end well", "any": "to end", "fail": "to fail"}


class Awaited(NamedTuple):
    """A run that another waits for: its id (what the user calls it, at first), the end that is wanted, and its job."""

    run: str
    when: str = "ok"
    job: str = ""

    @classmethod
    def of(cls, text: str) -> Awaited:
        """Return what ``RUN`` or ``RUN:ok|any|fail`` means; UsageError if it is neither."""
        run, colon, when = text.partition(":")
        if not run or (colon and when not in ENDS):
            hint = "Write RUN (it is to end well), RUN:any or RUN:fail."
            raise UsageError(f"'{text}' does not say which run to wait for", place="--after", hint=hint)
        return cls(run, when or "ok")

    @property
    def text(self) -> str:
        """The same as :meth:`of` reads it."""
        return f"{self.run}:{self.when}"

    def words(self) -> str:
        """Return the end that is waited for, in words."""
        return f"{self.run} {ENDS[self.when]}"

    def met_by(self, exit_status: int | None) -> bool:
        """Whether an end with that status is the one; nobody knows how a run ended that has none."""
        return self.when == "any" or (exit_status is not None and (exit_status == 0) == (self.when == "ok"))


class JobSpec(NamedTuple):
    """A request: a script, its arguments and what was said about the allocation (empty or ``NOT_SAID``: not said).

    In the plan's copy the site's defaults stand where nothing was said, and ``image`` is an absolute path; 0 CPUs, no
    memory and no time are then what Slurm gives.

    ``origins`` are options that the command line did not give, and where they come from. ``environment`` are variables
    of the run, whose values may be secret.

    ``cwd`` is where the script runs: the folder that the user submitted from, so that relative data paths hold.
    ``service`` is a program of hpcml's in the place of a script (``jupyter``, ``fabric``, ``doctor``; ``script`` is
    then only its name); JupyterLab ends after ``idle`` seconds without use (0: never). ``staged``: script and ``cwd``
    are there for the submission only, and the script runs in the run's own copy of them. ``sources`` are the folders
    that the copy of the code may link to. ``own_clusters``: see the nodes' settings. ``sbatch`` are options that are
    passed on, as (name, value) with an empty value for a flag; no name twice. ``after`` are the runs to wait for.

    ``until_done``, ``max_restarts`` and ``max_node_hours``: see the nodes' settings.

    ``form`` is what ``script`` is: a Python file (empty), a ``module`` (the folder that is first on the path of
    modules, and the dotted name), a ``notebook``, or a ``program`` (a bare name is found on PATH, on the node).
    ``interpreter`` are the words of a Python interpreter that runs a file or a module in the place of the run's own.
    ``in_place``: a program that is started where it is, and never copied.
    ``profile`` are names of profilers, with commas.
    ``sweep`` is the sweep whose points the script is started for, empty without one; ``at_once``: see
    the nodes' settings. ``gpu_mode`` is whose the GPU workers are: ``dask`` or ``polars``.
    """

    script: Path
    arguments: tuple[str, ...]
    cwd: Path
    name: str = ""
    nodes: int = NOT_SAID
    gpus_per_node: int = NOT_SAID
    cpus_per_node: int = NOT_SAID
    memory_per_node: Memory = Memory()
    time: TimeLimit = TimeLimit()
    account: str = ""
    partition: str = ""
    qos: str = ""
    image: str = ""
    protocol: str = ""
    dependency: str = ""
    service: str = ""
    idle: float = 0.0
    staged: bool = False
    origins: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    sources: tuple[Path, ...] = ()
    own_clusters: bool = False
    gpu_type: str = ""
    sbatch: tuple[tuple[str, str], ...] = ()
    form: str = ""
    profile: str = ""
    after: tuple[Awaited, ...] = ()
    sweep: str = ""
    at_once: int = 1
    until_done: bool = False
    max_restarts: int = NOT_SAID
    max_node_hours: float = 0.0
    gpu_mode: str = ""
    interpreter: tuple[str, ...] = ()
    in_place: bool = False

    @property
    def copied(self) -> bool:
        """Whether there is a folder of code that the run takes a copy of: a program on PATH has none."""
        return not self.service and self.script.is_absolute() and not self.in_place

    def given(self) -> dict[str, object]:
        """Return what was said, by its name here; of variables the names alone."""
        said = (self._asdict() | {"environment": tuple(name for name, _ in self.environment)}).items()
        return {name: value for name, value in said if getattr(value, "text", value) not in ("", NOT_SAID, ())}


def measure(name: str, text: str, place: str = "") -> TimeLimit | Memory:
    """Return the time limit or the memory of a request; UsageError at ``place`` if the text is none."""
    kind, hint = _MEASURES[name]
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(str(error), place=place or f"--{name.replace('_', '-')}", hint=hint) from error


def job_name(spec: JobSpec) -> str:
    """Return the run's name: as given, else the script's, reduced to what a job name and a folder may hold.

    Raises
    ------
    UsageError
        If a name was given that holds other characters or is too long.
    """
    if spec.name:
        if _NOT_IN_A_NAME.search(spec.name) or len(spec.name) > LONGEST_NAME or not spec.name[0].isalnum():
            hint = f"Use letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, a letter or digit first."
            raise UsageError(f"The name {spec.name!r} cannot be used", place="--name", hint=hint)
        return spec.name
    name = spec.script.name if spec.form == "module" else spec.script.stem
    return _NOT_IN_A_NAME.sub("-", name).strip("-._")[:LONGEST_NAME] or "run"
