"""The checks of the login side, by name, and how they are made: side by side, each within the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcml import schedulers, subprocesses
from hpcml.doctor import access, scheduler, surroundings
from hpcml.doctor.finding import Examination, Finding, clause, not_applicable, red
from hpcml.errors import HpcmlError

_LAST = 0.2  # seconds beyond the deadline in which a question that is ended gives its answer


class Check(NamedTuple):
    """A check: its name, what makes it, whether it asks Slurm, and what it means that it does not end in time."""

    name: str
    look: Callable[[Examination], Finding]
    of_slurm: bool = False
    late: str = ""
    remedy: str = ""


_HANGS = "Is the file system well? Try: ls there. Keep runs elsewhere meanwhile (--set paths.runs=…)."

CHECKS = (
    Check("profile", surroundings.profile),
    Check("request", scheduler.request),
    Check("start", scheduler.start, of_slurm=True, late="Slurm's controller does not answer: it is down or busy",
          remedy="Try again in some minutes; --deadline 30s waits longer."),
    Check("partition", scheduler.partition, of_slurm=True),
    Check("account", scheduler.account, of_slurm=True),
    Check("budget", scheduler.budget, of_slurm=True),
    Check("default-qos", scheduler.default_qos, of_slurm=True),
    Check("submit-limit", scheduler.submit_limit, of_slurm=True),
    Check("slurm-config", scheduler.configuration, of_slurm=True),
    Check("slurm-variables", scheduler.variables),
    Check("certificate", access.certificate),
    Check("login-node", access.login_node),
    Check("library-path", surroundings.library_path),
    Check("adapters", surroundings.adapters),
    Check("quota", surroundings.quota, late="the file system of your runs or home does not answer", remedy=_HANGS),
    Check("file-system", surroundings.file_system, late="the file system of the runs does not answer", remedy=_HANGS),
    Check("limits", surroundings.limits),
    Check("image", surroundings.image, late="the image's file system does not answer", remedy=_HANGS),
    Check("bad-nodes", surroundings.failed_nodes),
)  # fmt: skip


def examine(exam: Examination, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make checks side by side and return what they found, in their order.

    One that is late is left behind; the commands that it started have the same deadline.
    """
    found: dict[str, Finding] = {}

    def make(check: Check) -> None:
        began = time.monotonic()
        found[check.name] = _made(check, exam)._replace(check=check.name, seconds=time.monotonic() - began)

    threads = [threading.Thread(target=make, args=(check,), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, exam.end + _LAST - time.monotonic()))
    made = dict(found)
    return [made.get(check.name) or _late(check, exam.seconds)._replace(check=check.name) for check in checks]


def _made(check: Check, exam: Examination) -> Finding:
    if check.of_slurm and schedulers.find_machine(exam.site.scheduler) is None:
        return not_applicable(f"site {exam.site.name} has no Slurm")
    try:
        return check.look(exam)
    except HpcmlError as error:
        words = clause(error.message)
        if check.name == "request":
            return red(f"a run would be refused: {words}", error.hint, place=error.place)
        return not_applicable(f"it cannot be looked at: {words}", error.hint)
    except (OSError, ValueError, subprocesses.CommandMissingError) as error:
        return not_applicable(f"it cannot be looked at: {error}")


def _late(check: Check, seconds: float) -> Finding:
    if check.late:
        return red(f"{check.late} (no answer within {seconds:g} s)", check.remedy)
    return not_applicable(f"there was no answer within {seconds:g} s", "--deadline 30s waits longer.")
