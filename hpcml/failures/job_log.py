"""What Slurm's srun and slurmstepd write into a job's log, and the last lines of a role's log."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from hpcml.errors import STOPPED
from hpcml.failures.end import End
from hpcml.kind import Role
from hpcml.paths import RunPaths
from hpcml.safe_files import tail
from hpcml.units import expand_hosts

QUOTE = (12, 300)  # lines that are quoted, and characters of each
_LONGEST_LINE = 200
_SAID = re.compile(r"(?:srun|slurmstepd\S*): ")
# A task that ends by itself has written its exit status: srun says of it that it exited.
_TASK_KILLED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (?!Exited with )")
_TASK = re.compile(
    r"(?m)^srun: error: (?P<node>\S+): (?P<task>tasks? [\d,-]+): "
    r"(?P<how>Exited with exit code \d+|Segmentation fault|Aborted|Bus error|Killed|Terminated)"
)
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for StepId=\S+ failed on node (\S+): ")
_ABORTED = re.compile(r"srun: (?:error: Application launch failed|Job step aborted)")  # it kills all tasks itself now


def of_role(run: RunPaths, role: Role, node: str, most: tuple[int, int] = QUOTE) -> tuple[str, ...]:
    """Return the last lines of a role's log on a node; if it has none, of the job's log what is about the node."""
    if lines := tail(run.log(role.name, node if role.every_node else ""), *most):
        return lines
    lines = tail(run.job_log, *most)
    if not role.every_node:
        return lines
    names_node = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w.-])")
    return tuple(line for line in lines if _SAID.match(line) or names_node.search(line))


def of_script(log: Path, end: End) -> tuple[str, ...]:
    """Return the last lines of the output of a script that failed, as they are in its log now."""
    return () if end.exit_status in (0, STOPPED) else tail(log, *QUOTE, begin=end.log_begin)


def last_of_srun(run: RunPaths) -> str:
    """Return the last line of the job's log that srun wrote near its end, empty if there is none."""
    return next((line for line in reversed(tail(run.job_log, *QUOTE)) if line.startswith("srun: ")), "")


def failed_task(text: str) -> str:
    """Return the first report of srun on a task that failed, as a clause; empty if a text has none."""
    if not (task := _TASK.search(text)):
        return ""
    return f"srun reported of {task['task']} on {task['node']}: {task['how']}"


class LostTasks:
    """srun's reports, line by line, of tasks of one step that were killed or not launched."""

    def __init__(self, agent: str) -> None:
        self.agent = agent  # the role that the tasks run, for the sentence
        self.by_node: dict[str, str] = {}  # a clause
        self.aborted = False

    def note(self, line: str) -> None:
        """Take note of a line of the job's log; what is killed after srun has given the step up is no cause."""
        self.aborted = self.aborted or bool(_ABORTED.match(line))
        for pattern, cause in ((_TASK_KILLED, "was killed"), (_NOT_LAUNCHED, "could not be launched")):
            if (match := pattern.match(line)) and not self.aborted:
                with contextlib.suppress(ValueError):  # no list of nodes: another program's line
                    clause = f"the {self.agent}s' parent process {cause} ({line[:_LONGEST_LINE]})"
                    self.by_node |= dict.fromkeys(expand_hosts(match[1]), clause)


def why_ended(text: str, job: str, *, with_steps: bool = True) -> str | None:
    """Return Slurm's reason for the end of a job, empty for a plain cancellation; None if a log does not have it.

    ``with_steps``: the end of a step means the job's, since no step ends alone.
    """
    step = rf"|STEP {re.escape(job)}\.\S+" if with_steps else ""
    whose = rf"(?:JOB {re.escape(job)}{step}) ON \S+"
    causes: Iterable[str] = re.findall(rf"\*\*\* {whose} CANCELLED AT \S+(?: DUE (?:TO|to) ([^*\n]+?))? \*\*\*", text)
    *_, last = (None, *causes)
    return "" if last and last.startswith("SIGNAL") else last  # what newer Slurms say of a plain scancel
