"""The report that a supervisor has made: what goes wrong with it is said, and changes nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.node import report_at_end
from hpcml.node.context import Context
from hpcml.paths import RunPaths
from tests import report_samples
from tests.report_samples import Shape


def context(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return the context of a process of the run; the report's process finds hpcml as this one does."""
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return Context(paths, paths.attempt(0), 0, None, "n1", ("n1",))  # type: ignore[arg-type] # it needs no settings


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_at_end, "REPORT_LONGEST", 120.0)


def test_a_python_without_jinja2_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jinja2" else object())
    made = report_at_end.ReportProcess(context(report_samples.write(tmp_path / "run", Shape(seconds=60)), monkeypatch))
    made.begin()
    made.end()
    assert (made.process, made.missed) == (None, "")


def test_it_is_made_when_it_is_told_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    made = report_at_end.ReportProcess(context(paths, monkeypatch))
    assert not paths.report.exists()
    made.begin()
    made.end()
    assert not made.missed
    assert json.loads(paths.report_facts.read_text())["ending"]["state"] == "COMPLETED"
    assert "</html>" in paths.report.read_text()


def test_what_goes_wrong_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    def blocked(paths: RunPaths) -> None:
        paths.report.mkdir()

    def late(_: RunPaths) -> None:
        monkeypatch.setattr(report_at_end, "REPORT_LONGEST", 0.0)

    for cause, words in ((blocked, "Is a directory"), (late, "not ready within 0 s")):
        with subtests.test(cause.__name__):
            paths = report_samples.write(tmp_path / cause.__name__, Shape(seconds=60))
            cause(paths)
            made = report_at_end.ReportProcess(context(paths, monkeypatch))
            made.begin()
            made.end()
            assert words in made.missed
            assert f"Write the report: hpcml report {cause.__name__}" in made.missed


def test_one_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(endless))
    monkeypatch.setattr(report_at_end, "REPORT_LONGEST", 0.0)
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    made = report_at_end.ReportProcess(context(paths, monkeypatch))
    made.end()
    assert made.process
    try:
        assert made.process.poll() is not None
    finally:
        made.process.kill()
        made.process.wait()


TOLD_TO_END = """
import gc, os, runpy, signal, sys

class Line:
    def readline(self):
        os.kill(os.getpid(), signal.SIGTERM)

sys.stdin = Line()
runpy.run_module("hpcml.kinds.report_process", run_name="__main__")
sys.exit(gc.isenabled())  # it would look again and again at samples, which all stay
"""


def test_a_cancelled_job_s_signal_does_not_end_it(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    command = [sys.executable, "-c", TOLD_TO_END, str(paths.directory), "0"]
    assert subprocess.run(command, timeout=240, check=False).returncode == 0
