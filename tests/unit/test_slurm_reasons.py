"""Why a job waits: every reason in Slurm's source has words, and those that never end are reported as such."""

from __future__ import annotations

import re
import time

import pytest

from hpcml.schedulers import slurm_reasons
from hpcml.states import Wait

# job_state_reason.c of Slurm 26.05 and 22.05; the reasons of jobs that have ended are not among them.
FAMILIES = ("BB", "Billing", "Energy", "GRES", "License", "Unknown")
OTHERS = re.findall(
    r"\w+",
    """None Prolog Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown PartitionInactive
JobHeldAdmin JobHeldUser BeginTime Licenses AssociationJobLimit AssociationResourceLimit AssociationTimeLimit Reservation
ReqNodeNotAvail FrontEndDown SchedDefer NodeDown BadConstraints InvalidAccount InvalidQOS QOSUsageThreshold QOSJobLimit
QOSResourceLimit QOSTimeLimit Cleaning QOSNotAllowed AccountNotAllowed DependencyNeverSatisfied QOSGrpCpuLimit
QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit QOSGrpSubmitJobsLimit
QOSGrpWallLimit QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit
QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMinCpuNotSatisfied
AssocGrpCpuLimit AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit
AssocGrpSubmitJobsLimit AssocGrpWallLimit AssocMaxJobsLimit AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit
AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit JobHoldMaxRequeue JobArrayTaskLimit
BurstBufferResources BurstBufferStageIn BurstBufferOperation AssocMaxCpuPerNode AssocGrpMemMinutes AssocGrpMemRunMinutes
AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxMemMinutesPerJob AssocGrpNodeMinutes AssocGrpNodeRunMinutes
AssocMaxNodeMinutesPerJob QOSMaxCpuPerNode QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSMaxMemoryPerJob QOSMaxMemoryPerNode
QOSMaxMemoryPerUser QOSMaxMemoryMinutesPerJob QOSMinMemory QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSMaxNodeMinutesPerJob
QOSMinNode DeadLine MaxCpuPerAccount MaxNodePerAccount MaxMemoryPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount
PartitionConfig AccountingPolicy FedJobLock MaxMemPerLimit ReservationDeleted ReservationInvalid Constraints
MaxCpuRunMinsPerAccount MaxNodeRunMinsPerAccount MaxMemoryRunMinsPerAccount MaxCpuRunMinsPerUser MaxNodeRunMinsPerUser
MaxMemoryRunMinsPerUser MaxPoweredUpNodes MpiPortsBusy launch_failed_requeued_held""",
)
OF_A_FAMILY = (
    "{0}Grp{1}",
    "{0}Grp{1}Minutes",
    "{0}Grp{1}RunMinutes",
    "{0}Max{1}PerJob",
    "{0}Max{1}PerNode",
    "{0}Max{1}MinutesPerJob",
)
OF_A_QOS = ("QOSMax{0}PerUser", "QOSMin{0}", "Max{0}PerAccount", "Max{0}RunMinsPerAccount", "Max{0}RunMinsPerUser")
EVERY = [
    *OTHERS,
    *(form.format(whose, what) for whose in ("QOS", "Assoc") for what in FAMILIES for form in OF_A_FAMILY),
    *(form.format(what) for what in FAMILIES for form in OF_A_QOS),
]


def test_every_reason_of_slurm_has_words() -> None:
    assert len(set(EVERY)) > 190
    for reason in EVERY:
        words, wait = slurm_reasons.read(f"({reason})")
        assert reason not in words, "it is shown as Slurm gives it"
        assert " " in words
        assert words.startswith("the job will never start: ") == wait.is_vain, (reason, words, wait)
        assert words.startswith("held") == (wait is Wait.HELD), (reason, words, wait)


@pytest.mark.parametrize(("reason", "words"), [
    ("Resources", "waiting for free nodes"), ("(Priority)", "waiting for jobs with higher priority"),
    ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "a node that the job needs is down, drained or reserved: n[1-2]"),
    ("ReqNodeNotAvail(Unavailable:n1)", "a node that the job needs is down, drained or reserved: n1"),
    ("ReqNodeNotAvail, May be reserved for other job", "a node that the job needs is down, drained or reserved"),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "nodes that the job needs are down, drained or reserved"),
    ("BrandNewReason", "BrandNewReason"),
    ("QOSMaxGRESPerUser", "the QoS allows you no more GPUs or other GRES at the same time"),
    ("MaxGRESPerAccount", "the QoS allows the account no more GPUs or other GRES at the same time"),
    ("AssocGrpGRES", "all jobs of the account together may use no more GPUs or other GRES at the same time"),
    ("QOSGrpGRESMinutes", "the QoS's budget is used up (GPUs or other GRES)"),
    ("AssocGrpBillingMinutes", "the account's budget is used up (billing units)"),
    ("AssocMaxWallDurationPerJobLimit", "the job will never start: it requests more time than the account allows"),
    ("QOSMaxCpuMinutesPerJobLimit", "the job will never start: it requests more CPUs × time than the QoS allows"),
    ("QOSMinGRES", "the job will never start: it requests less than the QoS's minimum of GPUs or other GRES"),
    ("QOSMaxCpuPerNode", "the job will never start: it requests more CPUs per node than the QoS allows"),
])  # fmt: skip
def test_reasons_in_words(reason: str, words: str) -> None:
    assert slurm_reasons.read(reason).words == words


def test_what_a_reason_means_for_hpcml() -> None:
    for reason, wait in (("(Dependency)", Wait.JOBS), ("DependencyNeverSatisfied", Wait.DEPENDENCY), ("JobHeldUser", Wait.HELD),
                         ("AccountNotAllowed", Wait.NEVER), ("AssocGrpCPUMinutesLimit", Wait.PASSES)):  # fmt: skip
        assert slurm_reasons.read(reason).wait is wait


NOW = 1_900_000_000
SHOWN = """ReservationName=course StartTime={soon} EndTime={late} Duration=04:00:00 Nodes=n[1-4] Flags=SPEC_NODES State=INACTIVE
ReservationName=old StartTime={past} EndTime={past} Flags=MAINT,SPEC_NODES State=INACTIVE
ReservationName=later StartTime={late} EndTime={later} Flags=MAINT,IGNORE_JOBS State=INACTIVE
ReservationName=next StartTime={start} EndTime={late} Nodes=n[1-4] Flags=MAINT,OVERLAP,SPEC_NODES Users=root State=INACTIVE
"""


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + seconds))


@pytest.mark.parametrize(("start", "words"), [
    (6 * 3600, "now: --time 05:58:00 or less"), (60, "reserved for a maintenance from"), (-60, "reserved for a maintenance until"),
])  # fmt: skip
def test_a_maintenance_is_told_with_the_time_limit_that_still_fits(start: int, words: str) -> None:
    text = SHOWN.format(
        soon=stamp(60), past=stamp(-7200), start=stamp(start), late=stamp(86400), later=stamp(10 * 86400)
    )
    when = slurm_reasons.next_maintenance(text, NOW)
    assert when == (NOW + start, NOW + 86400)
    said, wait = slurm_reasons.read("ReqNodeNotAvail, Reserved for maintenance", lambda: when, NOW)
    assert words in said
    assert wait is Wait.PASSES
    assert "shorter time limit" in slurm_reasons.read("(ReqNodeNotAvail, Reserved for maintenance)").words
    assert slurm_reasons.next_maintenance("No reservations in the system\n", NOW) == (0.0, 0.0)
