"""States and phases of runs and jobs: their words, as files and JSON have them, and what each means."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a job or a run in Slurm's words; a job of a newer Slurm may have another word, which is no end."""

    REFUSED = "REFUSED"  # of runs alone
    PREPARED = "PREPARED"  # of runs alone
    UNREADABLE = "UNREADABLE"  # of a job of which the scheduler's answer tells nothing
    UNKNOWN = "UNKNOWN"  # of a job: there is none any more
    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    RESIZING = "RESIZING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"


PENDING = frozenset((  # of jobs that have not begun
    State.PENDING, State.CONFIGURING, State.REQUEUED, State.REQUEUE_HOLD, State.REQUEUE_FED, State.RESV_DEL_HOLD,
    State.SPECIAL_EXIT,
))  # fmt: skip
ACTIVE = frozenset((  # of jobs that have nodes
    State.RUNNING, State.COMPLETING, State.SUSPENDED, State.STOPPED, State.SIGNALING, State.STAGE_OUT, State.RESIZING,
))  # fmt: skip
ENDED = frozenset(State) - PENDING - ACTIVE - {State.REFUSED, State.PREPARED, State.UNREADABLE}  # of jobs
OPEN = frozenset((State.PENDING, State.RUNNING, State.UNKNOWN))  # of runs of which something may still come
COLOURS: dict[str, str] = {  # in which states are shown, by their names in hpcml.terminal
    State.COMPLETED: "green",
    State.RUNNING: "cyan",
    **dict.fromkeys((State.CANCELLED, State.PREEMPTED), "yellow"),
    **dict.fromkeys((State.FAILED, State.TIMEOUT, State.OUT_OF_MEMORY, State.NODE_FAIL, State.REFUSED), "red"),
}


class Phase(StrEnum):
    """How far a run is."""

    UNKNOWN = "unknown"
    REFUSED = "refused"
    PREPARED = "prepared"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


HAS_NODES = (Phase.STARTING, Phase.RUNNING, Phase.ENDING)
STATE_BY_PHASE: dict[str, State] = {  # of a run that has ended its end says it
    Phase.REFUSED: State.REFUSED,
    Phase.UNKNOWN: State.UNKNOWN,
    Phase.PREPARED: State.PREPARED,
    Phase.QUEUED: State.PENDING,
    **dict.fromkeys(HAS_NODES, State.RUNNING),
}


class Wait(StrEnum):
    """Why a job waits, as far as hpcml decides by it."""

    PASSES = ""  # for nodes, its turn or something else that comes by itself
    JOBS = "jobs"  # for jobs that it depends on
    HELD = "held"  # for somebody who releases it
    DEPENDENCY = "dependency"  # in vain: a job that it depends on did not end as required
    NEVER = "never"  # in vain: it asks for what it cannot get

    @property
    def is_vain(self) -> bool:
        """Whether the job can never start."""
        return self in (Wait.DEPENDENCY, Wait.NEVER)
