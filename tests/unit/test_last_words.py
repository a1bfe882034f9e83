"""How a role ended: what its log says, and a question only where the log leaves one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from hpcml.failures import role_end, rules
from hpcml.failures.end import Reason
from hpcml.failures.note import Note, read_note
from hpcml.failures.rule import Where

TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>')


@pytest.mark.parametrize(
    ("status", "last", "how", "hint"),
    [
        (127, "step.sh: 12: /nope/python: not found", "was not found", "Check that the interpreter exists"),
        (126, "step.sh: 12: /tmp: Permission denied", "cannot be executed", "Check that the interpreter exists"),
        (126, "step.sh: 12: /nope/python: Exec format error", "interpreter /nope/python is built",
         "Set runtime.python"),
        (1, "ModuleNotFoundError: No module named 'distributed.core'", "distributed.core'", "Install distributed"),
        (1, "ImportError: cannot import name 'shuffle' from 'random' (/home/me/random.py)", "/home/me/random.py", "last line"),
        (1, "AttributeError: partially initialized module 'select' has no attribute 'poll'", "'select'", "last line"),
        (1, "KeyboardInterrupt", ": KeyboardInterrupt", "last line"),
        (80, "hpcml: nope0 has no address.", "exited with status 80", ""),
        (1, "the shell said something", "exited with status 1", ""),
        (137, "ImportError: of the script's, long ago", "(killed by SIGKILL)", ""),
        (0, "ImportError: caught", "exited with status 0", ""),
    ],
)  # fmt: skip
def test_the_log_s_own_cause_is_told(status: int, last: str, how: str, hint: str) -> None:
    found = role_end.of_role(status, (*TRACEBACK, last))
    assert how in found.what
    assert hint in found.hint
    assert bool(hint) == bool(found.hint)


@pytest.mark.parametrize(("order", "kind"), [("little", 183), ("big", 21), ("little", 21)])
def test_a_program_for_another_processor_is_named(tmp_path: Path, order: Literal["little", "big"], kind: int) -> None:
    program = tmp_path / "python"
    program.write_bytes(
        b"\x7fELF\x02" + (b"\x01" if order == "little" else b"\x02") + bytes(12) + kind.to_bytes(2, order)
    )
    log = (f"/run/step.sh: line 27: {program}: cannot execute binary file: Exec format error",)
    found = role_end.of_role(126, log, Note(what="n1 is x86_64"))
    name = {("little", 183): "aarch64", ("big", 21): "ppc64", ("little", 21): "ppc64le"}[order, kind]
    assert found.what.endswith(f"its interpreter {program} is built for {name}, but n1 is x86_64")


def test_why_an_image_was_not_entered_is_in_the_program_s_own_words() -> None:
    said = "WARNING: nothing\n\x1b[31mFATAL:  \x1b[0m the moon is full.\nsrun: error: n1: task 0\n"
    assert rules.meaning(said, Where.IMAGE) is None
    found = role_end.not_entered(said, 255)
    assert "the image could not be started: the moon" in found.what
    assert "hpcml image check" in found.hint
    assert "could not be started: exit status 88" in role_end.not_entered("", 88).what


def test_a_role_s_note_goes_before_its_log(tmp_path: Path) -> None:
    """And a log that says so for itself, as a script may print it, is no note."""
    note = Note(Reason.SHADOWED, "the module dask comes\nfrom /home/me/dask")
    note.write(tmp_path / "note@worker@n1")
    read = read_note(tmp_path / "note@worker@n1")
    assert read == Note(Reason.SHADOWED, "the module dask comes from /home/me/dask")
    found = role_end.of_role(1, ("hpcml: something else.", "ValueError: x"), read)
    assert found.what == "exited with status 1: the module dask comes from /home/me/dask"
    assert (found.hint, found.reason) == (rules.BY_NAME[Reason.SHADOWED].remedy, "shadowed-module")
    assert role_end.not_entered("FATAL: the moon is full", 88, read).reason == "shadowed-module"
    for damaged in (b"", b"one line", b"\xff\n" * 9000):
        (tmp_path / "note").write_bytes(damaged)
        assert read_note(tmp_path / "note") == ("", "")
    (tmp_path / "note").unlink()
    (tmp_path / "note").symlink_to(tmp_path / "note@worker@n1")
    assert read_note(tmp_path / "note") == read_note(tmp_path / "nothing") == ("", "")
    (tmp_path / "of-a-newer-version").write_text("another\nits clause\nmore\n")
    newer = read_note(tmp_path / "of-a-newer-version")
    assert role_end.of_role(1, (), newer) == ("exited with status 1: its clause", "", "another")
