"""Which job a run that goes on has now: the next one may take its place between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml import schedulers
from hpcml.paths import RunPaths
from hpcml.runs import directories, status
from hpcml.schedulers import JobState, Submission


def test_the_next_job_took_the_place_of_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directories.Run("job-1", RunPaths(tmp_path), Submission(job="7", requeue=True))
    run.paths.job.symlink_to("7")
    run.paths.next_job.symlink_to("8")

    def state(of: Submission) -> JobState:
        if of.job == "7":  # its batch script ends while Slurm is asked
            run.paths.next_job.rename(run.paths.job)
        return JobState({"7": "COMPLETED", "8": "RUNNING"}[of.job])

    monkeypatch.setattr(schedulers, "state", state)
    found, job = status.present_job(run)
    assert (found.job, job.state) == ("8", "RUNNING")
