"""A run from Python: submitted, used while it goes on, waited for, found again, cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcml

pytestmark = pytest.mark.local

SCRIPT = """
import sys, time
import hpcml
client = hpcml.connect()
print("arguments", sys.argv[1:], hasattr(hpcml, "submit"))
while not (hpcml.run.out / "stop").exists() and not hpcml.run.should_stop():
    time.sleep(0.05)
sys.exit(3)
"""


def test_a_run_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    run = hpcml.submit("script.py", "--k", 8, site="local", set={"workers.per_node": 2})
    try:
        assert run.exit_status is None
        with pytest.raises(TimeoutError, match="it goes on"):
            run.wait(0.2)
        while run.status().phase != "running":
            assert run.exit_status is None, run.status()
        assert run.state == "RUNNING"
        with run.cluster() as client:
            assert client.submit(sum, [1, 2]).result() == 3
            assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
        (run.out / "stop").write_text("")
        assert run.wait(60) == 3
        ended = hpcml.find_run("script")
        assert (ended.state, ended.exit_status) == ("FAILED", 3)
        assert "arguments ['--k', '8'] False" in run.logs()
        assert "==> worker-local.log <==" in run.logs("workers")
        assert run.cancel() is False
        with pytest.raises(hpcml.HpcmlError, match="has no cluster now"):
            run.cluster()
        assert hpcml.find_run("script").id == hpcml.list_runs()[-1].id == run.id
    finally:
        run.cancel()


def test_a_script_that_is_missing_is_the_command_s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(hpcml.HpcmlError) as caught:
        hpcml.submit(tmp_path / "nosuch.py", site="local")
    assert (caught.value.exit_status, caught.value.place) == (66, str(tmp_path / "nosuch.py"))
    assert not list(tmp_path.iterdir())
