"""What takes in files on a login node, by itself: names, modes, and nothing in place before the laptop has said so."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.remote import receiver


class Receiver:
    """What takes things in, asked directly."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()

    def ask(self, *files: tuple[str, int, int], data: bytes, path: str = "wheels") -> dict[str, object]:
        ask = {"mark": "m", "send": True, "path": path, "whole": True, "replace": False, "files": files}
        done = subprocess.run([sys.executable, "-IS", receiver.__file__], input=json.dumps(ask).encode() + b"\n" + data,
                              env={"HOME": str(self.home)}, capture_output=True, check=False)  # fmt: skip
        assert b"Traceback" not in done.stderr
        lines = done.stdout.decode().splitlines()
        return dict(json.loads(lines[-1].removeprefix("m ")))


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    there = Receiver(tmp_path / "home")
    for name in ("../x", "/tmp/x", "..", ".", "", "a/b", "a\0b"):
        with subtests.test(name=name):
            answer = there.ask(("ok", 1, 0o644), (name, 1, 0o644), data=b"xygo\n")
            assert answer["refused"] == "name"
            assert list(tmp_path.rglob("*")) == [there.home]
    assert there.ask(("ok", 1, 0o644), ("ok", 1, 0o644), data=b"xygo\n")["refused"] == "failed"
    assert list(there.home.iterdir()) == []


def test_it_is_in_place_only_when_the_laptop_has_said_so(tmp_path: Path) -> None:
    there = Receiver(tmp_path / "home")
    for data in (b"x", b"xy", b"xyg", b"xyno\n"):
        assert there.ask(("one", 1, 0o644), ("two", 1, 0o755), data=data) == {"ready": True}
        assert list(there.home.iterdir()) == []
    old, other = (there.home / f".wheels.{name}{receiver.END}" for name in ("old", "new"))
    for folder in (old, other):
        folder.mkdir()
    os.utime(old, (0, 0))
    assert there.ask(("one", 1, 0o644), ("two", 1, 0o755), data=b"xygo\n") == {"done": True}
    assert {path.name for path in there.home.iterdir()} == {"wheels", other.name}, "what a killed one left is removed"
    placed = there.home / "wheels"  # the first of the files; the others are gone
    assert (placed.read_bytes(), stat.S_IMODE(placed.stat().st_mode)) == (b"x", 0o600)
    assert there.ask(data=b"go\n")["refused"] == "there"


def test_in_a_folder_of_several_accounts(tmp_path: Path) -> None:
    """Who may rename there could name a folder of the user's as one that was left, or put another in its place."""
    there = Receiver(tmp_path / "home")
    done, refused = {"done": True}, {"refused": "open", "free": 0}
    cases = [(0o1777, -1, -1, done), (0o2770, -1, -1, done), (0o777, -1, -1, refused)]
    if os.geteuid() == 0:  # a group's, another account's, and one below such a folder
        cases += [(0o2770, -1, 65533, refused), (0o755, 65533, -1, refused), (0o1777, 65533, -1, refused)]
    for number, (mode, owner, group, answer) in enumerate(cases):
        os.chown(there.home, owner if owner >= 0 else os.geteuid(), group if group >= 0 else os.getegid())
        there.home.chmod(mode)
        path = f"wheels-{number}"
        work = there.home / f".{path}.of-mine{receiver.END}"
        work.mkdir()
        os.utime(work, (0, 0))
        assert there.ask(("one", 1, 0o644), data=b"xgo\n", path=path) == answer
        assert work.is_dir()
        assert (there.home / path).exists() == ("done" in answer)
    below = there.home / "own"
    below.mkdir(mode=0o700)
    assert there.ask(("one", 1, 0o644), data=b"xgo\n", path="own/wheels") == (refused if os.geteuid() == 0 else done)


def test_an_older_python_reads_it() -> None:
    ast.parse(Path(receiver.__file__).read_text(), feature_version=(3, 4))


def test_what_came_there_meanwhile_stays(tmp_path: Path) -> None:
    there = Receiver(tmp_path / "home")
    ask = {"mark": "m", "path": "wheels", "replace": False, "files": [("one", 1, 0o644)]}
    with subprocess.Popen([sys.executable, "-IS", receiver.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env={"HOME": str(there.home)}) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(ask).encode() + b"\nx")
        process.stdin.flush()
        assert b"ready" in process.stdout.readline()
        (there.home / "wheels").write_text("another's")
        assert b'"refused": "there"' in process.communicate(receiver.GO)[0]
    assert [path.read_text() for path in there.home.iterdir()] == ["another's"]
