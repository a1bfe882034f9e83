"""How a run ended, why, and what it left, as its report shows it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import typed_json
from hpcml.failures.end import End
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.run_files import Recorded
from hpcml.states import State

if TYPE_CHECKING:
    from hpcml.failures.evidence import Line
    from hpcml.kind import Kind

_OPENS = (  # the beginning of a profile's name, and the command that opens one
    ("dask.html", "python -m webbrowser"),
    ("memray-script", "memray flamegraph"),
    ("memray-worker", "memray flamegraph"),
    ("ncu-", "ncu-ui"),
    ("nsys-", "nsys-ui"),
    ("rmm_log_", "less"),
)
_UNFINISHED = ".tmp"  # what memray leaves of a process that was killed while it compressed its file


class Ending(NamedTuple):
    """How a run ended, and why, as its report shows it."""

    end: End = End(ended_as=State.RUNNING, over=False, message="the run has not written how it ended")
    cause: str = ""  # a sentence, empty where it did not fail
    evidence: tuple[Line, ...] = ()  # lines that show the cause
    followed: tuple[Line, ...] = ()  # lines of what followed from it
    next_step: str = ""
    again: str = ""  # the command that tries it again

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON-ready table."""
        table = typed_json.plain(self)
        del table["end"]
        return {**self.end.as_json(), "exit_status": self.end.exit_status if self.end.over else None, **table}


def ending_of(recorded: Recorded, attempt: AttemptPaths, kind: Kind, times: Mapping[str, float]) -> Ending:
    """Return the end of the run by its own status.json, with the cause by its logs."""
    from hpcml.failures import judgement
    from hpcml.failures.cause import Case, with_run

    if recorded.end is None:
        return Ending()
    end = recorded.end._replace(over=True)  # the report is made while the roles are torn down
    inside, paths = recorded.plan.inside, recorded.paths
    form, local = inside.code.form, inside.job.one_machine
    judged = judgement.of_run(paths, attempt, Case(end, kind, times, form=form, one_machine=local))
    if judged is None:
        return Ending(end, next_step=end.hint)
    cause = judged.sentence
    next_step = with_run(judged.remedy, paths.directory.name) or end.hint
    return Ending(end, cause, judged.evidence, judged.followed, next_step)


def profile_commands(paths: RunPaths) -> list[str]:
    """Return the command that opens each kind of profile that a run has; of several files the first."""
    try:
        with os.scandir(paths.profiles) as entries:
            whole = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        names = sorted(entry.name for entry in whole if not entry.name.endswith(_UNFINISHED))
    except OSError:
        return []
    commands = []
    for start, command in _OPENS:
        if profiles := [name for name in names if name.startswith(start)]:
            others = f"  # and {len(profiles) - 1} more" if profiles[1:] else ""
            commands.append(f"{command} {shlex.quote(str(paths.profiles / profiles[0]))}{others}")
    return commands
