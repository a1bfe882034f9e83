"""What a script leaves in the copy of its folder is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.node import code_copy


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
    assert code_copy.note(copy, 20) == ""
    put(copy / "results/a.csv", 30)
    assert "beside the original: results/a.csv (in " in code_copy.note(copy, 20)
    for name in ("b", "c\x1b[2J", "d"):
        put(copy / name, 30)
    assert r"b, 'c\x1b[2J', d and 1 more (in " in code_copy.note(copy, 20)
    assert code_copy.note(copy, 30) == ""


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert code_copy.note(tmp_path / "gone", 0) == ""


def test_no_more_entries_than_a_limit_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_copy, "_MOST", 2)
    for name in "abcd":
        put(tmp_path / name, 30)
    assert len(list(code_copy._newer(tmp_path, 20))) == 2
