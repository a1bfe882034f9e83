"""Runs from Python, three in a row: submitted, used, waited for, found again, cancelled, and started when others have ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcml

pytestmark = pytest.mark.local

UNTIL_TOLD = """
import sys, time
import hpcml
print("arguments", sys.argv[1:], hasattr(hpcml, "submit"), flush=True)
while not (hpcml.run.out / "stop").exists() and not hpcml.run.should_stop():
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("told.py").write_text(UNTIL_TOLD)
    Path("then.py").write_text("print('then')\n")
    yield
    for run in hpcml.list_runs():
        run.cancel()


def then(after: object) -> hpcml.RunHandle:
    return hpcml.submit("then.py", site="local", after=after, ranks=1)


def test_runs_that_wait_for_each_other() -> None:
    before = hpcml.submit("told.py", 0, "--k", 8, site="local", set={"workers.per_node": 2, "workers.start": "early"})
    second = hpcml.submit("told.py", 1, site="local", after=before, ranks=1)
    never, dropped = then(f"{before.id}:fail"), then(before)
    third = then([f"{second.id}:fail", f"{never.id}:any"])
    for one in (second, never):
        assert (one.state, one.status().phase) == ("PENDING", "queued")
    assert never.status().message == f"waiting for {before.id} to fail"
    assert third.status().message == f"waiting for {second.id} to fail and for {never.id} to end"
    assert dropped.cancel()
    assert dropped.wait(60) == 86
    assert dropped.status().message == "the run was cancelled before it started"

    assert before.exit_status is None
    with pytest.raises(TimeoutError, match="the run continues"):
        before.wait(0.2)
    while before.status().phase != "running":
        assert before.exit_status is None, before.status()
    assert before.state == "RUNNING"
    with before.cluster() as client:
        assert client.submit(sum, [1, 2]).result() == 3
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
    (before.out / "stop").write_text("")
    assert before.wait(120) == 0
    found = hpcml.find_run(before.id)
    assert (found.state, found.exit_status) == ("COMPLETED", 0)
    assert "arguments ['0', '--k', '8'] False" in before.logs()
    assert "==> worker-local.log <==" in before.logs("workers")
    assert before.cancel() is False
    with pytest.raises(hpcml.HpcmlError, match="cluster is not running"):
        before.cluster()

    assert never.wait(60) == 86
    assert never.state == "CANCELLED"
    assert never.status().message == f"the run never started: it waited for {before.id} to fail, and that run succeeded"
    while second.status().phase != "running":
        assert second.exit_status is None, second.status()
    assert second.cancel()  # which counts as a failure
    assert second.wait(120) == 86
    assert third.wait(120) == 0
    assert third.logs() == "then\n"
    ended = [run.status().times["torn-down"] for run in (before, second)]
    assert second.status().times["allocated"] > ended[0]
    assert third.status().times["allocated"] > ended[1]
    assert hpcml.find_run("told").id == second.id
    assert hpcml.find_run("then").id == hpcml.list_runs()[-1].id == third.id


def test_a_script_that_is_missing_is_the_command_s_error(tmp_path: Path) -> None:
    with pytest.raises(hpcml.HpcmlError) as caught:
        hpcml.submit(tmp_path / "nosuch.py", site="local")
    assert (caught.value.exit_status, caught.value.place) == (66, str(tmp_path / "nosuch.py"))
    assert not (tmp_path / ".hpcml").exists()
