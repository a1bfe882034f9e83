"""Runs that the user, the time limit or a kill ends: what is told of them, and what is left of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from homes import CONNECT, Here, here, report
from hpcml import errors
from test_runs_that_fail import is_dask_s_report

pytestmark = pytest.mark.local

__all__ = ["here"]
DEAF = """
print(sum(client.gather(client.map(lambda x: sum(range(x)), range(100), key="added"))), flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("waiting", flush=True)
time.sleep(600)
"""
TOLD = """
print(client.submit(abs, -1).result())
client.submit(print, "of a task").result()
while not hpcml.run.should_stop(): time.sleep(0.1)
print("told", flush=True)
time.sleep(600)
"""


def test_what_ends_runs_is_told_and_nothing_is_left(here: Here) -> None:
    """Three runs in one home: one that was killed with all its processes, one deaf to its end, one over its time."""
    common = here.common_folder()

    def folders() -> set[Path]:
        return set(common.glob("hpcml_*"))

    here.started("import dask, time\ntime.sleep(600)\n")
    first = folders()
    assert len(first) == 2
    for pid in here.processes():
        with suppress(ProcessLookupError):  # it ended with one that was killed before
            os.kill(pid, signal.SIGKILL)
    here.until(lambda: not here.left())
    assert folders() == first

    deaf = here.started(CONNECT + DEAF, "--nodes", "2", "--profile", "dask", "--set", "deadlines.teardown=120s",
                        "--set", "deadlines.script_grace=2s")  # fmt: skip
    log = deaf / "logs/script.log"
    here.until(lambda: log.exists() and "waiting" in log.read_text(), 60)
    second = folders()
    assert len(second) >= 2
    assert not first & second, "the user's next run sweeps what killed roles left"

    for seconds in (15, 30, 60, 120):  # a busy machine may need more time until the script runs: twice as much
        limit = here.submit(CONNECT + TOLD, "--time", f"{seconds}s", "--set", f"slurm.signal_lead={seconds // 3}s",
                            "--set", "deadlines.script_grace=1s")  # fmt: skip
        why, row = here.json("why"), here.json("ls")[-1]
        done = "told" in limit.stdout and any("stacks" in line["file"] for line in why["evidence"])
        if done or limit.returncode != errors.TIME_LIMIT:
            break
    assert limit.returncode == errors.TIME_LIMIT, limit.stderr
    assert limit.stdout == "1\ntold\n"
    assert "tasks      output of the Dask tasks" in limit.stderr
    assert (why["failed"], why["known"], why["short"]) == (True, True, "time limit"), why
    assert "while the script ran" in why["cause"]
    assert "to run the script again: hpcml rerun" in limit.stderr
    assert row["cause"] == "time limit"
    found = report(Path(here.status()["directory"]))
    assert found["ending"]["state"] == "TIMEOUT"
    (line,) = (line for line in found["processes"] if line.endswith(": script (local)"))
    assert line in [one["text"] for one in why["evidence"]]
    assert folders() == second, "the folders of a run that goes on stay"

    assert here.run("cancel", deaf.name).returncode == 0
    assert here.run("wait", deaf.name).returncode == errors.CANCELLED
    here.until(lambda: not here.left())
    assert not folders()
    assert here.status(deaf.name)["exit_status"] == errors.CANCELLED
    found = report(deaf)
    assert found["ending"]["state"] == "CANCELLED"
    assert [phase["kind"] for phase in found["phases"]][-2:] == ["script", "tail"]
    is_dask_s_report(deaf, 100)
    assert log.read_text() == "161700\nwaiting\n"


DAEMON = """
import os, subprocess, sys, time
for trap in ("", "trap '' TERM; "):
    line = trap + "echo $$ >>" + sys.argv[1] + "; while :; do sleep 1; done"
    subprocess.run(["setsid", "-f", "sh", "-c", line], check=True)
while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).read().split()) < 2: pass
print("runs", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("role", ["job.sh", "hpcml.kinds supervisor", "hpcml.kinds scheduler"])
def test_a_part_of_hpcml_is_killed(here: Here, role: str) -> None:
    """Whichever process dies, nothing of the run survives it for long, and the run is not left open.

    What nobody decided is not repeated here either: there is no job that waits for it.
    """
    until_done = ("--until-done",) if role == "job.sh" else ()
    text = CONNECT + DAEMON if "scheduler" in role else DAEMON
    done = here.run("submit", "--json", *until_done, "--set", "workers.on_loss=fail", "--set", "workers.restarts=0",
                    "--set", "deadlines.script_grace=1s", here.script(text), "pids")  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = Path(here.status()["directory"])
    log, pids = directory / "logs/script.log", here.folder / "pids"
    here.until(lambda: log.exists() and "runs" in log.read_text(), 90)
    try:
        for pid, line in here.processes().items():
            if line.endswith(role) and "step.sh" not in line:
                with suppress(ProcessLookupError):  # it ended with one that was killed before
                    os.kill(pid, signal.SIGKILL)
        status = here.ended(directory)
        assert status["exit_status"] != 0
        if "scheduler" in role:
            assert status["exit_status"] == errors.ROLE_LOST
            assert "the Dask scheduler on local was lost" in status["message"]
        here.until(lambda: not here.left(), 20)
        if role != "job.sh":  # which ends them
            here.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()))
            here.until(lambda: "remained and is ended" in (directory / "logs/job.log").read_text())
    finally:
        for pid in map(int, pids.read_text().split()):
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
    if role == "job.sh":
        assert os.listdir(directory / "attempts") == ["0"]
    if role == "hpcml.kinds supervisor":  # the report that no supervisor made
        assert not (directory / "report.html").exists()
        assert here.run("report").stdout.strip() == str(directory / "report.html")
        found = report(directory)
        assert found["ending"]["exit_status"] != 0
        assert found["ending"]["cause"]
