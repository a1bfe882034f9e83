"""The nodes on which runs of this user failed by the node's own fault, remembered for a day for each site."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml import errors, safe_files, schedulers
from hpcml.errors import HpcmlError
from hpcml.failures.rule import Retry
from hpcml.failures.rules import BY_NAME
from hpcml.request.record import RunRequest
from hpcml.runs import directories
from hpcml.runs.status import Status, status
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import process_environment
from hpcml.states import Phase

if TYPE_CHECKING:
    from hpcml.runs.why import Answer

DAY = 86400.0
_LOCKED_WITHIN = 1.0  # seconds for other submissions to write
_LIMIT = 1 << 20  # bytes of a site's file
_LOOKED_AT = 20  # runs of the last day that are looked at when another is submitted
_JUDGED_WITHIN = 1.0  # seconds for their logs; what is left is for the next submission
_MOST = 200  # nodes that are remembered
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class BadNode(NamedTuple):
    """A node, why a run failed on it in some words, which run, and when, in seconds since 1970."""

    node: str
    why: str
    run: str
    time: float


class Memory:
    """What is known of a site's nodes, in a file of the user's home that all of their submissions share."""

    def __init__(self, site: str, home: str | None = None) -> None:
        home = process_environment().get("HOME", "") if home is None else home
        self.path = Path(home) / ".hpcml" / "nodes" / f"{site}.json"
        self.usable = bool(home) and bool(_NAME.fullmatch(site))

    def nodes(self, now: float) -> list[BadNode]:
        """Return the nodes that failed within a day, by name."""
        return sorted(self._read(now)[0].values())

    def judged(self, now: float) -> set[str]:
        """Return the runs of the last day whose cause is known already."""
        return set(self._read(now)[1])

    def add(self, runs: Sequence[str], bad: Sequence[BadNode], now: float) -> None:
        """Remember the nodes that some judged runs have shown; a file that cannot be written is left as it is."""
        if not self.usable or not runs:
            return
        with self._locked() as locked:
            if locked:
                nodes, judged = self._read(now)
                for failed in bad:
                    if now - failed.time < DAY and (failed.node not in nodes or nodes[failed.node].time < failed.time):
                        nodes[failed.node] = failed
                judged |= dict.fromkeys(runs, now)
                newest = sorted(nodes.values(), key=lambda one: one.time)[-_MOST:]
                content = {"nodes": [failed._asdict() for failed in newest], "judged": judged}
                with contextlib.suppress(OSError):  # a full disk is told by the submission, which needs more of it
                    safe_files.write(self.path, json.dumps(content, indent=1) + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of the file; False where the home has none, or others keep it too long."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self.path.with_suffix(".lock"), flags, 0o600)
        except OSError:
            yield False
            return
        try:
            yield safe_files.is_own_folder(self.path.parent) and _lock(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, now: float) -> tuple[dict[str, BadNode], dict[str, float]]:
        """Return nodes and judged runs of the last day; of a damaged file nothing, which is then written again."""
        nodes: dict[str, BadNode] = {}
        judged: dict[str, float] = {}
        if not self.usable:
            return nodes, judged
        try:
            content = safe_files.read_json(self.path, _LIMIT)
            for entry in content["nodes"]:
                bad = BadNode(str(entry["node"]), str(entry["why"]), str(entry["run"]), float(entry["time"]))
                if _NAME.fullmatch(bad.node) and abs(now - bad.time) < DAY:  # the node's clock may be ahead
                    nodes[bad.node] = bad
            judged = {str(run): float(at) for run, at in content["judged"].items() if abs(now - float(at)) < DAY}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return nodes, judged
        return nodes, judged


def _lock(descriptor: int) -> bool:
    end = time.monotonic() + _LOCKED_WITHIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() > end:
                return False  # a file system without locks, or somebody who holds it
            time.sleep(0.02)
        else:
            return True


def at_fault(current: Status, rule: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that a run failed on by their own fault, judged by the rule that tells its cause.

    What all nodes of a run show is none of theirs. A node that alone did not get its processes up by what it did
    itself, or could not use the image, is at fault, unless its memory was full. One that others kept away, as by a
    flood of connections, is not.
    """
    retry = BY_NAME[rule].retry if rule in BY_NAME else Retry.NONE
    if retry is Retry.EXCLUDE:
        held = tuple(node for node in nodes if node in current.allocation.nodes)
    elif (
        current.ending.by == "hpcml"
        and retry is not Retry.MEMORY
        and current.exit_status in (errors.WORKERS_NEVER_CAME, errors.IMAGE)
    ):
        named = [node for node in current.allocation.nodes if node in current.ending.at_fault]
        first = current.exit_status == errors.IMAGE and named == list(
            current.allocation.nodes[:1]
        )  # it is the first that tries
        held = tuple(named) if len(named) == 1 and not first else ()
    else:
        return ()
    alone = len(current.allocation.nodes) == 1 and retry is Retry.EXCLUDE
    return held if alone or set(held) < set(current.allocation.nodes) else ()


