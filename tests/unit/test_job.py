"""The job's variables on the nodes: hpcml's own names, and Slurm's where the batch script gave none."""

from __future__ import annotations

import os

import pytest

from hpcml.node import job

NAMES = ("HPCML_JOB", "HPCML_NODE", "HPCML_NODE_NAMES", "SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_JOB_NODELIST",
         "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_JOB_END_TIME")  # fmt: skip


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_outside_a_job_the_machine_itself_answers() -> None:
    assert (job.job_id(), job.node_names()) == ("", "")
    assert job.node_name() == os.uname().nodename.partition(".")[0]
    assert job.cpus() == len(os.sched_getaffinity(0))
    assert (job.requested_memory(4), job.end_time()) == (0, float("inf"))


def test_slurm_s_names_count_where_the_batch_script_gave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n[1-2]",
                        "SLURM_CPUS_PER_TASK": "3", "SLURM_MEM_PER_CPU": "100", "SLURM_JOB_END_TIME": "90"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert (job.job_id(), job.node_name(), job.node_names()) == ("7", "n1", "n[1-2]")
    assert (job.cpus(), job.requested_memory(3), job.end_time()) == (3, 300 << 20, 90.0)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    assert job.requested_memory(3) == 1000 << 20
    for name, value in {"HPCML_JOB": "12.pbs", "HPCML_NODE": "c4", "HPCML_NODE_NAMES": "c4,c5"}.items():
        monkeypatch.setenv(name, value)
    assert (job.job_id(), job.node_name(), job.node_names()) == ("12.pbs", "c4", "c4,c5")
