"""What a run does not end for, and its user has to know: said once in its output, its events and its end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from hpcml.node.outcome import EventLog, Outcome
from hpcml.node.roles.run_state import RunState
from hpcml.paths import RunPaths
from hpcml.runs import directories, status


def test_a_warning_is_said_once_and_kept(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.logs.mkdir()
    events = EventLog(paths.events, 0)
    events.write("allocated", nodes=["n1"], job="7", node="n1")
    context = SimpleNamespace(run=paths, number=0)
    state = RunState(context, events, SimpleNamespace())  # type: ignore[arg-type]
    for _ in range(2):
        state.warn("n2 works with less memory")
    assert paths.job_log.read_text() == "hpcml: warning: n2 works with less memory\n"
    Outcome(0, "driver", "script", "the script ended").write(context, state.warnings)  # type: ignore[arg-type]
    assert json.loads(paths.status.read_text())["warnings"] == ["n2 works with less memory"]
    found = status.status(directories.Run("a", paths, None), ask=False)
    assert found.warnings == ("n2 works with less memory",)
    events.write("allocated", nodes=["n1"], job="7", node="n1")  # Slurm has started the job again
    assert status.status(directories.Run("a", paths, None), ask=False).warnings == ()
