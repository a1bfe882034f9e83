"""The verbs that act on runs which are there: wait, logs -n, help."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from hpcml import errors
from tests.said import says
from world import World, write_end


def test_wait_ends_with_the_status_of_the_last_that_failed(world: World) -> None:
    runs = [world.submit("--name", name) for name in ("a", "b", "c")]
    for directory, exit_status in zip(runs, (3, 4, 0), strict=True):
        write_end(directory, exit_status)
    done = world.run("wait", "a", "b", "c")
    assert done.returncode == 4, done.stderr
    assert [line.split()[1:3] for line in done.stdout.splitlines()] == [
        ["FAILED", "3"],
        ["FAILED", "4"],
        ["COMPLETED", "0"],
    ]
    assert world.run("wait", "c").returncode == 0
    assert [row["exit_status"] for row in json.loads(world.run("wait", "--json", "a", "c").stdout)] == [3, 0]


def test_wait_finds_all_runs_before_it_waits(world: World) -> None:
    world.submit("--name", "a")  # which waits in the queue for ever
    done = world.run("wait", "a", "nosuch", timeout=120)
    assert done.returncode == errors.NOT_FOUND


def test_the_last_lines_of_a_log(world: World) -> None:
    directory = world.submit()
    write_end(directory)
    log = directory / "logs/script.log"
    for text in ("", "one\n\ntwo", "x" * 70000 + "\n" + "y" * 70000 + "\nz\n"):
        log.write_text(text)
        for count in (0, 2, 99):
            lines = text.splitlines(keepends=True)
            assert world.run("logs", "-n", str(count)).stdout == "".join(lines[-count:] if count else [])
    assert world.run("logs", "-n", "few").returncode == errors.USAGE


def test_ls_by_name_date_and_failure(world: World) -> None:
    good, bad = world.submit("--name", "good"), world.submit("--name", "bad-one")
    write_end(good)
    write_end(bad, 3)
    old = bad.with_name("bad-one-20200102-000000-0000")
    shutil.copytree(bad, old)
    waiting = world.submit("--name", "waiting")
    said = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n"
    world.answer("sbatch", code=1, err=said)
    assert world.run("submit", "--site", "slurm", "--name", "refused", str(world.script)).returncode
    refused = next(name for name in world.left() if name.startswith("refused"))

    def listed(*words: str) -> list[str]:
        return [row["run"] for row in world.answers("ls", *words)]

    assert "account rejected" in world.run("ls", "--name", "refused").stdout
    assert listed("--failed", "--last", "2") == [bad.name, refused]
    assert listed("--failed", "--since", "7d", "--name", "bad*") == [bad.name]
    assert listed("--since", "2020-01-03") == [good.name, bad.name, waiting.name, refused]
    assert listed("--name", "bad-one.py") == [old.name, bad.name]
    assert "hpcml did not search for older runs" in world.run("ls", "--failed", "--last", "1").stderr
    assert "3 older runs are not shown (hpcml ls --all)." in world.run("ls", "--name", "*d*", "--last", "1").stderr
    assert world.run("ls", "--name", "*d*", "--last", "3").stderr == "1 older run is not shown (hpcml ls --all).\n"
    assert world.run("ls", "--name", "bad").stderr == "No run matches --name bad. Did you mean --name bad-one?\n"
    assert json.loads(world.run("why", "--json").stdout)["run"] == refused
    assert json.loads(world.run("status", "--json").stdout)["run"] == waiting.name
    assert world.run("ls", "--since", "yesterday").returncode == errors.USAGE


def test_status_shows_the_command_the_request_and_the_results(world: World) -> None:
    directory = world.submit("--nodes", "2", "--time", "1:00:00", "--set", "cost.weights.node=3")
    lines = [line.split(maxsplit=1) for line in world.run("status").stdout.splitlines()]
    facts = dict(lines)
    assert facts["command"] == world.script.name
    asked = f"2 nodes, time limit 01:00:00, at most 2 node-h = 6 billing-h, Python {sys.executable} (hpcml's own)"
    assert facts["asked"] == asked
    assert "results" not in facts
    (directory / "out/model.txt").touch()
    assert f"results    {directory}/out" in world.run("status").stdout.splitlines()
    answer = world.answers("status")
    python = {"python": sys.executable, "python_from": "hpcml's own"}
    assert answer["asked"] == {"nodes": 2, "time_limit": 3600, "cost": "2 node-h = 6 billing-h", **python}
    assert answer["results"] == f"{directory}/out"
    code = "import hpcml, json; print(json.dumps(vars(hpcml.find_run().status())))"
    there = subprocess.run([sys.executable, "-c", code], env=world.environment, stdout=subprocess.PIPE, check=True)
    assert json.loads(there.stdout) == answer


QUOTE = "import hpcml, json; print(json.dumps(hpcml.find_run().status().quote))"
LATE = """\
  File "fit.py", line 3, in <module>
