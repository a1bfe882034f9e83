"""Every way hpcml can fail: a sentence, a place, a next step and an exit status of its own.

The statuses from 64 to 78 are the command line's, each with the meaning that sysexits.h gives it; those from 80 to 94
are the batch job's (they become the job's exit status when hpcml, not the script, ended the run); STORAGE is of both.
docs/exit-status.md is this table in prose.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcml.terminal import shown

# The command line's own failures, and those of reaching a cluster from a laptop; behind each is the name in sysexits.h.
USAGE = 64  # EX_USAGE
REFUSED = 65  # EX_DATAERR
NOT_FOUND = 66  # EX_NOINPUT
UNREACHABLE = 68  # EX_NOHOST
UNAVAILABLE = 69  # EX_UNAVAILABLE
INTERNAL = 70  # EX_SOFTWARE
UNFIT = 71  # EX_OSERR
STORAGE = 74  # EX_IOERR
ANSWER_LOST = 76  # EX_PROTOCOL
NO_ACCESS = 77  # EX_NOPERM
CONFIG = 78  # EX_CONFIG

# A run that hpcml ended. IMAGE is also what the commands about images end with.
START_FAILED = 80
WORKERS_NEVER_CAME = 81
ROLE_LOST = 82
PORT_TAKEN = 83
NO_PROGRESS = 84
TIME_LIMIT = 85
CANCELLED = 86
ALLOCATION_LOST = 87
IMAGE = 88
INTERCONNECT = 89
VERSIONS = 90
PREEMPTED = 91
STOPPED = 92  # by the script itself, which has saved its state
IDLE = 93
PRUNED = 94  # of a point of a sweep, never of a run

MEANING = {
    USAGE: "the command line is wrong",
    REFUSED: "the script cannot run, the request does not fit the site, or Slurm refused the job",
    NOT_FOUND: "a script, a run or a file was not found or cannot be read",
    UNREACHABLE: "the cluster, or its Slurm, cannot be reached",
    UNAVAILABLE: "a tunnel has no service to reach, or no free local port",
    INTERNAL: "a defect in hpcml",
    UNFIT: "hpcml doctor found problems that stop runs",
    STORAGE: "a file of the run, or another file, cannot be written or read",
    ANSWER_LOST: "Slurm's answer was lost, and hpcml did not find the job",
    NO_ACCESS: "the user must log in to the cluster, or the cluster does not allow the tunnel",
    CONFIG: "a profile, an hpcml.toml or a template is wrong",
    START_FAILED: "the script or another process of the run could not be started",
    WORKERS_NEVER_CAME: "not all processes on the nodes started in time",
    ROLE_LOST: "processes of the run were lost while the script ran",
    PORT_TAKEN: "another program has a port of the run",
    NO_PROGRESS: "two attempts of the run ended without saving a new checkpoint",
    TIME_LIMIT: "the time limit ended the run",
    CANCELLED: "the run was cancelled",
    ALLOCATION_LOST: "the allocation ended without a status (a node failed, or the job was killed)",
    IMAGE: "the image cannot be used, or was not built",
    INTERCONNECT: "the interconnect between the workers does not meet interconnect.require",
    VERSIONS: "the processes of the run have different versions of Python or of packages",
    PREEMPTED: "the job was preempted: Slurm gave its nodes to another job",
    STOPPED: "the script saved its state and stopped",
    IDLE: "the run was idle longer than deadlines.idle allows",
    PRUNED: "the pruner stopped this point of a sweep",
}


class HpcmlError(Exception):
    """A failure that the user can act on.

    ``message`` is one sentence: what is wrong. ``place`` is where (a file, a key, an option, a node), in brackets
    after it. ``hint`` is the next step, one sentence. ``exit_status`` is that of the process. ``quote`` are lines of a
    log or of another program's answer as evidence.
    """

    exit_status = INTERNAL

    def __init__(
        self,
        message: str,
        *,
        place: str = "",
        hint: str = "",
        exit_status: int | None = None,
        quote: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message, self.place, self.hint, self.quote = message, place, hint, quote
        if exit_status is not None:
            self.exit_status = exit_status

    def __str__(self) -> str:
        sentence = shown(self.message.rstrip("."))
        where = f" ({shown(self.place)})" if self.place else ""
        lines = [f"{sentence}{where}.", *(f"  | {shown(line)}" for line in self.quote)]
        if self.hint:
            lines.append(shown(self.hint))
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Return the fields as a JSON-ready mapping."""
        fields = {"error": self.message, "place": self.place, "hint": self.hint, "exit_status": self.exit_status}
        return {**fields, "quote": list(self.quote)}


class UsageError(HpcmlError):
    """The command line is wrong."""

    exit_status = USAGE


class ConfigError(HpcmlError):
    """A profile, an hpcml.toml or a template is wrong."""

    exit_status = CONFIG


class NotFoundError(HpcmlError):
    """A named file, run or site does not exist or cannot be read."""

    exit_status = NOT_FOUND


class NoRunError(NotFoundError):
    """No run has the name, and none begins with it."""


class SiteError(HpcmlError):
    """The site or its scheduler cannot satisfy the request."""

    exit_status = REFUSED


class ScriptError(HpcmlError):
    """The script does not compile, or lacks what it imports."""

    exit_status = REFUSED


class SlurmUnreachableError(HpcmlError):
    """Slurm did not answer. ``transient`` says whether trying again makes sense."""

    exit_status = UNREACHABLE

    def __init__(self, message: str, *, transient: bool = False, place: str = "", hint: str = "") -> None:
        super().__init__(message, place=place, hint=hint)
        self.transient = transient


class StorageError(HpcmlError):
    """A file of the run cannot be written or read."""

    exit_status = STORAGE


class ImageError(HpcmlError):
    """An image or the container program cannot be used, or a build failed."""

    exit_status = IMAGE


class TunnelError(HpcmlError):
    """The site lets no tunnel through to the node."""

    exit_status = NO_ACCESS


class LoginNeededError(HpcmlError):
    """A new login needs the user, or the limit of logins is reached."""

    exit_status = NO_ACCESS


class ServiceGoneError(HpcmlError):
    """The run continues, but the web service does not answer."""

    exit_status = UNAVAILABLE


class LinkError(HpcmlError):
    """The cluster cannot be reached because of the network."""

    exit_status = UNREACHABLE


class HostKeyError(HpcmlError):
    """A host's key is unknown or has changed."""

    exit_status = NO_ACCESS


def nearest(word: str, choices: Iterable[str], alike: float = 0.6) -> str:
    """Return the valid word that the user probably meant, or an empty text.

    The whole word is compared, or if none is so much ``alike`` its part before ``_``.
    """
    import difflib

    candidates = list(choices)
    if near := difflib.get_close_matches(word, candidates, n=1, cutoff=alike):
        return near[0]
    by_part = {word.partition("_")[0]: word for word in reversed(candidates) if "_" in word}
    return by_part.get(next(iter(difflib.get_close_matches(word, by_part, n=1, cutoff=0.8)), ""), "")


def did_you_mean(near: str, otherwise: str) -> str:
    """Return the next step for an unknown word: the nearest valid word, else another hint."""
    return f"Did you mean {near}?" if near else otherwise


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL; those of real time have none (``signal 39``)."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_of_status(status: int) -> int:
    """Return the signal that a shell's exit status represents; 0 if none, or one without a name."""
    import signal

    return status - 128 if status - 128 in set(signal.Signals) else 0