def learn(folder: Path, site: str, now: float) -> None:
    """Judge the runs on a site that failed within a day and were not judged yet, and remember their bad nodes."""
    memory = Memory(site)
    days = {f"-{time.strftime('%Y%m%d', time.gmtime(now - back))}-" for back in (0.0, DAY)}
    recent = [run_id for run_id in directories.ids(folder) if any(day in run_id for day in days)]
    judged = memory.judged(now) if recent else set()
    ended: list[str] = []
    bad: list[BadNode] = []
    end = time.monotonic() + _JUDGED_WITHIN
    for run_id in reversed(directories.newest(folder, [run for run in recent if run not in judged], _LOOKED_AT)):
        if time.monotonic() > end:
            break
        with contextlib.suppress(HpcmlError):  # one that cannot be read tells nothing; ls names it
            run = directories.load(folder / run_id)
            current = status(run, ask=False)
            if current.phase != Phase.ENDED or current.planned.site != site or run.may_start_again:
                continue
            ended.append(run_id)
            if current.allocation.job and current.exit_status:
                from hpcml.runs import why

                bad += _shown_by(current, why.of_status(run, current))
    memory.add(ended, bad, now)


def remember(current: Status, answer: Answer) -> None:
    """Remember the nodes that a run has shown, of which the cause has just been looked for."""
    if current.phase != Phase.ENDED or not (current.allocation.job and answer.failed):
        return
    memory, now = Memory(current.planned.site), time.time()
    if current.run not in memory.judged(now):
        memory.add([current.run], _shown_by(current, answer), now)


def _shown_by(current: Status, answer: Answer) -> list[BadNode]:
    when = max(current.progress.times.values(), default=directories.submitted_at(current.run) or 0.0)
    return [BadNode(node, answer.short, current.run, when) for node in at_fault(current, answer.rule, answer.nodes)]


def sentence(bad: Sequence[BadNode]) -> str:
    """Return in one line which nodes failed and the option that leaves them out."""
    first = bad[0]
    names = ",".join(failed.node for failed in bad)
    if len(bad) == 1:
        failure = f"{first.node} made a run fail in the last 24 hours ({first.why}, {first.run})"
        return f"{failure}: exclude the node with --exclude {names}"
    text = "; ".join(f"{failed.node}: {failed.why}" for failed in bad[:3]) + ("; …" if len(bad) > 3 else "")
    return f"{len(bad)} nodes made runs fail in the last 24 hours ({text}): exclude the nodes with --exclude {names}"


def excluded(site: Site, spec: RunRequest, *, look: bool) -> tuple[RunRequest, list[str]]:
    """Return the request without the nodes that failed within a day, if the profile says so, and a note on them.

    ``look``: the runs that ended within a day are judged first.
    """
    from hpcml.runs.submit import EXCLUDE_FAILED

    options = schedulers.get(site.scheduler).NODE_OPTIONS
    if not options or set(options) & dict(spec.place.sbatch).keys():
        return spec, []  # there are no nodes to choose, or the user chooses them
    now = time.time()
    if look:
        learn(directories.runs_folder(site.paths.runs, process_environment()), site.name, now)
    if not (bad := Memory(site.name).nodes(now)):
        return spec, []
    notes = [sentence(bad)]
    if not site.slurm.exclude_failed:
        return spec, notes
    sites_own = [line.partition("=")[2] for line in site.slurm.extra if line.startswith("--exclude=")]
    names = ",".join([*sites_own, *(failed.node for failed in bad)])
    origin = (f"--exclude {names}", EXCLUDE_FAILED)
    return spec.changed(sbatch=(*spec.place.sbatch, ("--exclude", names)), origins=(*spec.origins, origin)), notes
