"""What another account could leave in the user's way: hostile files, and whole runs that are not the user's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

STRANGER = 12345  # an account that is neither this user nor root
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nfake  row\r"


def deep(path: Path) -> None:
    path.write_text("[" * 200_000 + "\n")


def deep_table(path: Path) -> None:
    path.write_text('{"a":' * 200_000 + "\n")


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def ring(path: Path) -> None:
    path.symlink_to(path.name)


def kinds(path: Path) -> None:
    """Every value is of another kind than the one that is read."""
    path.write_text(json.dumps({"over": 5, "state": 5, "exit_status": "x", "message": {"a": 1}, "by": [], "hint": 7, "quote": "x", "job": ["1"],
                                "inside": {"job": {"nodes": "many"}}, "site": {"a": []}, "pid": "1; id", "started": 3, "event": []}) + "\n")  # fmt: skip


def escapes(path: Path) -> None:
    text = ESCAPES
    facts = {"over": True, "state": "FAILED", "exit_status": 3, "message": text, "by": text, "hint": text, "quote": [text, text], "job": "1", "site": text,
             "inside": {}, "error": text}  # fmt: skip
    path.write_text(json.dumps(facts) + "\n")


HOSTILE = (deep, deep_table, hole, endless, pipe, folder, ring, kinds, escapes)


def put(path: Path, make: object) -> None:
    """Replace a file by a hostile one."""
    path.unlink(missing_ok=True)
    assert callable(make)
    make(path)


def give(path: Path, uid: int = STRANGER) -> None:
    """Let a file, or a folder with all that is in it, belong to another account."""
    for place in [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]:
        os.chown(place, uid, uid, follow_symlinks=False)


def need_another_account() -> None:
    """Skip where nothing can be given to another account."""
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another account")


def open_to_all(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o1777)


def is_plain(text: str) -> bool:
    """Whether a terminal obeys nothing in an output but line breaks."""
    return all(line.isprintable() for line in text.split("\n"))
