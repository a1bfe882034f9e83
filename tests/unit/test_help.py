"""Help fits the terminal, and breaks lines between words only."""

from __future__ import annotations

import argparse
import itertools
import os
import re

import pytest

from hpcml.cli import commands, main
from hpcml.request import parser
from hpcml.terminal import columns, folded


def check(text: str, wide: str, width: int) -> None:
    assert not [line for line in text.splitlines() if len(line) > width]
    gone_on = re.sub(r" \\$", "", text, flags=re.MULTILINE)
    assert gone_on.split() == wide.split()


def test_of_a_command(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, width in itertools.product(commands.COMMANDS, (60, 80, 120)):
        with subtests.test(command=command, width=width):
            monkeypatch.setenv("COLUMNS", "1000")
            monkeypatch.setattr("hpcml.request.parser.WIDEST", 1000)
            wide = commands.build_parser(command).format_help()
            monkeypatch.setenv("COLUMNS", str(width))
            check(commands.build_parser(command).format_help(), wide, width)
            assert wide.startswith(f"usage: hpcml {command}")
            assert wide.rstrip().endswith(commands.COMMANDS[command].examples[-1])


def test_of_run_leaves_out_what_it_refuses() -> None:
    text = commands.build_parser("run").format_help()
    for option in ("--partition", "--time", "--exclusive", "--sbatch", "passed to Slurm"):
        assert option not in text
    assert "--nodes" in text
    assert commands.build_parser("run").parse_args(["--time", "5"]).time == "5", "refused by name, with a sentence"


@pytest.mark.parametrize("verb", commands.COMMANDS)
def test_each_command_has_what_runs_it(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = commands.module_of(verb)
    name = f"run_{verb}" if module.__name__ != f"hpcml.cli.{verb}" else "run"
    monkeypatch.setattr(module, name, lambda _: 7)
    assert commands.run(verb, argparse.Namespace()) == 7


@pytest.mark.parametrize("width", [60, 80, 120])
def test_of_hpcml_itself(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcml.cli.main.columns", lambda *_: 1000)
    wide = main.overview()
    monkeypatch.setattr("hpcml.cli.main.columns", lambda *_: width)
    check(main.overview(), wide, width)


def test_a_pipe_has_no_width() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        assert columns(stream) == 0
        assert columns(stream, 80) == 80


@pytest.mark.parametrize(("text", "lines"), [
    ("", [""]),
    ("a bc def", ["a bc", "def"]),
    ("longer-than-it a", ["longer-than-it", "a"]),
    ("a --own-clusters", ["a", "--own-clusters"]),
])  # fmt: skip
def test_words_stay_whole(text: str, lines: list[str]) -> None:
    assert folded(text, 5) == lines


def test_an_example_that_is_broken_goes_on_in_a_shell() -> None:
    example, remark = "hpcml submit --nodes 2 --time 30 train.py", "a remark that is as long as the example"
    first, *others = parser._indented([f"  {example}   {remark}"], 30)
    assert first.endswith(" \\")
    assert " ".join([first, *others]).replace(" \\", "").split() == f"{example} {remark}".split()
    assert not others[-1].endswith("\\")
