"""The request: what a run is asked for, by group; the plan fills in the site's defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.errors import UsageError
from hpcml.hold_queue import Part
from hpcml.settings import Points
from hpcml.units import Memory, TimeLimit
from hpcml.workload_forms import Form

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 64
NOT_SAID = -1  # a count that the user did not give
ENDS = {"ok": "to succeed", "any": "to end", "fail": "to fail"}
_MEASURES: dict[str, tuple[type[TimeLimit | Memory], str]] = {
    "time": (TimeLimit, "See sbatch(1), --time."),
    "memory_per_node": (Memory, "Units are powers of 1024."),
}


class Awaited(NamedTuple):
    """A run that another waits for."""

    run: str  # the word of the user; once resolved, the run's id
    when: str = "ok"  # the wanted end: a key of ENDS
    job: str = ""  # the run's Slurm job id, once resolved

    @classmethod
    def of(cls, text: str) -> Awaited:
        """Read ``RUN`` or ``RUN:ok|any|fail``; UsageError if the text is neither."""
        run, colon, when = text.partition(":")
        if not run or (colon and when not in ENDS):
            hint = "Write RUN (after success), RUN:any (after any end) or RUN:fail (after a failure)."
            raise UsageError(f"'{text}' does not name a run to wait for", place="--after", hint=hint)
        return cls(run, when or "ok")

    @property
    def text(self) -> str:
        """The same as :meth:`of` reads it."""
        return f"{self.run}:{self.when}"

    def clause(self) -> str:
        """Return the end that is waited for, in words."""
        return f"{self.run} {ENDS[self.when]}"

    def met_by(self, exit_status: int | None) -> bool:
        """Whether an end with that status is the wanted one; a run without a status has an unknown end."""
        return self.when == "any" or (exit_status is not None and (exit_status == 0) == (self.when == "ok"))


class Code(NamedTuple):
    """What is started."""

    script: Path = Path()  # the file; of a module its folder and dotted name; of a program on PATH its bare name
    arguments: tuple[str, ...] = ()  # the script's own
    cwd: Path = Path()  # the folder that the script runs in: the one that the user submits from
    form: Form = Form.SCRIPT  # what is started
    interpreter: tuple[str, ...] = ()  # words of a Python interpreter in the place of the run's own
    in_place: bool = False  # a program that is started where it is, and never copied
    sources: tuple[Path, ...] = ()  # folders that the copy of the code may link to
    staged: bool = False  # script and cwd are removed after the submission: the script runs in the run's copy
    sent_from: str = ""  # the laptop and its folder that a staged script comes from
    idle: float = 0.0  # seconds without use after which JupyterLab ends; 0: never
    keeps: bool = False  # a hold starts the processes of its next run ahead
    root: str = ""  # the folder that is copied: the project's root, above the script; empty: the script's own folder
    lines: tuple[str, ...] = ()  # of a batch script: those for the scheduler, as they are
    batch_words: tuple[str, ...] = ()  # the batch script, with its arguments, whose translation this is
    programs: str = ""  # folder that is first on the PATH of a program: the chosen environment's

    @property
    def typed(self) -> str:
        """The script's name as a shell takes it, for a command that a user types."""
        return shlex.quote(self.script.name)

    @property
    def copied(self) -> bool:
        """Whether the run takes a copy of a folder of code: a program on PATH has none."""
        return self.form.traits.is_script and self.script.is_absolute() and not self.in_place

    @property
    def top(self) -> Path:
        """The folder that is copied."""
        return Path(self.root) if self.root else self.script.parent

    @property
    def place(self) -> Path:
        """The script's path below the folder that is copied."""
        return self.script.relative_to(self.top)


class Place(NamedTuple):
    """Where the run's job goes."""

    site: str = ""  # the name of the machine's profile; empty: the one found here
    settings: tuple[str, ...] = ()  # KEY=VALUE of the profile, as for --set
    line_settings: tuple[tuple[str, str], ...] = ()  # the same of the script's own lines, each with its line
    account: str = ""  # Slurm account to charge
    partition: str = ""  # Slurm partition
    clusters: str = ""  # Slurm clusters: the first that can start the job
    qos: str = ""  # Slurm quality of service
    dependency: str = ""  # as for sbatch --dependency
    after: tuple[Awaited, ...] = ()  # runs to wait for
    hold: str = ""  # directory of the kept allocation in which the run starts
    part: tuple[Part, ...] = ()  # what the run takes of a node of the hold, and what the node has; empty: whole nodes
    no_wait: bool = False  # the hold is to refuse the run if it cannot start at once
    sbatch: tuple[tuple[str, str], ...] = ()  # options passed to sbatch: name and value (flag: ""), no name twice


class Size(NamedTuple):
    """How much is asked for. In the plan's copy 0 CPUs, no memory and no time are what Slurm gives."""

    nodes: int = NOT_SAID  # nodes
    gpus_per_node: int = NOT_SAID  # GPUs of each node, a worker for each
    gpus_because: tuple[str, ...] = ()  # what of the script hpcml chose the GPUs for; empty: it did not
    gpus_lacking: tuple[str, ...] = ()  # packages without which hpcml chose no GPUs
    gpu_type: str = ""  # Slurm's name of the GPU model
    cpus_per_node: int = NOT_SAID  # CPUs of each node, as Slurm counts them
    memory_per_node: Memory = Memory()  # bytes of each node
    time: TimeLimit = TimeLimit()  # seconds


