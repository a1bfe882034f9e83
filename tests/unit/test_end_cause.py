"""Why Slurm ended a job, from its own line in the job's log, in the forms that its versions write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml.node.roles import end_cause

LINE = "slurmstepd: error: *** JOB 45 ON n1 CANCELLED AT 2026-11-22T15:02:26{} ***\n"


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("", ""),
        (" DUE TO PREEMPTION", "PREEMPTION"),
        (" DUE TO TIME LIMIT", "TIME LIMIT"),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
        (" DUE to SIGNAL Terminated", ""),
    ],
)
def test_slurm_s_line(ending: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    log = tmp_path / "job.log"
    context = SimpleNamespace(run=SimpleNamespace(job_log=log))
    log.write_text("x" * (3 << 20) + "\n" + LINE.format(ending))  # more than is read: the line stands at the end
    assert end_cause._cause(context, 0) == cause  # type: ignore[arg-type]
    assert end_cause._cause(context, log.stat().st_size) is None  # type: ignore[arg-type]
