"""States and phases of runs and jobs: their words, as files and JSON have them, and what each means."""

from __future__ import annotations

from enum import StrEnum


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
