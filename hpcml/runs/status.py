"""How a run stands: its own files first, then Slurm; an answer that nobody has is UNKNOWN, not a guess."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcml import container_errors, endings, files, subprocesses
from hpcml.errors import (
    ALLOCATION_LOST,
    ANSWER_LOST,
    CANCELLED,
    IMAGE,
    PREEMPTED,
    START_FAILED,
    STORAGE,
    TIME_LIMIT,
    SlurmUnreachableError,
    StorageError,
)
from hpcml.runs import directories
from hpcml.schedulers import slurm

LOOK = 0.15  # seconds between looks at a run's files
FIRST_ASK_AFTER_START = 7.0  # seconds that a run's own diary is trusted at first, before Slurm is asked again

_REPLACED = "not there, or not yours: "  # how the batch script begins to say that the run's folder is another now

_SLURM_ENDS = {
    "TIMEOUT": (TIME_LIMIT, "the time limit was reached"),
    "DEADLINE": (TIME_LIMIT, "the job's deadline was reached"),
    "CANCELLED": (CANCELLED, "the job was cancelled"),
    "OUT_OF_MEMORY": (137, "Slurm says that a process of the job was killed for want of memory (OUT_OF_MEMORY)"),
    "NODE_FAIL": (ALLOCATION_LOST, "a node of the allocation failed"),
    "BOOT_FAIL": (ALLOCATION_LOST, "a node did not boot"),
    "PREEMPTED": (PREEMPTED, "the job was preempted: Slurm gave its nodes to another (PREEMPTED)"),
    "REVOKED": (ALLOCATION_LOST, "the job was revoked"),
}


@dataclass(slots=True)
class Status:
    """A run at one moment. ``state``: refused, unknown, queued, starting, running, ending or ended.

    ``silent`` is why Slurm could not be asked; all else is then from the run's own files.
    """

    run: str
    site: str
    state: str = "unknown"
    words: str = ""
    job: str = ""
    attempt: int = 0
    slurm_state: str = ""
    estimate: str = ""
    nodes: list[str] = field(default_factory=list)
    workers: int = 0
    expected: int = 0
    protocol: str = ""
    security: str = ""
    versions: str = ""
    in_image: bool = False
    staging: str = ""
    fabric: str = ""
    fabric_ok: bool = True
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    service: str = ""
    jupyter: str = ""
    times: dict[str, float] = field(default_factory=dict)
    exit_status: int | None = None
    by: str = ""
    hint: str = ""
    quote: list[str] = field(default_factory=list)
    directory: str = ""
    silent: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the status as a JSON-ready mapping."""
        return asdict(self)


