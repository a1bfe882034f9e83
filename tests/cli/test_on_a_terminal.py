"""What a person sees on terminals of 60, 80 and 120 columns: no word is broken, colours only where they are wanted."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("pyte", reason="pyte, which draws the terminal, is not installed here")

from screen import Result, run
from world import World, write_end, write_events


def see(world: World, columns: int, *words: str, **variables: str) -> Result:
    return run([str(world.command), *words], columns, {**world.environment, **variables}, world.project)


@pytest.mark.parametrize("columns", [60, 120])
def test_an_error_is_folded_between_words(world: World, columns: int) -> None:
    (world.project / "absent.py").write_text("import sklaern\n")
    text = see(world, columns, "submit", "--site", "local", "absent.py").text
    sentence = "The script imports 'sklaern', which the run's environment lacks (absent.py:1)."
    assert sentence in " ".join(text)
    assert all(len(line) <= columns for line in text)


def test_what_is_quoted_stays_as_it_is(world: World) -> None:
    """The mark below the fault stands where it stood."""
    (world.project / "typo.py").write_text("import hpcml\nclient  =  hpcml.connect(\n")
    text = see(world, 60, "submit", "--site", "local", "typo.py").text
    assert "  | client  =  hpcml.connect(" in text
    assert f"  | {'^':>25}" in text


def test_a_state_has_its_colour_where_colours_are_wanted(world: World) -> None:
    states = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "af5f00", "PREEMPTED": "af5f00", "PENDING": "default"}
    for state in states:
        directory = world.submit("--name", state)
        if state != "PENDING":
            write_end(directory, 1, state=state, message=f"it is {state}", cause="in one RUNNING line below")
    for variables, has_colour in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        cells = [cell for line in see(world, 80, "ls", **variables).lines for cell in line if cell.colour != "default"]
        wanted = {state: colour for state, colour in states.items() if has_colour and colour != "default"}
        assert "".join(cell.text for cell in cells) == "".join(wanted)
        assert list(dict.fromkeys(cell.colour for cell in cells)) == list(dict.fromkeys(wanted.values()))
    assert "\x1b" not in world.run("ls").stdout


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


def test_the_terminal_breaks_no_line_about_a_run(world: World) -> None:
    submitted = see(world, 60, "submit", "--detach", "--name", "name_of_twenty_letter", "job.py")
    assert "~/.hpcml/runs/name_of_twenty_letter-" in " ".join(submitted.text)
    for words in (["status"], ["ls"], ["cancel"], ["cancel", "--all", "--yes"]):
        seen = see(world, 60, *words)
        assert seen.text
        assert not seen.broken, words
        assert str(world.home) not in "".join(seen.text)


def test_what_an_ended_run_has_is_not_broken(world: World) -> None:
    """The report's path goes to a line of its own; columns of rm stay aligned, and the folder goes below them."""
    directory = world.submit("--name", "name_of_six")
    write_end(directory, 1, state="FAILED", message="it failed", cause="a cause")
    (directory / "report.html").write_text("<p>report")
    status = see(world, 60, "status")
    assert (status.broken, any(line.endswith("/report.html") for line in status.text)) == ([], True)
    world.set_job("101", state="FAILED")
    words = [str(world.command), "rm", "--failed"]
    head, row, folder, *_ = run(words, 80, world.environment, world.project, keys={"Remove 1 run": b"n\n"}).text
    assert row.endswith("B")
    assert len(row) == head.index("SIZE") + len("SIZE")
    assert folder.strip().endswith(directory.name)
    assert see(world, 60, "image", "ls").text[0].endswith(" in")  # the folder is whole below


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
    now = {"time": time.time(), "nodes": ["n7"], "job": "101"}
    write_events(directory, {"event": "allocated", **now}, {"event": "script-started", **now})
    (directory / "attempts/0").mkdir(parents=True, exist_ok=True)
    (directory / "attempts/0/scheduler.json").write_text(json.dumps({"address": "tls://n7:8786", "protocol": "tls"}))
    srun = world.bin / "srun"
    srun.write_text('#!/bin/sh\necho "$DASK_SCHEDULER_ADDRESS"\n')
    srun.chmod(0o755)
    seen = see(world, 100, "shell", "last")
    assert seen.text[-1] == "tls://n7:8786", seen.text


def test_a_shell_of_a_run_without_dask_is_on_the_node_of_a_rank(world: World) -> None:
    directory = world.submit("--ranks", "2", "--nodes", "2")
    refused = see(world, 200, "shell", "last")
    assert (refused.status, "no nodes yet" in refused.text[0]) == (66, True)
    world.set_job("101", state="RUNNING")
    now = {"time": time.time(), "nodes": ["n7", "n8"], "job": "101"}
    write_events(directory, {"event": "allocated", **now}, {"event": "script-started", **now})
    (directory / "attempts/0").mkdir(parents=True, exist_ok=True)
    srun = world.bin / "srun"
    srun.write_text('#!/bin/sh\necho "$2 $HPCML_RUN_DIR"\n')
    srun.chmod(0o755)
    for word, node in (("", "n7"), ("n8", "n8"), ("rank:1", "n7"), ("rank:2", "n8")):
        assert see(world, 200, "shell", "last", word).text[-1] == f"--nodelist={node} {directory}"
    for word, hint in (("rank:4", "0 to 3"), ("n9", "n7, n8")):
        refused = see(world, 200, "shell", "last", word)
        assert (refused.status, hint in " ".join(refused.text)) == (64, True), refused.text


def test_a_shell_of_a_run_in_an_image_is_inside(world: World) -> None:
    directory = world.submit("--ranks", "1")
    plan = json.loads((directory / "plan.json").read_text())
    plan["inside"]["job"]["image"] = "/i.sif"
    entry = {"entry": ["enter", "--home", "/none", "--pwd", "/none"]}
    (directory / "plan.json").write_text(json.dumps(plan | entry))
    world.set_job("101", state="RUNNING")
    write_events(directory, {"event": "allocated", "time": time.time(), "nodes": ["n7"], "job": "101"})
    (directory / "attempts/0").mkdir(parents=True, exist_ok=True)
    srun = world.bin / "srun"
    srun.write_text('#!/bin/sh\nshift 8\necho "$@"\n')
    srun.chmod(0o755)
    shown = see(world, 300, "shell", "last").text[-1]
    assert f"enter --home {world.home} --pwd {world.home} /i.sif /bin/sh -c" in shown
