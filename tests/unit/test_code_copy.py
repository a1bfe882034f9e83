"""What a script leaves in the copy of its folder is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.node import script_process


def put(path: Path, when: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.utime(path, ns=(when, when))
    return path


def test_files_that_are_new_or_changed_are_named(tmp_path: Path) -> None:
    copy = tmp_path / "code"
    put(copy / "train.py", 10)
    put(copy / "__pycache__/helper.pyc", 30)
    put(tmp_path / "elsewhere/new", 30)
    (copy / "data").symlink_to(tmp_path / "elsewhere")
    assert script_process.written_into_copy(copy, 20) == ""
    put(copy / "results/a.csv", 30)
    assert "into the original folder: results/a.csv (in " in script_process.written_into_copy(copy, 20)
    for name in ("b", "c\x1b[2J", "d"):
        put(copy / name, 30)
    assert r"b, 'c\x1b[2J', d and 1 more (in " in script_process.written_into_copy(copy, 20)
    assert script_process.written_into_copy(copy, 31) == ""


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert script_process.written_into_copy(tmp_path / "gone", 0) == ""


def test_no_more_entries_than_a_limit_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_process, "_MOST_ENTRIES", 2)
    for name in "abcd":
        put(tmp_path / name, 30)
    assert len(list(script_process._newer(tmp_path, 20))) == 2