def events(run: directories.Run) -> list[dict[str, Any]]:
    """Return the run's events in order; a line that is still being written is left for the next look."""
    with directories.storage(run.paths.events):
        try:
            text = files.read(run.paths.events).decode()
        except FileNotFoundError:
            return []
    return [files.parsed(json.loads, line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def status(
    run: directories.Run, environment: Mapping[str, str], known: slurm.JobState | None = None, *, ask: bool = True
) -> Status:
    """Return how a run stands now.

    Parameters
    ----------
    run, environment
        The run, and the environment for Slurm's commands.
    known
        The job's state if it was asked for already (one question for many runs).
    ask
        Whether to ask Slurm where ``known`` is not given; otherwise the run's own files are all there is.

    Raises
    ------
    StorageError
        If the run's record lacks something, or cannot be read.
    """
    try:
        return _of_its_kinds(_status(run, environment, known, ask=ask))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hint = "It was changed or cut short; the logs of the run may tell more."
        words = f"The run's record is not complete ({type(error).__name__}: {error})"
        raise StorageError(words, place=str(run.paths.directory), hint=hint) from error


def _of_its_kinds(found: Status) -> Status:
    """Return a status whose facts are texts, numbers and lists where they ought to be: they come from files.

    Raises
    ------
    TypeError
        If one is of another kind.
    """
    for name, value in asdict(found).items():
        default = getattr(Status("", ""), name)
        if name == "times":
            right = all(isinstance(moment, (int, float)) for moment in value.values())
        elif isinstance(default, (list, tuple)):
            right = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
        else:
            right = isinstance(value, int if name == "exit_status" else type(default)) or value is default
        if not right:
            raise TypeError(f"{name} is of another kind")
    return found


def _status(run: directories.Run, environment: Mapping[str, str], known: slurm.JobState | None, *, ask: bool) -> Status:
    made = directories.read_json(run.paths.plan) or {}
    found = Status(run.id, str(made.get("site", "")), job=run.job, directory=str(run.paths.directory))
    inside = made.get("inside", {})
    found.in_image = bool(inside.get("image"))
    found.service = str(inside.get("service", ""))
    found.expected = int(inside.get("nodes", 0)) * int(inside.get("workers_per_node", 0))
    if "error" in run.submission:
        lost = run.submission["status"] == ANSWER_LOST
        found.state, found.words = "unknown" if lost else "refused", str(run.submission["error"])
        found.exit_status, found.hint = int(run.submission["status"]), str(run.submission.get("hint", ""))
        found.quote = list(run.submission.get("quote", []))
        return found
    happened = events(run)
    _read_events(found, happened)
    final = directories.read_json(run.paths.status)
    if final is not None and not _began_again(happened, int(final.get("attempt", 0))):
        found.state, found.exit_status = final["state"], final["status"]
        found.words, found.by = final["reason"], final["by"]
        found.hint, found.quote = final["hint"], final["quote"]
    if found.service == "jupyter" and found.state == "running":
        found.jupyter = _jupyter(run)
    if (found.state != "ended" or run.may_start_again) and (ask or known is not None):
        _ask_owner(found, run, environment, known)
    if found.state in ("starting", "running", "ending") and (room := directories.full(run.paths.directory)):
        found.hint = f"{room[0].upper()}{room[1:]}: what the script and the logs write now is lost."
    return found


def _began_again(happened: list[dict[str, Any]], ended: int) -> bool:
    """Whether Slurm has started the job again since an attempt ended: what is written of that end is then old."""
    if any(int(event.get("attempt", 0)) > ended for event in happened):
        return True
    names = [event["event"] for event in happened]
    last = {name: position for position, name in enumerate(names)}
    ends = [last[name] for name in ("ending", "driver-ended", "torn-down") if name in last]
    return bool(ends) and last.get("allocated", -1) > max(ends)


def _read_events(found: Status, happened: list[dict[str, Any]]) -> None:
    for event in happened:
        if int(event.get("attempt", 0)) != found.attempt:  # Slurm has started the job again
            found.attempt, found.state, found.times = int(event["attempt"]), "starting", {}
            found.versions, found.fabric, found.fabric_ok, found.differences = "", "", True, ()
        _read_event(found, event)
    if found.state == "starting":
        found.words = _starting(found)
    elif found.state == "running":
        found.words = f"{_driver(found)} runs"
        if found.workers < found.expected:
            found.words += f", with {found.workers} of {found.expected} workers"


def _read_event(found: Status, event: dict[str, Any]) -> None:
    name = event["event"]
    found.times[name] = event["time"]
    found.security = event.get("security", found.security)
    if name == "allocated":
        found.state, found.nodes, found.workers, found.warnings = "starting", event["nodes"], 0, ()
    elif name in ("worker-added", "worker-removed"):
        found.workers = event["count"]
    elif name == "scheduler-up":
        found.protocol = f"{event['protocol']} ({event['because']})"
    elif name == "image-staging":
        found.state, found.staging = "starting", str(event["mode"])
    elif name == "environment-ready":
        found.versions, found.differences = str(event["words"]), tuple(event.get("differences", ()))
    elif name == "fabric-checked":
        _read_verdict(found, event)
    elif name == "warning":
        found.warnings += (str(event["sentence"]),)
    elif name == "driver-started":
        found.state = "running"
    elif name == "time-limit-near":
        told = "open pages are told to save" if found.service == "jupyter" else "hpcml.run.should_stop() is true now"
        found.hint = f"The time limit is near: {told}."


def _driver(found: Status) -> str:
    return "JupyterLab" if found.service == "jupyter" else "the script"


def _jupyter(run: directories.Run) -> str:
    """Return where JupyterLab is and how to get there, empty until it answers."""
    newest = max((int(path.name) for path in run.paths.directory.glob("attempts/*")), default=0)
    facts = directories.read_json(run.paths.attempt(newest).service_of("jupyter")) or {}
    return f"up on {facts['node']}; the way there: hpcml tunnel --service jupyter {run.id}" if facts else ""


def _starting(found: Status) -> str:
    """Return what a run waits for before its script starts."""
    if "workers-ready" in found.times:
        checking = "fabric-checking" in found.times and "fabric-checked" not in found.times
        return "the wire between the workers is checked" if checking else f"{_driver(found)} starts"
    if "scheduler-up" in found.times:
        return f"{found.workers} of {found.expected} workers are there"
    if "image-staging" in found.times and "image-staged" not in found.times:
        return f"the image is copied to the nodes ({found.staging})"
    if found.staging and "allocated" not in found.times:
        return "the roles enter the image"
    return "the scheduler starts"


def _read_verdict(found: Status, event: dict[str, Any]) -> None:
    line, problem = str(event["line"]), str(event["problem"])
    found.fabric_ok = bool(event["ok"]) and not problem
    found.differences += tuple(event.get("differences", ()))
    found.fabric = line if line and problem in line else "; ".join(words for words in (line, problem) if words)


def _ask_owner(
    found: Status, run: directories.Run, environment: Mapping[str, str], known: slurm.JobState | None
) -> None:
    """Ask Slurm, or the process table, about a run that has not written its end."""
    submission = run.submission
    if not submission:
        found.state, found.words = "unknown", "the submission's answer was not recorded"
        found.hint = f"If it was accepted, its comment is hpcml:{run.id} (squeue --me -o '%i %k')."
        return
    if "pid" in submission:
        _ask_process_table(found, run)
        return
    try:
        state = slurm.told(known) if known is not None else slurm.state(run.job, environment)
    except SlurmUnreachableError as error:
        found.silent = error.message
        if found.state == "unknown":
            found.words, found.hint = "the run has written nothing yet, and Slurm cannot be asked", error.hint
        return
    _heed_slurm(found, run, state)


def _heed_slurm(found: Status, run: directories.Run, state: slurm.JobState) -> None:
    """Take in what Slurm says of the job; the run's own events are newer than Slurm's word."""
    found.slurm_state, found.estimate = state.state, state.start if state.pending else ""
    if found.state == "ended":
        _perhaps_again(found, state)
    elif state.ended:
        code, words = _SLURM_ENDS.get(state.state, (ALLOCATION_LOST, ""))
        forgotten = "Slurm knows no such job any more" if state == slurm.UNKNOWN else f"Slurm: {state.state}"
        _ended_without_word(found, run, code, words, f"the job ended without a word ({forgotten})")
    elif found.state == "unknown" and state.pending:
        found.state, found.words = "queued", state.reason_in_words()
    elif found.state == "unknown":
        begun = "the batch script starts" if state.active else f"Slurm says {state.state}"
        found.state, found.words = "starting", begun


def _ask_process_table(found: Status, run: directories.Run) -> None:
    alive = subprocesses.start_time(int(run.submission["pid"])) == run.submission["started"] != ""
    found.slurm_state = "RUNNING" if alive else ""
    if alive and found.state == "unknown":
        found.state, found.words = "starting", "the batch script starts"
    elif not alive:
        gone = "the run's processes are gone and left no word (killed, or the machine went down)"
        _ended_without_word(found, run, ALLOCATION_LOST, "", gone)


def _perhaps_again(found: Status, state: slurm.JobState) -> None:
    """An attempt of a job that may be put back into the queue has ended: the run has not if the job is there still."""
    if state.ended:
        return
    found.state, found.exit_status, found.by, found.hint, found.quote = "ending", None, "", "", []
    if state.pending:
        found.state, found.words = "queued", f"put back into the queue: {state.reason_in_words()}"


def _ended_without_word(found: Status, run: directories.Run, code: int, words: str, otherwise: str) -> None:
    """The run is over but did not write that it ended: its first node died, or it never got to the supervisor.

    ``code`` and ``words`` are what the owner of its processes says; without words step.sh's record counts, and then
    ``otherwise``.
    """
    if found.exit_status is not None:
        found.state = "ended"  # the end was written, the teardown was cut short
    elif not words and (said := _driver_exit(run)) is not None:
        _step_ended(found, run, *said)
    elif not words and not found.times and (log := tail(run.paths.job_log)) and log[-1].startswith("hpcml: "):
        said_last = log[-1].removeprefix("hpcml: ").rstrip(".")  # the batch script's own word
        _lost(found, run, said_last, STORAGE if said_last.startswith(_REPLACED) else START_FAILED)
    else:
        _lost(found, run, words or otherwise, code)


def _driver_exit(run: directories.Run) -> tuple[str, int] | None:
    """Return the node and the exit status that step.sh recorded for the newest attempt's driver, if it did."""
    with directories.storage(run.paths.directory):
        path = _driver_record(run)
        text = files.read(path, 100).decode(errors="replace").strip() if path else ""
    return (path.name.partition("@")[2], int(text)) if path and text.isdigit() else None


def _driver_record(run: directories.Run) -> Path | None:
    """Return the file in which step.sh recorded the end of the newest attempt's driver, if it did."""
    with directories.storage(run.paths.directory):
        attempt = max(run.paths.directory.glob("attempts/[0-9]*"), key=lambda path: int(path.name), default=None)
        records = attempt.glob("exit/driver@*") if attempt else ()
        return next((path for path in records if not path.name.endswith(".new")), None)


def _step_ended(found: Status, run: directories.Run, node: str, said: int) -> None:
    """The driver's step has ended without the supervisor's word: it never started, or it was killed."""
    if "allocated" in found.times:  # what its log says is the script's
        _lost(found, run, f"the driver's step {endings.of(said, ()).how} and left no word", said)
        return
    image = (directories.read_json(run.paths.plan) or {}).get("inside", {}).get("image", "")
    if image:
        log = tail(run.paths.driver_log, 200) or tail(run.paths.job_log, 200)
        why = container_errors.in_words("\n".join(log), str(said))
        _lost(found, run, f"{node}: {why.what}", IMAGE)
        found.hint = why.hint.replace("IMAGE", image)
    else:
        ended = endings.of(said, tail(run.paths.driver_log))
        _lost(found, run, f"the driver's step could not start: it {ended.how}", START_FAILED)
        found.hint = ended.hint or found.hint
    found.quote = tail(run.paths.driver_log) or found.quote


def _lost(found: Status, run: directories.Run, words: str, code: int = ALLOCATION_LOST) -> None:
    found.state, found.words, found.exit_status, found.by = "ended", words, code, "slurm"
    found.quote = tail(run.paths.job_log)
    found.hint = f"The job's own log: {run.paths.job_log}."
    if room := directories.full(run.paths.directory):
        found.words += f"; {room}"
        found.hint = "Free some space, or keep runs elsewhere (--set paths.runs=…); then submit again."
    elif not found.times and not found.quote and (startup := run.submission.get("bash_env")):
        found.hint = (
            f"BASH_ENV was set: bash reads {startup} before the batch script. Does it call exit, or fail? "
            "Otherwise: is paths.runs on a file system that all nodes share? The job left nothing there."
        )
    elif not found.times and not found.quote:
        found.hint = "Is paths.runs on a file system that all nodes share? The job left nothing there."


def tail(path: Path, lines: int = 12) -> list[str]:
    """Return the last lines of a log; nothing if it is not there."""
    try:
        with open(files.open_regular(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()][-lines:]
    except OSError:
        return []


def follow(
    run: directories.Run,
    environment: Mapping[str, str],
    each: Callable[[], None],
    patience: float = 300.0,
    before: Callable[[], None] = lambda: None,
) -> Iterator[Status]:
    """Yield the run's status whenever it has changed, until it has ended.

    Its own files are looked at often, Slurm seldom: after 1 s at first, then at growing distances up to 15 s while it
    waits; from 7 s up to 30 s while it runs. When the driver's step has ended and the run's files do not say how, Slurm
    is asked at once and then as at first: the job is about to end.

    Parameters
    ----------
    each
        Called at every look, after its status if that is new (to pass on the script's output).
    patience
        How long Slurm may be silent, in seconds, before the error is passed on.
    before
        Called at every look before the run's files are read: what the script wrote until then is not older than what
        the status tells.
    """
    ask_at, distance, look_at = 0.0, 1.0, 0.0
    state: slurm.JobState | None = None
    heard = time.monotonic()
    last: Status | None = None
    seen: object = None
    over: Path | None = None
    while True:
        now = time.monotonic()
        began = run.paths.events.exists() and over is None
        if began and distance < FIRST_ASK_AFTER_START:  # its own diary speaks now
            distance = FIRST_ASK_AFTER_START
            ask_at = now + distance
        if run.job and now >= ask_at:
            try:
                state = slurm.state(run.job, environment)
                heard = now
            except SlurmUnreachableError:
                if now - heard > patience:
                    raise
            distance = min(distance * 1.5, 30.0 if began else 15.0)
            ask_at = time.monotonic() + distance
            look_at = 0.0
        before()
        files = [_stamp(run.paths.events), _stamp(run.paths.status)]
        if files != seen or now >= look_at:  # reading the record is what costs; looking whether it changed does not
            seen, look_at = files, now + 1.0
            current = status(run, environment, state, ask=not run.job)
            asked = state is not None or not run.may_start_again  # files alone cannot say that no attempt follows
            over_now = current.state in ("ended", "refused")
            if current != last and (asked or not over_now):
                yield current
                last = current
            if over_now and asked:
                each()
                return
            if run.job and (record := _driver_record(run)) != over:
                over, distance, ask_at = record, 1.0, 0.0
        each()
        time.sleep(LOOK)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
