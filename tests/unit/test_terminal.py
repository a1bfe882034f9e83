"""What somebody else could have written is seen on the terminal, and obeyed by nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml import terminal
from hpcml.errors import HpcmlError
from hpcml.failures.point import PointEnd
from hpcml.node.sweep.points import Point
from hpcml.node.sweep.queue import Points
from hpcml.paths import RunPaths
from hpcml.runs import notes

EVIL = (
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x9b31m", "\x1bP+q544e\x1b\\", "a\rb", "a\nfake row", "a\x0bb",
    "a\x0cb", "\x08\x08\x08", "\x7f", "\x00", "\u202edcba", "\u2066x\u2069", "\u200b", "\u2028row", "\u2029row", "\ufeff", "\u00ad",
    "\U000e0041", "\ud83d", "\x85row", "\u180e", "\u061c", "\u2060",
)  # fmt: skip


def test_nothing_in_a_line_is_obeyed(subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for text in EVIL:
        with subtests.test(text=ascii(text)):
            terminal.say(f"before {text} after")
            said = capsys.readouterr().out
            assert said.count("\n") == 1
            assert said.endswith(" after\n")
            assert said[:-1].isprintable()
            assert "\\" in said, "what was there is seen"
            terminal.say_lines(str(HpcmlError(f"x{text}y", place=text, hint=text, quote=(text, text))))
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == 4, lines
            assert all(line.isprintable() for line in lines)
            terminal.say_lines(f"several\nlines {text}")
            assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_json_with_an_indent_is_what_python_writes(subtests: pytest.Subtests) -> None:
    values = {
        "nested": {"a": [1, {"b": (None, True, [])}], "c": {}, "d": {"e\n": 1.5, "f": float("nan")}, "g": 'x,\n"{}'},
        "rows": [{"a": 1, "b": []}, {}, [], [[[]]], "é\u2028"],
        "only tables": [{"a": 0}, {"a": "0"}],
        "other keys and values": {1: Path("/x"), None: {True: [Path("/y")]}, 2.5: "z"},
        "no container": "x",
    }
    for name, value in values.items():
        for indent in (1, 2):
            with subtests.test(value=name, indent=indent):
                assert terminal.json_text(value, indent) == json.dumps(value, indent=indent, default=str)


def test_the_lines_of_a_sweep_obey_no_points_file(capsys: pytest.CaptureFixture[str]) -> None:
    """They pass byte for byte from the script's log to the terminal of who waits."""
    context = SimpleNamespace(run=RunPaths(Path("/run")))
    queue = SimpleNamespace(plan=SimpleNamespace(points=[1]), failed=[], counts=Counter(ok=1), context=context)
    for text in EVIL:
        for status in ("ok", "failed"):
            record = PointEnd({}, status, 1.0, {f"loss{text}": 1.0}, cause=f"why{text}")
            Points._say(queue, Point("k", f"k={text}", {}, {}), record)  # type: ignore[arg-type]
            Points._say_restarted(queue, f"because{text}")  # type: ignore[arg-type]
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == 2, ascii(text)
            assert all(line.isprintable() for line in lines), ascii(text)


def test_every_control_and_format_character_is_shown() -> None:
    characters = map(chr, range(sys.maxunicode + 1))
    bad = [character for character in characters if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
    obeyed = [character for character in bad if terminal.shown(character) == character]
    # signs that have a shape of their own: numbers and verses of Arabic and Syriac, Kaithi's and hieroglyphs' joiners
    scripts = {"ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN"}
    assert {unicodedata.name(character).split()[0] for character in obeyed} <= scripts
    assert not [character for character in obeyed if ord(character) < 0x600]


def test_what_people_write_stays() -> None:
    for text in ("grüße, 世界 ✓ · …", "C:\\path\\n", "Ωμέγα עברית العربية", "e\u0301", "👍🏽", "non\u00a0breaking"):
        assert terminal.shown(text) == text


def test_a_terminal_is_not_driven_by_a_log_and_a_pipe_gets_every_byte() -> None:
    log = b"50%\r100%\n\tgr\xc3\xbc\xc3\x9fe \x1b[2J\x9b5n \xe2\x80\xae\xff end"
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as screen:
        raw = terminal.Raw(screen)
        for position in range(len(log)):  # characters come in pieces
            raw.write(log[position : position + 1])
        raw.write(b"\xc3", last=True)
    pieces = []
    with contextlib.suppress(OSError):  # EIO: all has been read, and nobody writes any more
        while piece := os.read(leader, 4096):
            pieces.append(piece)
    os.close(leader)
    assert b"".join(pieces).decode() == "50%\r100%\r\n\tgrüße \\x1b[2J\\x9b5n \\u202e\\xff end\\xc3"
    kept = io.BytesIO()
    raw = terminal.Raw(io.TextIOWrapper(kept))
    raw.write(log)
    assert kept.getvalue() == log


def test_json_on_the_terminal_is_still_json(subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for text in EVIL:
        with subtests.test(text=ascii(text)):
            terminal.say_lines(terminal.json_text({"x": text}, indent=1))
            said = capsys.readouterr().out
            assert json.loads(said) == {"x": text}
            assert said.replace("\n", "").isprintable()


def test_a_note_is_cut_between_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notes, "columns", lambda *_: 30)
    notes.show(["the job takes whole nodes, with four GPUs"])
    assert capsys.readouterr().err.splitlines()[0] == "hpcml: note: the job takes …"
