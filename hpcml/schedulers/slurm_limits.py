"""How many more jobs of this user Slurm takes, as far as its accounting says."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from hpcml.errors import SlurmUnreachableError
from hpcml.schedulers import slurm


def room(directives: Sequence[tuple[str, str]]) -> int | None:
    """Return how many more jobs with these directives may be submitted; None where Slurm sets or tells no limit.

    The limits of the QoS and of the association (MaxSubmitJobs) count; jobs that wait or run are taken from them.
    """
    chosen = dict(directives)
    user = getpass.getuser()
    try:
        limits = _of_the_user(user, chosen.get("--account", ""), chosen.get("--qos", ""))
        if not limits:
            return None
        queue = slurm.ask(["squeue", "--noheader", "--array", f"--user={user}", "--format=%i"])
    except SlurmUnreachableError:
        return None
    if queue.code:
        return None
    return max(0, min(limits) - len(queue.out.split()))


def _of_the_user(user: str, account: str, qos: str) -> list[int]:
    """Return the limits that hold for the user: of the account's associations, and of the QoS or the default one."""
    found = []
    where = ["where", f"user={user}", *([f"account={account}"] if account else [])]
    rows = _rows(["assoc", *where, "format=MaxSubmitJobs,DefaultQOS"])
    for limit, default in rows:
        found.append(limit)
        qos = qos or default
    if qos:
        found += [limit for limit, *_ in _rows(["qos", "where", f"name={qos}", "format=MaxSubmitJobsPerUser,Name"])]
    return [int(limit) for limit in found if limit.isdecimal()]


def _rows(words: Sequence[str]) -> list[list[str]]:
    answer = slurm.ask(["sacctmgr", "--noheader", "--parsable2", "show", *words])
    return [line.split("|") for line in answer.out.splitlines()] if answer.code == 0 else []
