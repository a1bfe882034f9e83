"""Why a run failed: its cause with the lines that show it, a next step, and the option to try again with."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import NamedTuple

from hpcml import schedulers
from hpcml.errors import ALLOCATION_LOST
from hpcml.failures import evidence, judgement
from hpcml.failures.evidence import Line
from hpcml.failures.judgement import Cause, Ending
from hpcml.failures.rules import Retry, Role
from hpcml.report import attempts, ending
from hpcml.runs import directories, handle
from hpcml.runs import status as run_status
from hpcml.runs.status import Status
from hpcml.runs.tables import Table, complete
from hpcml.units import expand_hosts

MOST_LOGS = 128  # workers' logs that are read
_MORE = 1.5  # times what was asked for is worth a try
_WARNINGS = 3


class Answer(NamedTuple):
    """Why a run failed, or how it stands if it did not.

    ``cause`` is one sentence; ``known`` is False where there is no evidence of it, and ``look`` then says where some
    may be. ``options`` are what to submit it again with, ``again`` is that command. ``attempts`` says in a line what
    became of each attempt before the last one.
    """

    run: str
    state: str
    failed: bool
    cause: str = ""
    short: str = ""
    known: bool = True
    rule: str = ""
    occurrences: int = 0
    nodes: tuple[str, ...] = ()
    evidence: tuple[Line, ...] = ()
    followed: tuple[Line, ...] = ()
    warnings: tuple[Line, ...] = ()
    next_step: str = ""
    options: tuple[str, ...] = ()
    again: str = ""
    look: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The cause in one line."""
        return ending.sentence(self.cause, known=self.known, occurrences=self.occurrences, nodes=self.nodes)

    def as_json(self) -> dict[str, object]:
        """Return the answer as a JSON-ready mapping."""
        lines = {
            name: [line._asdict() for line in getattr(self, name)] for name in ("evidence", "followed", "warnings")
        }
        return {**self._asdict(), **lines}


def look(run: directories.Run) -> tuple[Status, Answer]:
    """Return how a run stands, and why it failed if it did.

    Raises
    ------
    StorageError
        If the run's record cannot be read.
    """
    run, known = run_status.now(run)
    before = tuple(map(attempts.sentence, attempts.earlier(run.paths, known.attempt)))
    return known, of_status(run, known)._replace(attempts=before)


def of_status(run: directories.Run, status: Status) -> Answer:
    """Return why a run failed that stands so."""
    if status.phase == "refused":
        return refused(status)
    sentences = (*status.warnings[-_WARNINGS:], *status.silences())
    told = tuple(Line(sentence, "record", "events.jsonl") for sentence in sentences)
    if not status.over:
        never = "never start" in status.message
        cause = f"the run waits: {status.message}" if status.phase == "queued" else status.message
        step = f"Cancel it: hpcml cancel {run.id}." if never else status.hint
        rule = "dependency" if never else ""
        return Answer(run.id, status.state, never, cause, rule=rule, warnings=told, next_step=step)
    hits = evidence.hits(run.paths, MOST_LOGS)
    found = judgement.judge(_ending(run, status), hits)
    if found is None:
        return Answer(run.id, status.state, False, "the run ended well: there is no failure to explain", warnings=told)
    if not found.known or (status.state == "NODE_FAIL" and not found.nodes):
        found = _by_scheduler(run, status, found)
    retry = options(run, found)
    warnings: dict[str, Line] = {}
    for hit in hits:
        if hit.rule.role is Role.WARNING:
            warnings.setdefault(hit.rule.name, hit.line)
    return Answer(
        run.id,
        status.state,
        True,
        found.what,
        found.short,
        found.known,
        found.rule,
        found.occurrences,
        found.nodes,
        found.evidence,
        found.followed,
        tuple(warnings.values())[:_WARNINGS],
        found.remedy,
        retry,
        " ".join(("hpcml rerun", run.id, *retry)) if retry else "",
        () if found.known else _where(run),
    )


def _by_scheduler(run: directories.Run, status: Status, cause: Cause) -> Cause:
    """Return the cause with what the scheduler says of the job's end, which is asked where nothing else tells it."""
    if not run.submission or not run.submission.key or status.by != "scheduler":
        return cause
    ended = schedulers.end(run.submission)
    if status.state == "NODE_FAIL":
        return (
            cause._replace(nodes=_hosts(ended.failed_nodes)) if ended.failed_nodes else _first_node(run, status, cause)
        )
    if status.exit_status != ALLOCATION_LOST or ended.signal not in {known.value for known in signal.Signals}:
        return cause
    name = signal.Signals(ended.signal).name
    remedy = "It ran on the first node: a person, the site or the kernel ended it. Submit it again."
    what = f"the batch script was killed by {name}"
    return cause._replace(what=what, short="batch script killed", known=True, rule="batch-killed", remedy=remedy)