class Attempts(NamedTuple):
    """Whether the run continues in another job after a time limit, a preemption or a node's failure."""

    until_done: bool = False  # it continues
    max_restarts: int = NOT_SAID  # attempts after the first
    max_node_hours: float = 0.0  # node-hours of all attempts together; 0: no limit

    @property
    def several_jobs(self) -> bool:
        """Whether attempts after the first have jobs of their own."""
        return self.until_done


class RunRequest(NamedTuple):
    """What a run is asked for; an empty value or ``NOT_SAID`` was not given."""

    code: Code = Code()
    size: Size = Size()
    place: Place = Place()
    attempts: Attempts = Attempts()
    points: Points = Points()
    kind: str = "dask"  # what the run is made of: a name in hpcml.kinds
    of_kind: Mapping[str, Any] = {}  # the given values of options that only this kind has, by name
    name: str = ""  # the run's name; empty: the script's
    python: str = ""  # the environment or the interpreter of the run's processes, as typed
    image: str = ""  # path of the Apptainer image that the roles run in; in the plan's copy an absolute one
    environment: tuple[tuple[str, str], ...] = ()  # variables of the run: name and value, which may be secret
    service: tuple[str, ...] = ()  # ports of the first node to which tunnels lead: NAME=PORT
    origins: tuple[tuple[str, str], ...] = ()  # options that the command line did not give, and their sources

    @classmethod
    def of(cls, script: Path, arguments: tuple[str, ...] = (), cwd: Path = Path(), **values: Any) -> RunRequest:
        """Return the request of a script; ``values`` as for :meth:`changed`."""
        return cls(Code(script, arguments, cwd)).changed(**values)

    def changed(self, **values: Any) -> RunRequest:
        """Return a copy with these values; a field of a group goes by its own name."""
        fields = {name: value for name, value in values.items() if name in self._fields}
        by_group: dict[str, dict[str, Any]] = {}
        for name in values.keys() - fields.keys():
            by_group.setdefault(_GROUP_BY_FIELD.get(name, "of_kind"), {})[name] = values[name]
        of_kind = {**self.of_kind, **by_group.pop("of_kind", {})}
        groups = {group: getattr(self, group)._replace(**by_group[group]) for group in by_group}
        return self._replace(**{"of_kind": of_kind, **fields, **groups})

    def value(self, name: str) -> Any:
        """Return the value of a field, also of a group's; None for an option of the kind that was not given."""
        if name in self._fields:
            return getattr(self, name)
        group = _GROUP_BY_FIELD.get(name)
        return getattr(getattr(self, group), name) if group else self.of_kind.get(name)

    def given(self) -> dict[str, object]:
        """Return the given values by field, without the site and its settings; of variables only the names."""
        fields = {name: value for group in _GROUPS for name, value in getattr(self, group)._asdict().items()}
        fields |= {name: getattr(self, name) for name in self._fields if name not in (*_GROUPS, "of_kind")}
        fields |= self.of_kind
        fields["environment"] = tuple(name for name, _ in self.environment)
        del fields["site"], fields["settings"], fields["line_settings"]
        return {
            name: value for name, value in fields.items() if getattr(value, "text", value) not in ("", NOT_SAID, ())
        }


_GROUPS = {name: value for name, value in RunRequest._field_defaults.items() if hasattr(value, "_fields")}
_GROUP_BY_FIELD = {field: group for group, record in _GROUPS.items() for field in record._fields}
OPTIONAL = {"name", "python", "image", "service"}
OPTIONAL |= {field for field, group in _GROUP_BY_FIELD.items() if group != "code"}


def measure(name: str, text: str, place: str = "") -> TimeLimit | Memory:
    """Return the time limit or the memory of a request; UsageError at ``place`` if the text is invalid."""
    kind, hint = _MEASURES[name]
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(str(error), place=place or f"--{name.replace('_', '-')}", hint=hint) from error


def job_name(spec: RunRequest) -> str:
    """Return the run's name: as given, else the script's, reduced to what a job name and a folder may hold.

    Raises
    ------
    UsageError
        If a name was given that holds other characters or is too long.
    """
    if spec.name:
        if _NOT_IN_A_NAME.search(spec.name) or len(spec.name) > LONGEST_NAME or not spec.name[0].isalnum():
            hint = f"Use at most {LONGEST_NAME} letters, digits, '.', '_' and '-'. Begin with a letter or digit."
            raise UsageError(f"{spec.name!r} is not a valid name", place="--name", hint=hint)
        return spec.name
    name = spec.code.script.name if spec.code.form is Form.MODULE else spec.code.script.stem
    return _NOT_IN_A_NAME.sub("-", name).strip("-._")[:LONGEST_NAME] or "run"
