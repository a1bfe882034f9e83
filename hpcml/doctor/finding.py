"""What a check found, and what all checks of one examination share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.node.hardware.record import Node
from hpcml.request.record import RunRequest
from hpcml.runs import directories, forecast
from hpcml.runs import submit as submission
from hpcml.schedulers import Prospect
from hpcml.sites.lookup import LoadedSite

GREEN, YELLOW, RED, NOT_APPLICABLE = STATES = ("green", "yellow", "red", "n/a")
ByNode = Mapping[str, Node]  # the probes of the job's nodes, by name
_LEAST = 0.1  # seconds that a question has though the deadline has passed


class Finding(NamedTuple):
    """What a check found: one sentence, one thing to do about it, and the facts behind both as data.

    ``yellow`` works slowly, in part or not always; ``red`` does not work. ``n/a``: it could not be looked at here, or
    does not apply, and the sentence says why.
    """

    check: str
    state: str
    sentence: str
    remedy: str = ""
    facts: Mapping[str, Any] = {}
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Return the finding as a JSON-ready mapping."""
        return {**self._asdict(), "seconds": round(self.seconds, 3)}


def green(sentence: str, **facts: object) -> Finding:
    """Return a finding without a fault; the caller adds the check's name."""
    return Finding("", GREEN, sentence, facts=facts)


def yellow(sentence: str, remedy: str, **facts: object) -> Finding:
    """Return a finding on something that makes runs slow, or fail at times."""
    return Finding("", YELLOW, sentence, remedy, facts)


def red(sentence: str, remedy: str, **facts: object) -> Finding:
    """Return a finding on something that keeps runs from working."""
    return Finding("", RED, sentence, remedy, facts)


def not_applicable(why: str, remedy: str = "", **facts: object) -> Finding:
    """Return a finding that a check was not possible here, with the reason."""
    return Finding("", NOT_APPLICABLE, why, remedy, facts)


def leave_out(nodes: Iterable[str]) -> str:
    """Return the remedy for nodes that have a fault."""
    names = list(nodes)
    them = "the nodes" if len(names) > 1 else "the node"
    return f"Report the fault to the site's support, and exclude {them}: --exclude {','.join(names)}."


def clause(message: str) -> str:
    """Return an error's sentence as a part of another."""
    name = message.startswith("Slurm") or message[1:2].isupper()
    return message.rstrip(".") if name else f"{message[:1].lower()}{message[1:]}".rstrip(".")


class _Once:
    """A question that several checks have, asked once; an error is every asker's."""

    def __init__(self, question: Callable[[], Any]) -> None:
        self.question, self.lock = question, threading.Lock()
        self.answer: Any = None
        self.error: Exception | None = None
        self.asked = False

    def __call__(self) -> Any:
        with self.lock:
            if not self.asked:
                try:
                    self.answer = self.question()
                except Exception as error:  # noqa: BLE001 - it is raised below, for each that asks
                    self.error = error
                self.asked = True
        if self.error:
            raise self.error
        return self.answer


class Examination:
    """The site, the request that represents runs of this user, and until when checks may ask.

    Parameters
    ----------
    loaded
        The site, as a run of the doctor's is to see it.
    wanted
        The site as the profile says.
    spec
        The request that is shown to Slurm, and submitted to look at nodes.
    environment
        The variables of the user's shell.
    seconds
        How long the checks may take together.
    """

    def __init__(
        self,
        loaded: LoadedSite,
        wanted: LoadedSite,
        spec: RunRequest,
        environment: Mapping[str, str],
        seconds: float = 2.2,
    ) -> None:
        self.loaded, self.wanted, self.site = loaded, wanted, wanted.site
        self.spec, self.environment = spec, environment
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self._prepared = _Once(lambda: submission.prepare(loaded, spec))
        self._start = _Once(lambda: forecast.ask_scheduler(self.prepared(), "", self.left()))

    def left(self) -> float:
        """Return the seconds that a question may take."""
        return max(_LEAST, self.end - time.monotonic())

    def prepared(self) -> submission.Prepared:
        """Return the request as it would be submitted; HpcmlError if it would be refused."""
        prepared: submission.Prepared = self._prepared()
        return prepared

    def start(self) -> Prospect:
        """Return the time at which Slurm would start it; HpcmlError if it refuses or does not answer."""
        start: Prospect = self._start()
        return start

    def directives(self) -> dict[str, str]:
        """Return the options for sbatch, as far as they are known of a request that would be refused."""
        from hpcml.errors import HpcmlError

        try:
            return dict(self.prepared().plan.directives)
        except HpcmlError:
            defaults, spec = self.site.defaults, self.spec
            pairs = {"--account": spec.place.account or defaults.account, "--qos": spec.place.qos or defaults.qos}
            return {key: value for key, value in pairs.items() if value} | {
                "--partition": spec.place.partition or defaults.partition
            }

    @property
    def runs(self) -> Path:
        """The runs folder; StorageError if it cannot be named."""
        return directories.runs_folder(self.site.paths.runs, self.environment)