def _hosts(listed: str) -> tuple[str, ...]:
    try:
        return tuple(expand_hosts(listed))
    except ValueError:
        return (listed,)


def _first_node(run: directories.Run, status: Status, cause: Cause) -> Cause:
    """Return the first node as the one that failed if the supervisor, which runs there, left no word of the end."""
    if run.paths.status.exists() or not status.nodes or not status.times:
        return cause
    what = "a node failed, or lost its network: the first one, whose supervisor left no word of the end"
    return cause._replace(what=what, nodes=status.nodes[:1])


def refused(status: Status) -> Answer:
    """Return why Slurm or hpcml did not take a run."""
    text = "\n".join((status.message, *status.quote))
    known = [hit for hit in evidence.hits_in(evidence.Piece(text, 0), "record") if hit.rule.role is Role.ROOT]
    rule = known[0].rule if known else None
    lines = tuple(Line(text, "record", "submission.json") for text in status.quote[-3:])
    return Answer(
        status.run,
        status.state,
        True,
        status.message,
        rule.short if rule else "refused",
        rule=rule.name if rule else "",
        evidence=lines,
        next_step=status.hint or (rule.remedy if rule else ""),
    )


def _ending(run: directories.Run, status: Status) -> Ending:
    form = ""
    if request := directories.read_json(run.paths.request):
        with complete(run.paths.directory):
            form = Table(request.get("spec", dict, {})).get("form", str, "")
    end = Ending(
        status.exit_status or 0,
        status.by,
        status.state,
        status.message,
        status.hint,
        status.quote,
        status.times,
        form=form,
        clocks=status.clocks,
    )
    return judgement.with_files(run.paths, run.paths.attempt(status.attempt), end)


def options(run: directories.Run, cause: Cause) -> tuple[str, ...]:
    """Return the options that a cause makes worth a try; none where what was asked for is not known."""
    from hpcml.report.figures import memory_in_plan

    planned = directories.read_json(run.paths.plan) or Table({})
    with complete(run.paths.directory):
        inside = Table(planned.get("inside", dict, {}))
        match cause.retry:
            case Retry.EXCLUDE if cause.nodes and not inside.get("one_machine", bool, False):
                return ("--exclude", ",".join((*_excluded(run), *cause.nodes)))
            case Retry.TIME if limit := inside.get("time_limit", int, 0):
                return ("--time", _longer(limit))
            case Retry.MEMORY if cause.rule == "worker-memory" and (share := inside.get("memory_limit", int, 0)):
                return ("--set", f"workers.memory_limit={_larger(share)}")
            case Retry.MEMORY if size := memory_in_plan(planned.facts):
                return ("--memory-per-node", _larger(size))
    return ()


def _excluded(run: directories.Run) -> list[str]:
    """Return the nodes that the request excludes already: the option given anew takes their place."""
    request = directories.read_json(run.paths.request)
    spec = Table(request.get("spec", dict, {})) if request else Table({})
    found: list[str] = []
    for option in spec.get("sbatch", list, []):
        if isinstance(option, list) and len(option) == 2 and option[0] == "--exclude":
            found += _hosts(str(option[1]))
    return found


def _larger(size: float) -> str:
    """Return half as much memory again, as ``--memory-per-node`` takes it."""
    gib = 1024**3
    wanted = size * _MORE
    return f"{math.ceil(wanted / gib)}G" if wanted >= 2 * gib else f"{math.ceil(wanted / 1024**2)}M"


def _longer(seconds: int) -> str:
    """Return half as much time again, in whole minutes, of hours in tens of them."""
    step = 600 if seconds >= 3600 else 60
    wanted = math.ceil(seconds * _MORE / step) * step
    return f"{wanted // 3600}:{wanted // 60 % 60:02d}:00"


def _where(run: directories.Run) -> tuple[str, ...]:
    """Return the commands that show what there is of a run whose cause is not known."""
    found = [
        f"hpcml logs {run.id} {role}"
        for role in ("job", "driver", "scheduler", "worker")
        if any(map(_has_text, handle.log_files(run, role)))
    ]
    if run.job:
        found.append(f"sacct -j {run.job} --format=JobID,State,ExitCode,DerivedExitCode,NodeList,Elapsed")
    return tuple(found)


def _has_text(path: Path) -> bool:
    return any(piece.text.strip() for piece in evidence.pieces(path))
