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
client = hpcml.connect()
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


def until_told(*arguments: object, after: object = None) -> hpcml.RunHandle:
    return hpcml.submit("told.py", *arguments, site="local", after=after, set={"workers.per_node": 2})


def then(after: object) -> hpcml.RunHandle:
    return hpcml.submit("then.py", site="local", after=after, ranks=1)


def test_runs_that_wait_for_each_other() -> None:
    before = until_told(0, "--k", 8)
    second, never, dropped = until_told(1, after=before), then(f"{before.id}:fail"), then(before)
    third = then([f"{second.id}:fail", f"{never.id}:any"])
    for one in (second, never):
        assert (one.state, one.status().phase) == ("PENDING", "queued")
    assert never.status().message == f"waiting for {before.id} to fail"
    assert third.status().message == f"waiting for {second.id} to fail and for {never.id} to end"
    assert dropped.cancel()
    assert dropped.wait(60) == 86
    assert dropped.status().message == "the run was cancelled before it started"

    is_used_until_its_end(before)

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


def is_used_until_its_end(run: hpcml.RunHandle) -> None:
    assert run.exit_status is None
    with pytest.raises(TimeoutError, match="the run continues"):
        run.wait(0.2)
    while run.status().phase != "running":
        assert run.exit_status is None, run.status()
    assert run.state == "RUNNING"
    with run.cluster() as client:
        assert client.submit(sum, [1, 2]).result() == 3
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
    (run.out / "stop").write_text("")
    assert run.wait(120) == 0
    ended = hpcml.find_run(run.id)
    assert (ended.state, ended.exit_status) == ("COMPLETED", 0)
    assert "arguments ['0', '--k', '8'] False" in run.logs()
    assert "==> worker-local.log <==" in run.logs("workers")
    assert run.cancel() is False
    with pytest.raises(hpcml.HpcmlError, match="cluster is not running"):
        run.cluster()


def test_a_script_that_is_missing_is_the_command_s_error(tmp_path: Path) -> None:
    with pytest.raises(hpcml.HpcmlError) as caught:
        hpcml.submit(tmp_path / "nosuch.py", site="local")
    assert (caught.value.exit_status, caught.value.place) == (66, str(tmp_path / "nosuch.py"))
    assert not (tmp_path / ".hpcml").exists()
