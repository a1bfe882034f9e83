"""What a person sees on terminals of 60, 80 and 120 columns: no word is broken, colours only where they are wanted."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

pytest.importorskip("pyte", reason="pyte, which draws the terminal, is not installed here")

from screen import Result, run
from world import World

WIDTHS = (60, 80, 120)


def see(world: World, columns: int, *words: str, **variables: str) -> Result:
    return run([str(world.command), *words], columns, {**world.environment, **variables}, world.project)


def whole_words(shown: list[str], columns: int, longest: int) -> list[str]:
    """Return the lines that the terminal broke: full to the last column, and no single word is so long."""
    return [line for line in shown if len(line) == columns and max(map(len, line.split())) < longest]


def test_help_fits(world: World) -> None:
    """The terminal's width counts; tests/unit/test_help.py sees that the help of every command keeps to a width."""
    for columns in (60, 100):
        seen = see(world, columns, "image", "build", "--help")
        assert seen.status == 0
        assert not whole_words(seen.text, columns, columns)
        assert columns - 20 < max(map(len, seen.text)) <= columns


ERRORS: dict[str, tuple[list[str], str]] = {
    "script": (["submit", "--site", "local", "typo.py"], "The script does not compile: '(' was never closed (typo.py:2)."),
    "module": (["submit", "--site", "local", "absent.py"], "The script imports 'sklaern', which the run's environment lacks (absent.py:1)."),
    "argument": (["image", "check"], "IMAGE is missing (hpcml image check)."),
    "option": (["submit", "--nodse", "2", "a.py"], "There is no option '--nodse' (hpcml submit)."),
}  # fmt: skip


@pytest.mark.parametrize(("name", "columns"), [*((name, 60) for name in ERRORS), ("module", 80), ("script", 120)])
def test_an_error_is_folded_between_words(world: World, name: str, columns: int) -> None:
    (world.project / "typo.py").write_text("import hpcml\nclient = hpcml.connect(\n")
    (world.project / "absent.py").write_text("import sklaern\n")
    words, sentence = ERRORS[name]
    seen = see(world, columns, *words)
    text = seen.text
    assert sentence in " ".join(text).replace("hpcml: ", "", 1)
    pieces = " ".join(text).split()
    assert all(word in pieces for word in sentence.split())
    assert all(len(line) <= columns for line in text)


def test_what_is_quoted_stays_as_it_is(world: World) -> None:
    """The mark below the fault stands where it stood."""
    (world.project / "typo.py").write_text("import hpcml\nclient  =  hpcml.connect(\n")
    text = see(world, 60, "submit", "--site", "local", "typo.py").text
    assert "  | client  =  hpcml.connect(" in text
    assert f"  | {'^':>25}" in text


def test_notes_are_folded(world: World) -> None:
    (world.project / "toolz.py").write_text("")
    seen = see(world, 60, "submit", "--site", "slurm", "--detach", "--env", "lower=1", "job.py")
    broken = [line for line in seen.text if len(line) == 60 and " " in line and line[0] != " " and line[-1] != "…"]
    assert any(line.startswith("hpcml: note: ") for line in seen.text)
    assert not broken


@pytest.mark.parametrize("columns", WIDTHS)
def test_sites_are_listed_under_their_column(world: World, columns: int) -> None:
    text = see(world, columns, "site", "ls").text
    assert any(line.split()[0] == "leonardo" for line in text)
    for line in text:
        assert len(line) <= columns
        assert line[2:3] != " " or line.startswith(" " * 15)


def test_facts_are_folded_between_words(world: World) -> None:
    for words in (("show", "leonardo", "--facts"), ("diff", "jupiter", "lumi")):
        seen = see(world, 60, "site", *words)
        assert seen.status == 0
        assert "confirmed 2026-" in " ".join(seen.text)
        whole = {word for word in world.run("site", *words).stdout.split() if len(word) < 50}  # one pattern is longer
        assert whole - set(" ".join(seen.text).split()) == set()


def test_a_run_that_ended_by_itself_has_nothing_more_to_tell(world: World) -> None:
    directory = world.submit("--name", "good")
    facts: dict[str, Any] = {"over": True, "state": "COMPLETED", "exit_status": 0, "phase": "ended", "by": "script",
             "message": "the script exited with status 0", "hint": "", "quote": [], "time": 1.0, "attempt": 0}  # fmt: skip
    (directory / "status.json").write_text(json.dumps(facts))
    head, line = see(world, 120, "ls").text
    assert "WHAT" not in head
    assert "ended" not in line
    world.submit("--name", "waits")
    head, line, waits = see(world, 120, "ls").text
    assert "WHAT" in head
    assert "status 0" not in line
    assert len(waits) > head.index("WHAT")


