"""What Slurm's programs write into a job's log: who is meant, and what ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.failures import job_log
from hpcml.kinds.dask.roles import SCHEDULER, WORKER
from hpcml.paths import RunPaths

LINES = (
    "hpcml: warning: n10 is slow", "srun: error: n3: task 1: Killed", "slurmstepd-n10: error: Detected 1 oom_kill event",
    "slurmstepd: error: *** STEP 7.1 ON n4 CANCELLED ***", "the script prints srun: error: n3", "n1: a line about the node", "other.n1 and n1.cluster",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path)
    run.logs.mkdir()
    run.job_log.write_text("\n".join(LINES) + "\n")
    return run


def test_a_role_without_a_log_has_what_the_job_s_log_says_of_its_node(run: RunPaths) -> None:
    """n1 is no part of n10's name, and what another program says of srun is not srun's."""
    assert job_log.of_role(run, WORKER, "n1") == (*LINES[1:4], LINES[5])
    assert job_log.of_role(run, WORKER, "n10") == LINES[:4]
    assert job_log.of_role(run, WORKER, "n1", (2, 9)) == ("n1: a lin",)
    assert job_log.of_role(run, SCHEDULER, "n1") == LINES
    run.log("worker", "n1").write_text("its own\n")
    assert job_log.of_role(run, WORKER, "n1") == ("its own",)


def test_the_last_word_of_srun(run: RunPaths) -> None:
    assert job_log.last_of_srun(run) == LINES[1]
    run.job_log.write_text("hpcml: srun: is not at the beginning\n")
    assert job_log.last_of_srun(run) == ""
