"""Help fits the terminal, and breaks lines between words only."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
from pathlib import Path

import pytest

from hpcml.cli import commands, help, main  # noqa: A004 - hpcml's
from hpcml.request import parser
from hpcml.terminal import columns, folded

QUESTIONS = json.loads((Path(__file__).parents[1] / "site/questions.json").read_text())


def check(text: str, wide: str, width: int) -> None:
    assert not [line for line in text.splitlines() if len(line) > width]
    gone_on = re.sub(r" \\$", "", text, flags=re.MULTILINE)
    assert gone_on.split() == wide.split()


def test_of_a_command(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, width, whole in itertools.product(commands.COMMANDS, (60, 80, 120), (False, True)):
        with subtests.test(command=command, width=width, whole=whole):
            monkeypatch.setenv("COLUMNS", "1000")
            monkeypatch.setattr("hpcml.request.parser.WIDEST", 1000)
            wide = commands.build_parser(command).format_help(whole=whole)
            monkeypatch.setenv("COLUMNS", str(width))
            text = commands.build_parser(command).format_help(whole=whole)
            check(text, wide, width)
            assert whole or width < 80 or len(text.splitlines()) <= 40
            assert wide.startswith(f"usage: hpcml {command}")
            assert wide.rstrip().endswith(commands.COMMANDS[command].examples[-1])


def test_of_run_leaves_out_what_it_refuses() -> None:
    text = commands.build_parser("run").format_help(whole=True)
    for option in ("--partition", "--time", "--exclusive", "--sbatch", "passed to Slurm"):
        assert option not in text
    assert "--nodes" in text
    assert commands.build_parser("run").parse_args(["--time", "5"]).time == "5", "refused by name, with a sentence"
    assert "--profile" not in commands.build_parser("sweep").format_help(whole=True)


def test_has_the_values_of_the_site() -> None:
    parser = commands.build_parser("submit")
    parser.show_site_defaults("leonardo", ["defaults.time=90m", "defaults.account=100%\x1b"])
    text = " ".join(parser.format_help().split())
    for default in (
        "(default: leonardo)",
        "site: boost_usr_prod",
        "site: 01:30:00",
        r"site: 100%\x1b",
        "worker per GPU (default: 0",
    ):
        assert default in text
    other = commands.build_parser("submit")
    other.show_site_defaults("nowhere", [])
    assert "this site" not in other.format_help(whole=True)
    assert "(default: defaults.time, else" in " ".join(other.format_help().split())


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


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["question"])
def test_finds_the_page_of_a_question(asked: dict[str, str]) -> None:
    page = help.find(asked["question"])[0][0]
    assert ("jobs/README.md" if page == help.EXAMPLES else f"docs/{page}.md") == asked["page"]


def test_pages_of_developers_answer_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert help.find("words subject verb object")[:1] != [("words", "# Words")]
    assert help.find("git push") == []
    help.run("topics")
    assert not {"words", "architecture"} & {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert help.run("words") == 0


def test_the_head_of_a_table_is_not_an_item() -> None:
    assert list(help._rendered("| a | b |\n|---|---|\n| c | d |\n", 80)) == ["* c: d", ""]


def test_pages_fit_the_width(subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for page in help.pages():
        with subtests.test(page=page):
            assert help.run(f"docs/{page}.md") == 0
            text, code = capsys.readouterr().out, "    "
            assert not [line for line in text.splitlines() if len(line) > 100 and not line.startswith(code)]
            assert not re.search(r"<!--|\]\(|^```", text, re.MULTILINE)


def test_an_example_that_is_broken_goes_on_in_a_shell() -> None:
    example, remark = "hpcml submit --nodes 2 --time 30 train.py", "a remark that is as long as the example"
    first, *others = parser._indented([f"  {example}   {remark}"], 30)
    assert first.endswith(" \\")
    assert " ".join([first, *others]).replace(" \\", "").split() == f"{example} {remark}".split()
    assert not others[-1].endswith("\\")
