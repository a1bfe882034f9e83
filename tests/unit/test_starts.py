"""What is said of a program that the system does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.node.starts import Hindrance, hindrance

MACHINE = Path(sys.executable).read_bytes()[18:20]  # of this processor


def hindrance_of(program: Path) -> Hindrance:
    with pytest.raises(OSError, match=r"No such file|Exec format") as caught:
        subprocess.run([program], check=False)
    return hindrance(caught.value, str(program))


def test_what_is_missing_is_named_and_not_the_program_that_is_there(tmp_path: Path, subtests: pytest.Subtests) -> None:
    loader = b"/no/such/loader\0"
    elf = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + MACHINE + b"\x01\x00\x00\x00" + bytes(8)
        + (64).to_bytes(8, "little") + bytes(12) + b"\x40\x00\x38\x00\x01\x00" + bytes(6)
        + b"\x03\x00\x00\x00\x04\x00\x00\x00" + (120).to_bytes(8, "little") + bytes(16)
        + len(loader).to_bytes(8, "little") * 2 + b"\x01" + bytes(7) + loader
    )  # fmt: skip
    for name, content, words in (
        (
            "interpreter",
            b"#! /no/such/perl -w\nprint 1;\n",
            "such file or directory: /no/such/perl",
        ),
        ("returns", b"#!/bin/bash\r\n", "directory: /bin/bash\\r, the interpreter"),
        ("text", b"echo hi\n", "Exec format error: "),
        ("loader", elf, "No such file or directory: the dynamic"),
    ):
        with subtests.test(name):
            program = tmp_path / name
            program.write_bytes(content)
            program.chmod(0o700)
            found = hindrance_of(program)
            assert words in found.reason
            assert str(program) in found.reason
            assert found.hint
    with subtests.test("absent"):
        assert hindrance_of(tmp_path / "x") == (f"No such file or directory: {tmp_path}/x", "")
    with subtests.test("not on PATH"):
        assert "PATH" in hindrance_of(Path("nowhere")).hint