def test_no_colour_where_none_is_wanted(world: World) -> None:
    """Colours are for a terminal that has them and a user who has not said no."""
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        seen = see(
            world,
            80,
            "submit",
            "--site",
            "local",
            "--wait",
            "--set",
            "runtime.python='/nowhere/python'",
            "job.py",
            **variables,
        )
        cells = [cell for line in seen.lines for cell in line]
        assert any(cell.colour != "default" or cell.bold for cell in cells) == coloured, variables


def test_a_state_has_its_colour_where_colours_are_wanted(world: World) -> None:
    states = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "af5f00", "PREEMPTED": "af5f00", "PENDING": "default"}
    for state in states:
        directory = world.submit("--name", state)
        if state != "PENDING":
            facts = {"over": True, "state": state, "exit_status": 1, "by": "script", "message": f"it is {state}",
                     "hint": "", "cause": "in one RUNNING line below"}  # fmt: skip
            (directory / "status.json").write_text(json.dumps(facts))
    for variables, has_colour in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        for words in (("ls",), *(("status", state) for state in states)):
            seen = see(world, 80, *words, **variables)
            cells = [cell for line in seen.lines for cell in line]
            wanted = [(state, colour) for state, colour in states.items() if state in words or words == ("ls",)]
            text = "".join(cell.text for cell in cells if cell.colour != "default")
            assert text == "".join(state for state, colour in wanted if has_colour and colour != "default"), words
            colours = list(dict.fromkeys(cell.colour for cell in cells if cell.colour != "default"))
            expected = dict.fromkeys(colour for _, colour in wanted if has_colour and colour != "default")
            assert colours == list(expected), words
    assert "\x1b" not in world.run("ls").stdout + world.run("status").stdout


def test_the_doctor_shows_problems_and_counts_the_rest(world: World) -> None:
    words = ("doctor", "--site", "local", "--image", "absent.sif")
    few = see(world, 80, *words)
    coloured = [cell for line in few.lines for cell in line if cell.colour != "default"]
    assert "".join(cell.text for cell in coloured) == "red" * sum(line.startswith("red ") for line in few.text)
    assert few.text[0].startswith("red ")
    assert not [line for line in few.text if line.startswith(("green", "n/a"))]
    summary = [line for line in few.text if " passed, " in line]
    assert len(summary) == 1
    whole = world.run(*words, "--all").stdout.splitlines()
    states = [line.split()[0] for line in whole if not line.startswith(" ")]
    assert states == sorted(states, key=["red", "yellow", "green", "n/a"].index)
    passed, other = states.count("green"), states.count("n/a")
    assert summary[0].startswith(f"{passed} checks passed, {other} not applicable here"), summary
    assert "\x1b" not in world.run(*words).stdout


@pytest.mark.parametrize("columns", [60, 120])
def test_the_terminal_breaks_no_line_about_a_run(world: World, columns: int) -> None:
    submitted = see(world, columns, "submit", "--detach", "--name", "name_of_twenty_letter", "job.py")
    assert "~/.hpcml/runs/name_of_twenty_letter-" in " ".join(submitted.text)
    for words in (["status"], ["ls"], ["cancel"], ["cancel", "--all", "--yes"]):
        seen = see(world, columns, *words)
        assert seen.text
        assert not seen.broken, words
        assert str(world.home) not in "".join(seen.text)


def test_a_path_is_whole_in_a_pipe(world: World) -> None:
    world.submit("--name", "here")
    assert f"directory  {world.runs}/here-" in world.run("status").stdout


def test_who_waits_on_a_terminal_is_told_so(world: World) -> None:
    world.submit("--name", "long")
    seen = run(
        [str(world.command), "wait", "long"], 80, world.environment, world.project, keys={"ends this command": b"\x03"}
    )
    assert seen.status == 130
    assert seen.text[0].startswith("Waiting for long-")
    assert seen.text[-1] == "Stopped waiting. The runs continue."


def test_a_shell_has_the_variables_of_the_run_s_cluster(world: World) -> None:
    directory = world.submit()
    world.set_job("101", state="RUNNING")
    with (directory / "events.jsonl").open("w") as file:
        for name in ("allocated", "driver-started"):
            facts = {"time": time.time(), "attempt": 0, "event": name, "nodes": ["n7"], "job": "101"}
            file.write(json.dumps(facts) + "\n")
    (directory / "attempts/0").mkdir(parents=True, exist_ok=True)
    (directory / "attempts/0/scheduler.json").write_text(json.dumps({"address": "tls://n7:8786", "protocol": "tls"}))
    srun = world.bin / "srun"
    srun.write_text('#!/bin/sh\necho "$DASK_SCHEDULER_ADDRESS"\n')
    srun.chmod(0o755)
    seen = see(world, 100, "shell", "last")
    assert seen.text[-1] == "tls://n7:8786", seen.text
