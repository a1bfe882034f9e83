"""Every way hpcml can fail: a sentence, a place, a next step and an exit status of its own.

The statuses from 64 to 79 are the command line's, those from 80 to 95 are the batch job's (they become the job's exit
status when hpcml, not the script, ended the run); STORAGE is of both kinds. docs/exit-status.md is this table in prose.
"""

from __future__ import annotations

from hpcml.terminal import shown

# The command line's own failures.
USAGE = 64
CONFIG = 65
NOT_FOUND = 66
REFUSED_BY_SITE = 67
SLURM_UNREACHABLE = 68
REFUSED_BY_SLURM = 69
INTERNAL = 70
STORAGE = 71
ANSWER_LOST = 72

# Reaching a cluster from a laptop.
TUNNEL_REFUSED = 73
NEVER_STARTS = 74
RUN_FAILED = 75
LOGIN_NEEDED = 76
SERVICE_GONE = 77
LINK_LOST = 78
HOST_KEY = 79

# A run that hpcml ended. IMAGE is also what the commands about images end with.
SCHEDULER_NEVER_CAME = 80
WORKERS_NEVER_CAME = 81
SCHEDULER_LOST = 82
WORKERS_LOST = 83
DRIVER_NOT_STARTED = 84
TIME_LIMIT = 85
CANCELLED = 86
ALLOCATION_LOST = 87
IMAGE = 88
FABRIC = 89
VERSIONS = 90
PREEMPTED = 91
HUNG = 92
IDLE = 93

MEANING = {
    USAGE: "the command line is wrong",
    CONFIG: "a profile, an hpcml.toml or a template is wrong",
    NOT_FOUND: "a script, a run or a file was not found or cannot be read",
    REFUSED_BY_SITE: "the request does not fit the site",
    SLURM_UNREACHABLE: "Slurm's commands are missing or its controller does not answer",
    REFUSED_BY_SLURM: "Slurm refused the job",
    INTERNAL: "a defect in hpcml",
    STORAGE: "a file of the run cannot be written or read",
    ANSWER_LOST: "the answer to the submission was lost and the job was not found",
    TUNNEL_REFUSED: "the site lets no tunnel through to the node",
    NEVER_STARTS: "the run that the tunnel waits for will not start",
    RUN_FAILED: "the run at the other end of the tunnel ended, and not well",
    LOGIN_NEEDED: "the cluster wants a new login, which only the user can give",
    SERVICE_GONE: "the run goes on, but what the tunnel leads to does not answer",
    LINK_LOST: "the cluster cannot be reached",
    HOST_KEY: "a host's key is not the known one",
    SCHEDULER_NEVER_CAME: "the Dask scheduler did not come up",
    WORKERS_NEVER_CAME: "workers did not come up",
    SCHEDULER_LOST: "the Dask scheduler was lost while the script ran",
    WORKERS_LOST: "workers were lost while the script ran",
    DRIVER_NOT_STARTED: "the script could not be started",
    TIME_LIMIT: "the time limit ended the run",
    CANCELLED: "the run was cancelled",
    IMAGE: "the image cannot be used, or was not built",
    FABRIC: "the wire between the workers is not the one that fabric.require asks for",
    PREEMPTED: "the job was preempted: Slurm gave its nodes to another",
    VERSIONS: "the roles of the run have different versions",
    HUNG: "the run's supervisor did not answer any more",
    IDLE: "nothing used the cluster for as long as deadlines.idle allows",
    ALLOCATION_LOST: "the allocation ended without a word (a node failed, or the job was killed)",
}


class HpcmlError(Exception):
    """A failure that the user can act on.

    Parameters
    ----------
    message
        One sentence: what is wrong.
    place
        Where: a file, a key, an option, a node. Shown in brackets behind the sentence.
    hint
        What to do next, one sentence.
    status
        The process's exit status.
    quote
        Lines of a log or of another program's answer that show it.
    """

    status = INTERNAL

    def __init__(
        self, message: str, *, place: str = "", hint: str = "", status: int | None = None, quote: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.place, self.hint, self.quote = message, place, hint, quote
        if status is not None:
            self.status = status

    def __str__(self) -> str:
        sentence = shown(self.message.rstrip("."))
        where = f" ({shown(self.place)})" if self.place else ""
        lines = [f"{sentence}{where}.", *(f"  | {shown(line)}" for line in self.quote)]
        if self.hint:
            lines.append(shown(self.hint))
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Return the same facts as a JSON-ready mapping."""
        facts = {"error": self.message, "place": self.place, "hint": self.hint, "status": self.status}
        return {**facts, "quote": list(self.quote)}


class UsageError(HpcmlError):
    """The command line is wrong."""

    status = USAGE


class ConfigError(HpcmlError):
    """A profile, an hpcml.toml or a template is wrong."""

    status = CONFIG


class NotFoundError(HpcmlError):
    """What was named is not there or cannot be read."""

    status = NOT_FOUND


class SiteError(HpcmlError):
    """The site cannot give what is asked for."""

    status = REFUSED_BY_SITE


class SlurmUnreachableError(HpcmlError):
    """Slurm did not answer. ``transient`` says whether trying again makes sense."""

    status = SLURM_UNREACHABLE

    def __init__(self, message: str, *, transient: bool = False, place: str = "", hint: str = "") -> None:
        super().__init__(message, place=place, hint=hint)
        self.transient = transient


class SlurmRefusedError(HpcmlError):
    """Slurm said no."""

    status = REFUSED_BY_SLURM


class StorageError(HpcmlError):
    """A file of the run cannot be written or read."""

    status = STORAGE


class ImageError(HpcmlError):
    """An image cannot be used or was not built, or the program for images cannot do it."""

    status = IMAGE


class TunnelError(HpcmlError):
    """The site lets no tunnel through to the node."""

    status = TUNNEL_REFUSED


class LoginNeededError(HpcmlError):
    """A new login is needed and cannot be had without the user, or the budget of logins is used up."""

    status = LOGIN_NEEDED


class ServiceGoneError(HpcmlError):
    """The run goes on, but the web service does not answer."""

    status = SERVICE_GONE


class LinkError(HpcmlError):
    """The cluster cannot be reached: a matter of the network, not of who asks."""

    status = LINK_LOST


class HostKeyError(HpcmlError):
    """A host's key is unknown or not the known one."""

    status = HOST_KEY
