"""Help fits the terminal, and breaks lines between words only."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from hpcml.cli import commands, help, main  # noqa: A004 - hpcml's
from hpcml.errors import UsageError
from hpcml.options import parser
from hpcml.request.options import OPTIONS
from hpcml.sites.schema import Site

_ASKED = json.loads((Path(__file__).parents[1] / "site/questions.json").read_text())
QUESTIONS = [asked for asked in _ASKED if asked.get("only", "help") == "help"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_of_all_commands(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "columns", lambda *_: width)
    text = main.overview()
    assert not [line for line in text.splitlines() if len(line) > width]
    assert set(text.split()) >= {"example", "rank,", "ranks", "failed"}  # no word is cut


def test_of_a_command(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, width, whole in itertools.product(commands.COMMANDS, (60, 80, 120), (False, True)):
        with subtests.test(command=command, width=width, whole=whole):
            monkeypatch.setenv("COLUMNS", "1000")
            monkeypatch.setattr("hpcml.options.parser.WIDEST", 1000)
            wide = commands.build_parser(command).format_help(whole=whole)
            monkeypatch.setenv("COLUMNS", str(width))
            text = commands.build_parser(command).format_help(whole=whole)
            assert not [line for line in text.splitlines() if len(line) > width]
            assert re.sub(r" \\$", "", text, flags=re.MULTILINE).split() == wide.split()
            assert whole or width < 80 or len(text.splitlines()) <= 40
            assert wide.startswith(f"usage: hpcml {command}")
            assert wide.rstrip().endswith(commands.COMMANDS[command].examples[-1])


def test_a_site_without_slurm_has_none_of_slurm_s_defaults() -> None:
    for name in ("partition", "qos", "time", "cpus_per_node", "memory_per_node"):
        option = OPTIONS[name]
        assert "none on this site" in option.help(Site("here"), has_slurm=False)
        assert "none on this site" not in option.help(Site("here")) + option.help()
    assert "none on this site" not in OPTIONS["gpus_per_node"].help(Site("here"), has_slurm=False)
    with pytest.raises(UsageError) as caught:
        OPTIONS["nodes"].read("two", "--nodes")
    assert "whole number" in caught.value.hint


def test_of_run_leaves_out_what_it_refuses() -> None:
    text = commands.build_parser("run").format_help(whole=True)
    for option in ("--partition", "--exclusive", "--sbatch", "passed to Slurm"):
        assert option not in text
    assert "--nodes" in text
    assert commands.build_parser("run").parse_args(["--qos", "a"]).qos == "a", "refused by name, with a sentence"
    assert "--profile" not in commands.build_parser("sweep").format_help(whole=True)


def test_says_what_holds_and_their_runs_do() -> None:
    """A hold returns at once, and a run in a hold waits, on every terminal; such a run may take a part of the hold."""
    runs, holds = (" ".join(commands.build_parser(verb).format_help().split()) for verb in ("run", "hold"))
    for text in ("only with --in, N can be smaller", "--time, -t TIME with --in:", "run's end (default: wait)"):
        assert text in runs
    for text in ("do not wait for the hold (default)", "hpcml cancel HOLD", "hold's name (default: hold)"):
        assert text in holds
    assert "terminal" not in runs + holds


def test_has_the_values_of_the_site() -> None:
    parser = commands.build_parser("submit")
    assert "(default: defaults.time, else" in " ".join(parser.format_help().split())
    parser.show_site_defaults("leonardo", ["defaults.time=90m", "defaults.account=100%\x1b"])
    text = " ".join(parser.format_help().split())
    for default in ("(default: leonardo)", "site: boost_usr_prod", "site: 01:30:00", r"site: 100%\x1b"):
        assert default in text


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["question"])
def test_finds_the_page_of_a_question(asked: dict[str, str]) -> None:
    page = help.find(asked["question"])[0][0]
    assert ("jobs/README.md" if page == help.EXAMPLES else f"docs/{page}.md") == asked["page"]


@pytest.mark.parametrize("word", ["deadlock", "stuck", "frozen"])
def test_a_run_that_hangs_has_many_names(word: str) -> None:
    assert help.find(word)[0] == ("troubleshooting", "## A run hangs")


@pytest.mark.parametrize(("word", "page", "section"), [
    ("disk", "troubleshooting", "## Disk or quota full"), ("clean", "commands", "## hpcml rm"),
    ("memory", "troubleshooting", "## Out of memory"), ("oom", "troubleshooting", "## Out of memory"),
    ("out of memory", "troubleshooting", "## Out of memory"), ("array", "from-batch-scripts", "## Arrays"),
    ("resubmit", "commands", "## hpcml rerun"), ("space", "troubleshooting", "## Disk or quota full"),
    ("api", "commands", "## From Python"),
])  # fmt: skip
def test_the_answer_begins_with_the_section(
    word: str, page: str, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert help.run(word) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0][:2], lines[1:3]) == ("# ", ["", section])
    assert f"hpcml help {page}," in " ".join(lines[-3:]), "the whole page"


def test_torch_is_pytorch() -> None:
    assert help.find("torch")[0] == help.find("pytorch")[0] == ("ranks", "# Ranks: PyTorch, JAX and MPI programs")


def test_the_topics_are_named_as_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert help.run("topics") == 0
    topics = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"doctor", "status", "ranks"} <= {*topics}
    assert not [topic for topic in topics if topic.endswith(".md")]


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
