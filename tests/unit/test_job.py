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


# As Slurm 22.05 gives them to a batch script of two nodes with one task on each, and to a step of one task.
OF_BOTH = {"SLURM_CLUSTER_NAME": "hpcml", "SLURM_CONF": "/etc/slurm.conf", "SLURM_CPUS_PER_TASK": "2", "SLURM_GTIDS": "0",
           "SLURM_JOBID": "7", "SLURM_JOB_CPUS_PER_NODE": "2(x2)", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]",
           "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "boost", "SLURM_LOCALID": "0", "SLURM_MEM_PER_CPU": "500",
           "SLURM_NODELIST": "n[1-2]", "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": "/home/alice"}  # fmt: skip
OF_BATCH = OF_BOTH | {"SLURM_JOB_NAME": "train", "SLURM_NNODES": "2", "SLURM_NPROCS": "2", "SLURM_NTASKS": "2",
                      "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_TASK_PID": "385",
                      "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "2"}  # fmt: skip
OF_STEP = OF_BOTH | {"SLURM_JOB_NAME": "worker", "SLURM_NNODES": "1", "SLURM_NPROCS": "1", "SLURM_NTASKS": "1",
                     "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_TASK_PID": "406",
                     "SLURMD_NODENAME": "n2", "SLURM_NODEID": "1", "SLURM_CPUS_ON_NODE": "2", "SLURM_CPU_BIND": "quiet,none",
                     "SLURM_CPU_BIND_LIST": "", "SLURM_CPU_BIND_TYPE": "none", "SLURM_DISTRIBUTION": "cyclic",
                     "SLURM_LAUNCH_NODE_IPADDR": "10.79.0.11", "SLURM_SRUN_COMM_PORT": "44537", "SLURM_STEPID": "0",
                     "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_NUM_TASKS": "1", "SLURM_UMASK": "0022",
                     "SRUN_DEBUG": "3", "PMI_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"}  # fmt: skip
OF_THE_USER = {"PATH": "/usr/bin", "LR": "0.1", "CUDA_VISIBLE_DEVICES": "0", "PMIX_MCA_gds": "hash"}


def given(variables: dict[str, str]) -> dict[str, str]:
    return {job.GIVEN: "".join(f"{name}={value}\n" for name, value in variables.items())}


def test_a_script_has_the_variables_of_its_batch_script() -> None:
    answer = job.of_batch_script(OF_THE_USER | OF_STEP | given(OF_BATCH))
    by_hpcml = {"SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS"}  # hpcml asked for one task on each node
    of_this_node = {"SLURMD_NODENAME": "n2", "SLURM_NODEID": "1"}
    expected = {name: value for name, value in OF_BATCH.items() if name not in by_hpcml} | of_this_node
    assert answer == OF_THE_USER | expected
    tasks = OF_BATCH | {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NTASKS": "8"}  # by the user's own option
    assert job.of_batch_script(OF_STEP | given(tasks))["SLURM_NTASKS"] == "8"


def test_mpiexec_has_a_slot_for_each_cpu_of_a_single_node() -> None:
    assert job.of_batch_script(OF_STEP | given(OF_BATCH), cpus=4)["SLURM_TASKS_PER_NODE"] == "4"


def test_in_a_user_s_allocation_what_is_not_of_the_step_stays() -> None:
    kept = given({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}) | {"HPCML_ALLOCATION": "1"}
    answer = job.of_batch_script(OF_THE_USER | OF_STEP | kept)
    assert answer["SLURM_CPUS_PER_TASK"] == "2"
    assert not [
        name for name in answer if "STEP" in name or "TASKS" in name or "BIND" in name or name.startswith("PMI_")
    ]


def test_without_slurm_the_variables_stay() -> None:
    assert job.of_batch_script(OF_THE_USER | {"SLURM_NTASKS": "3"}) == OF_THE_USER | {"SLURM_NTASKS": "3"}
