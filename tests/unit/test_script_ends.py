"""How scripts end under the supervisor, without a cluster: the run's exit status, and what is told as the cause."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcml.failures import judgement
from hpcml.failures.cause import Case
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node.supervised import Processes
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog
from hpcml.node.run_state import RunState
from hpcml.node.supervisor import tear_down
from hpcml.node.tasks.run_tasks import run_tasks
from hpcml.node.tasks.task import OneTask
from hpcml.paths import RunPaths
from node_settings import settings

CRASH = "import ctypes\ndef crash(x):\n    ctypes.string_at(0)\ncrash(0)\n"


class End(NamedTuple):
    """A script, and how it ends."""

    script: str
    status: int
    message: str
    short: str
    words: str  # of the cause
    known: bool = True


ENDS = {
    "cleaning up": End("try:\n    raise ValueError('first')\nfinally:\n    raise OSError('closing failed')\n", 1,
                       "the script exited with status 1", "ValueError in job.py:4", "first"),
    "crash": End(CRASH, 139, "the script was killed by SIGSEGV", "crashed (SIGSEGV)", "in string_at"),
    "os._exit": End("import os\nprint('out of memory')\nos._exit(5)\n", 5, "the script exited with status 5",
                    "script exited with status 5", "exited with status 5"),
    "no signal's status": End("raise SystemExit(167)", 167, "the script exited with status 167",
                              "script exited with status 167", "exited with status 167"),
    "SIGKILL": End("import os\nos.kill(os.getpid(), 9)\n", 137, "the script was killed by SIGKILL", "killed by SIGKILL", "SIGKILL", known=False),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_script_that_failed_says_why(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    end = ENDS[name]
    (tmp_path / "job.py").write_text(end.script)
    run = RunPaths(tmp_path)
    run.attempt(0).secret.mkdir(parents=True)
    run.logs.mkdir()
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("HPCML_STEPS", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, contextlib.ExitStack() as folders:
        context = Context(run, run.attempt(0), 0, settings(code__script=str(tmp_path / "job.py")), "n1", ("n1",))
        state = RunState(context, KIND, EventLog(run.events, 0), Path(folder))
        monkeypatch.setattr(Processes, "check", lambda _: None)  # there are no roles that could be lost
        cluster = Processes(state, folders)
        outcome = run_tasks(state, cluster, OneTask(state, cluster, {**os.environ, "PYTHONFAULTHANDLER": "1"}))
        said = capfd.readouterr()
        run.script_log.write_text(said.out + said.err)
        tear_down(state, cluster, outcome)
    assert (outcome.exit_status, outcome.by, outcome.message) == (end.status, "script", end.message)
    assert outcome.reason == ("exit" if end.message == f"the script exited with status {end.status}" else "")
    assert ("Fatal Python error" in said.err) == (name == "crash")  # no other signal shows one
    cause = judgement.of_run(run, run.attempt(0), Case(outcome))
    assert cause is not None
    assert (cause.short, cause.known) == (end.short, end.known)
    assert end.words in cause.what
    assert f'"cause": "{end.short if end.known else ""}"' in run.status.read_text()
