"""Job arrays of Slurm: how large one may be, and how its tasks stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcml.errors import SlurmUnreachableError
from hpcml.schedulers import slurm

_USUAL = 1000  # tasks, where Slurm does not tell: its default MaxArraySize is 1001, the largest index + 1


def most_tasks() -> int:
    """Return how many tasks an array may have whose first index is 0; 0 if this Slurm has no arrays."""
    try:
        config = slurm.ask(["scontrol", "show", "config"]).out
    except SlurmUnreachableError:
        return _USUAL  # scontrol is not there
    size = re.search(r"(?m)^MaxArraySize\s*=\s*(\d+)", config)
    tasks = re.search(r"(?m)^SchedulerParameters\s*=.*\bmax_array_tasks=(\d+)", config)
    return min([int(found[1]) for found in (size, tasks) if found], default=_USUAL)


def states(jobs: Sequence[str]) -> dict[tuple[str, int], str]:
    """Return the states of arrays' tasks by number and index; what the controller has forgotten is left out.

    An array is named by its number and the id of the run whose comment it carries, as in :func:`slurm.states`.

    Raises
    ------
    SlurmUnreachableError
        If it does not answer.
    """
    numbers = {number: run for number, _, run in (job.partition(" ") for job in jobs)}
    command = ["squeue", "--all", "--array", "--noheader", "--states=all", f"--jobs={','.join(numbers)}"]
    answer = slurm.ask([*command, "--format=%F|%K|%T|%k"])
    if answer.code != 0:
        if "Invalid job id" not in answer.text:
            raise slurm.silent(answer)
        # of several jobs one that is forgotten hides the others
        return {key: state for job in jobs for key, state in states([job]).items()} if len(jobs) > 1 else {}
    rows = slurm.rows_of(answer)
    own = [row for row in rows if len(row) > 2 and row[1].isdecimal() and row[0] in numbers]
    return {
        (row[0], int(row[1])): row[2]
        for row in own
        if not numbers[row[0]] or f"hpcml:{numbers[row[0]]}" in "|".join(row[3:]).split()
    }