KeyError: 'price'
"""


@pytest.mark.parametrize("attempt_before", ["", "ValueError: of attempt 1\n"])
def test_lines_that_reach_the_log_after_the_end_are_quoted(world: World, attempt_before: str) -> None:
    """As srun writes a script's last lines: the supervisor has recorded the end then, without them."""
    directory = world.submit()
    log = directory / "logs/script.log"
    log.write_text(f"{attempt_before}Traceback (most recent call last):\n")
    begin = len(attempt_before)
    write_end(directory, 1, quote=["Traceback (most recent call last):"], log_begin=begin)
    with log.open("a") as file:
        file.write(LATE)
    quoted = ["Traceback (most recent call last):", *LATE.splitlines()]
    assert world.answers("status")["quote"] == quoted
    shown = world.run("status").stdout.splitlines()
    assert [line.removeprefix("  | ") for line in shown if line.startswith("  | ")] == quoted
    assert "KeyError: 'price'" in json.dumps(world.answers("why", directory.name))
    there = subprocess.run([sys.executable, "-c", QUOTE], env=world.environment, stdout=subprocess.PIPE, check=True)
    assert json.loads(there.stdout) == quoted
    log.unlink()
    assert world.answers("status")["quote"] == quoted[:1]


def test_status_prints_one_value(world: World, subtests: pytest.Subtests) -> None:
    directory = world.submit("--nodes", "2", "--name", "a")
    write_end(directory, 3)
    for field, printed in (
        ("directory", str(directory)), ("exit_status", "3"), ("asked.nodes", "2"), ("notes", None), ("results", ""),
    ):  # fmt: skip
        with subtests.test(field=field):
            done = world.run("status", "a", "--field", field)
            assert done.returncode == 0, done.stderr
            assert printed is None or done.stdout == f"{printed}\n"
    for words in (
        ("--field", "directry"),
        ("--field", "run.x"),
        ("--field", "run", "--json"),
        ("--field", "run", "-f"),
    ):
        with subtests.test(words=words):
            done = world.run("status", "a", *words)
            assert (done.returncode, done.stdout if "--json" not in words else "") == (errors.USAGE, "")
    assert "directory?" in world.run("status", "a", "--field", "directry").stderr


def test_ls_finds_a_text_in_ids_and_commands(world: World) -> None:
    done = world.run("ls", "--site", "slurm")
    assert (done.stdout, done.stderr) == ("", says("yet. Submit a run: hpcml submit SCRIPT"))
    runs = [world.submit("--name", name) for name in ("Alpha", "beta", "gamma")]
    for text, found in (("ALPHA", runs[:1]), (world.script.name.upper(), runs), ("job.py -", [])):
        rows = world.answers("ls", "--grep", text)
        assert [row["directory"] for row in rows] == list(map(str, found))


def test_status_of_a_failed_run_begins_with_what_shows_the_cause(world: World) -> None:
    """The quoted lines are below the cause, above all that is known of the run besides."""
    directory = world.submit()
    write_end(directory, 1, cause="KeyError in fit.py:3", quote=["KeyError: 'price'"], hint="See the log.")
    lines = world.run("status", directory.name).stdout.splitlines()
    keys = [line.split()[0] for line in lines]
    assert keys[:3] == ["run", "site", "state"]
    assert keys.index("|") < keys.index("command")
    assert lines[keys.index("|")] == "  | KeyError: 'price'"
