"""Why a job of Slurm waits, in words: all reasons of squeue(1), resource limits by the parts of their names.

Slurm's source has about 190 reasons, of which 150 are ``QOSMaxGRESPerUser`` and the like: whose limit, of what, for
whom. Reasons that nobody has seen yet are shown as Slurm gives them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import NamedTuple

from hpcml import units
from hpcml.schedulers import FOR_JOBS
from hpcml.states import Wait

_LONGEST = 300  # characters of a reason that is shown
_NEVER = "the job will never start: "
_MAINTENANCE = "Reserved for maintenance"
_MARGIN = 120  # seconds before a maintenance that a job's time limit leaves to Slurm
REASONS = {
    "None": "waiting for Slurm's scheduler",
    "Resources": "waiting for free nodes",
    "Priority": "waiting for jobs with higher priority",
    "Dependency": FOR_JOBS,
    "DependencyNeverSatisfied": f"{_NEVER}the job that it depends on did not end as required",
    "BeginTime": "waiting for the requested start time",
    "JobHeldUser": "held by the user (to release the job: scontrol release)",
    "JobHeldAdmin": "held by the administrators",
    "JobHoldMaxRequeue": "held: Slurm requeued the job too often (to release the job: scontrol release)",
    "launch_failed_requeued_held": "held after a failed start (to release the job: scontrol release)",
    "user_env_retrieval_failed_requeued_held": "held after a failed start (to release the job: scontrol release)",
    "Prolog": "waiting for the site's prolog",
    "Cleaning": "waiting for the end of the job's earlier attempt",
    "SchedDefer": "waiting for Slurm's scheduler",
    "JobArrayTaskLimit": "waiting for other tasks of the job array",
    "Licenses": "waiting for a software license",
    "MpiPortsBusy": "waiting for free ports for MPI",
    "MaxPoweredUpNodes": "waiting for nodes: the cluster may power up no more",
    "BurstBufferResources": "waiting for space in the burst buffer",
    "BurstBufferStageIn": "waiting for data in the burst buffer",
    "BurstBufferOperation": "held after an error of the burst buffer",
    "FedJobLock": "waiting for the other clusters of the federation",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": f"{_NEVER}it requests more nodes than the partition allows",
    "PartitionTimeLimit": f"{_NEVER}it requests more time than the partition allows",
    "PartitionConfig": f"{_NEVER}the partition does not accept this request",
    "MaxMemPerLimit": f"{_NEVER}it requests more memory per node or CPU than the partition allows",
    "AccountNotAllowed": f"{_NEVER}the partition does not accept the account",
    "QOSNotAllowed": f"{_NEVER}the partition does not accept the QoS",
    "InvalidAccount": f"{_NEVER}the account is not valid",
    "InvalidQOS": f"{_NEVER}the QoS is not valid",
    "BadConstraints": f"{_NEVER}no node matches the request",
    "ReservationDeleted": f"{_NEVER}the requested reservation was deleted",
    "ReservationInvalid": f"{_NEVER}the requested reservation is not valid",
    "Constraints": "waiting: no node that is up matches the request",
    "DeadLine": f"{_NEVER}its deadline has passed",
    "NodeDown": "a node that the job needs is down",
    "FrontEndDown": "no front-end node is up",
    "ReqNodeNotAvail": "a node that the job needs is down, drained or reserved",
    "Nodes_required_for_job_are_DOWN": "nodes that the job needs are down, drained or reserved",
    "Reservation": "waiting for the requested reservation",
    "QOSUsageThreshold": "the account has used too much for this QoS (UsageThreshold)",
    "AccountingPolicy": "a limit of the account or the QoS is reached",
    "AssociationJobLimit": "the account allows you no more jobs at the same time",
    "AssociationResourceLimit": "a limit of the account is reached",
    "AssociationTimeLimit": "a time limit of the account is reached",
    "QOSJobLimit": "the QoS allows you no more jobs at the same time",
    "QOSResourceLimit": "a limit of the QoS is reached",
    "QOSTimeLimit": "a time limit of the QoS is reached",
}
_WAITS = {  # of reasons that do not pass by themselves, besides those that begin with _NEVER
    "Dependency": Wait.JOBS,
    "DependencyNeverSatisfied": Wait.DEPENDENCY,
    "JobHeldUser": Wait.HELD,
    "JobHeldAdmin": Wait.HELD,
    "JobHoldMaxRequeue": Wait.HELD,
    "BurstBufferOperation": Wait.HELD,
    "launch_failed_requeued_held": Wait.HELD,
    "user_env_retrieval_failed_requeued_held": Wait.HELD,
}
_WHAT = {
    "cpu": "CPUs", "mem": "memory", "memory": "memory", "node": "nodes", "gres": "GPUs or other GRES",
    "bb": "burst buffer", "license": "licenses", "energy": "energy", "billing": "billing units",
    "unknown": "of a resource",
    "job": "jobs", "jobs": "jobs", "submitjob": "submitted jobs", "submitjobs": "submitted jobs",
    "wallduration": "time", "wall": "time",
}  # fmt: skip
_NOUN = f"(?P<what>{'|'.join(sorted(_WHAT, key=len, reverse=True))})"
_LIMIT = re.compile(
    rf"(?i)(?P<whose>qos|assoc)?(?:(?P<all>grp){_NOUN}(?P<budget>minutes|runminutes)?"
    rf"|max{_NOUN.replace('what', 'most')}(?P<minutes>minutes|runmins)?(?:per(?P<per>job|node|user|account))?"
    rf"|min{_NOUN.replace('what', 'least')}(?:notsatisfied)?)(?:limit)?"
)


class Reason(NamedTuple):
    """Why a job waits: for people, and for code."""

    words: str
    wait: Wait = Wait.PASSES


def read(reason: str, maintenance: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0), now: float = 0.0) -> Reason:
    """Return squeue's reason in words.

    ``maintenance`` is asked for begin and end of the next one, in seconds since 1970, 0 if they are not known.
    """
    text = reason.strip().removeprefix("(").removesuffix(")").strip()
    key = text.partition("(")[0].strip().replace(" ", "_")
    if _MAINTENANCE.lower() in text.lower():
        return Reason(_of_maintenance(*maintenance(), now))
    name = key.partition(",")[0]
    if words := REASONS.get(key) or REASONS.get(name):
        name = key if key in REASONS else name
        nodes = re.search(r"Unavailable(?:Nodes)?:([\w\[\],.-]+)", text)
        wait = _WAITS.get(name, Wait.NEVER if words.startswith(_NEVER) else Wait.PASSES)
        return Reason(f"{words}: {nodes[1]}"[:_LONGEST] if nodes else words, wait)
    limit = _LIMIT.fullmatch(name)
    return _of_limit(limit) if limit else Reason(reason[:_LONGEST])


def _of_limit(limit: re.Match[str]) -> Reason:
    """Return the meaning of a limit by the parts of its name: whose it is, of what, and for whom."""
    whose = "account" if (limit["whose"] or "qos").lower() == "assoc" else "QoS"
    what = _WHAT[(limit["what"] or limit["most"] or limit["least"]).lower()]
    if limit["least"]:
        return Reason(f"{_NEVER}it requests less than the {whose}'s minimum of {what}", Wait.NEVER)
    if (budget := (limit["budget"] or "").lower()) == "runminutes":
        return Reason(f"the running jobs of the {whose} have too much time left: waiting for their ends")
    if budget or (limit["all"] and what == "time"):
        return Reason(f"the {whose}'s budget is used up ({what})")
    if limit["all"]:
        return Reason(f"all jobs of the {whose} together may use no more {what} at the same time")
    per = (limit["per"] or "user").lower()
    if (limit["minutes"] or "").lower() == "runmins":
        return Reason(f"running jobs have too much time left for the {whose}: waiting for their ends")
    if per in ("job", "node"):
        times = f"{what} × time" if limit["minutes"] else what
        each = " per node" if per == "node" else ""
        return Reason(f"{_NEVER}it requests more {times}{each} than the {whose} allows", Wait.NEVER)
    return Reason(f"the {whose} allows {'you' if per == 'user' else 'the account'} no more {what} at the same time")


def _of_maintenance(begin: float, end: float, now: float) -> str:
    words = "the nodes are reserved for a maintenance"
    if not begin or end < now:
        return f"{words} before the job's time limit would end: a shorter time limit may start before"
    if begin <= now:
        return f"{words} until {_when(end)}"
    seconds = (int(begin - now) - _MARGIN) // 60 * 60
    if seconds <= 0:
        return f"{words} from {_when(begin)} to {_when(end)}"
    fits = units.format_time_limit(seconds)
    return f"{words} from {_when(begin)}: only a job that ends before can start (now: --time {fits} or less)"


def _when(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - as people read it here


def next_maintenance(text: str, now: float) -> tuple[float, float]:
    """Return begin and end of the next maintenance that ``scontrol show reservation`` lists, 0 without one."""
    times = []
    for record in re.split(r"(?m)^(?=ReservationName=)", text):
        fields = dict(re.findall(r"(\w+)=(\S+)", record))
        begin, end = (_seconds(fields.get(name, "")) for name in ("StartTime", "EndTime"))
        if "MAINT" in fields.get("Flags", "").split(",") and begin and end > now:
            times.append((begin, end))
    return min(times, default=(0.0, 0.0))


def _seconds(stamp: str) -> float:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
