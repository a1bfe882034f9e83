"""How many more jobs of this user Slurm takes, as far as its accounting says."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import NamedTuple

from hpcml.errors import SlurmUnreachableError
from hpcml.schedulers import slurm


def room(directives: Sequence[tuple[str, str]], timeout: float = slurm.TIMEOUT) -> int | None:
    """Return how many more jobs with these directives may be submitted; None where Slurm sets or tells no limit.

    The limits of the QoS and of the association (MaxSubmitJobs) count; jobs that wait or run are taken from them.
    """
    chosen = dict(directives)
    user = getpass.getuser()
    try:
        limits = _of_the_user(user, chosen.get("--account", ""), chosen.get("--qos", ""), timeout)
        if not limits:
            return None
        queue = slurm.ask(["squeue", "--noheader", "--array", f"--user={user}", "--format=%i"], timeout)
    except SlurmUnreachableError:
        return None
    if queue.code:
        return None
    return max(0, min(limits) - len(queue.out.split()))


def _of_the_user(user: str, account: str, qos: str, timeout: float) -> list[int]:
    """Return the limits of the account's associations and of the QoS; without one, of the user's default one."""
    found = []
    if not account:
        account = next((row[1] for row in _rows(["user", "where", f"user={user}"], timeout) if len(row) > 1), "")
    where = ["where", f"user={user}", *([f"account={account}"] if account else [])]
    rows = _rows(["assoc", *where, "format=MaxSubmitJobs,DefaultQOS"], timeout)
    for limit, default in rows:
        found.append(limit)
        qos = qos or default
    if qos:
        rows = _rows(["qos", "where", f"name={qos}", "format=MaxSubmitJobsPerUser,Name"], timeout)
        found += [limit for limit, *_ in rows]
    return [int(limit) for limit in found if limit.isdecimal()]


def _rows(words: Sequence[str], timeout: float) -> list[list[str]]:
    answer = slurm.ask(["sacctmgr", "--noheader", "--parsable2", "show", *words], timeout)
    return slurm.rows_of(answer) if answer.code == 0 else []


class Association(NamedTuple):
    """What a user may charge: an account, on one partition or on all (empty), and with which QoS."""

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str


def associations(timeout: float) -> list[Association] | str:
    """Return this user's associations, or why Slurm does not tell them, in some words."""
    fields = "format=Account,Partition,QOS,DefaultQOS"
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={getpass.getuser()}", fields]
    try:
        answer = slurm.ask(command, timeout)
    except SlurmUnreachableError as error:
        return error.message
    if answer.code != 0:
        return (answer.text.splitlines() or [f"sacctmgr did not answer within {timeout:.1f} s"])[-1]
    rows = [row for row in slurm.rows_of(answer) if len(row) == 4]
    return [Association(row[0], row[1], tuple(filter(None, row[2].split(","))), row[3]) for row in rows]
