"""The copy of a batch script's own output files, in a folder where another user replaces what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.kinds.batch.node import script
from hpcml.node.end_cause import why_ended

CANCELLED = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that Slurm has opened for output and errors."""
    path = tmp_path / "job.out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for name in ("OUTPUT", "ERRORS"):
        monkeypatch.setattr(script, name, descriptor)
    yield path
    os.close(descriptor)


@pytest.fixture
def state(tmp_path: Path) -> Any:
    run = SimpleNamespace(script_log=tmp_path / "script.log", job_log=tmp_path / "job.log")
    warnings: list[str] = []
    return SimpleNamespace(context=SimpleNamespace(run=run), job_logs={}, warnings=warnings, warn=warnings.append)


@pytest.mark.parametrize("planted", ["pipe", "link", "nothing"])
def test_a_replaced_file_is_copied_and_what_replaced_it_is_not_read(output: Path, state: Any, planted: str) -> None:
    output.unlink()
    if planted == "pipe":
        os.mkfifo(output)
    elif planted == "link":
        output.symlink_to("/etc/passwd")
    copies = script.Copies(state)
    os.write(script.OUTPUT, b"said\n")
    copies.end()
    assert state.context.run.script_log.read_text() == "said\n"
    assert state.warnings == []


def test_slurm_s_reason_is_read_in_the_file_that_slurm_opened(
    output: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO in its place would hold up the end of the run for ever."""
    monkeypatch.setenv("HPCML_JOB", "7")
    os.write(script.OUTPUT, CANCELLED.format(6).encode())
    script.Copies(state)
    output.unlink()
    os.mkfifo(output)
    assert not [path for path in state.job_logs if path == output]  # which would block the next line
    assert why_ended(state.job_logs) is None
    os.write(script.OUTPUT, CANCELLED.format(7).encode())
    assert why_ended(state.job_logs) == ""


def test_a_file_of_another_user_is_named_and_not_copied(
    output: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: output.stat().st_uid + 1)
    copies = script.Copies(state)
    os.write(script.OUTPUT, b"said\n")
    copies.end()
    assert not state.context.run.script_log.exists()
    assert state.warnings == [f"hpcml logs has no copy of the output in {output}. The file belongs to another user."]
    assert len(state.job_logs) == 1  # Slurm's reason counts
