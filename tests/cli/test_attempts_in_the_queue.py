"""A run whose attempt has ended and whose next one waits in the queue, as the commands show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml import errors
from tests.said import says
from world import World, write_end, write_events


@pytest.fixture
def waiting(world: World) -> Path:
    """A run of which job 101 was the first attempt, and 102 waits to be the second."""
    directory = world.submit("--name", "long", "--until-done")
    attempt = directory / "attempts/0"
    attempt.mkdir(parents=True)
    (attempt / "begun").write_text("101\n")
    (attempt / "continue").write_text("{}\n")
    (directory / "job").symlink_to("101")
    (directory / "next-job").symlink_to("102")
    event = {"time": 1.0e9, "event": "allocated", "nodes": ["n1"], "job": "101", "began": 1_000_000_000}
    write_events(directory, event, {**event, "event": "torn-down", "time": 1.0e9 + 3600})
    write_end(directory, 92, state="TIMEOUT", time=1.0e9 + 3600, message="the script stopped; the next attempt follows")
    jobs = world.jobs()
    queued = {**jobs["101"], "reason": "Resources"}
    world.set_jobs({"101": {**jobs["101"], "state": "FAILED"}, "102": queued})
    return directory


def test_a_run_between_two_attempts(world: World, waiting: Path) -> None:
    """Its state is that of the job that waits; by the jobs of both it is found, and a cancellation ends it."""
    for word in ("long", "101", "102"):
        facts = world.answers("status", word)
        assert (facts["run"], facts["state"], facts["job"]) == (waiting.name, "PENDING", "102")
        assert "the next attempt waits: waiting for free" in facts["message"]
    row = next(line for line in world.run("ls").stdout.splitlines() if "long" in line)
    assert "PENDING" in row
    assert "102" in row
    (attempt,) = world.answers("report", "long")["attempts"]
    assert (attempt["exit_status"], attempt["end"] - attempt["begin"], attempt["hours"]) == (92, 3600, 1)
    world.answer("squeue", code=1, err="slurm_load_jobs error: Unable to contact slurm controller\n")
    assert (world.run("rm", "long", "--yes").returncode, waiting.exists()) == (1, True), "its next attempt may run"
    world.answer("squeue")
    done = world.run("cancel", "long")
    assert (done.returncode, done.stdout) == (0, f"{waiting.name} is being cancelled (job 102).\n"), done.stderr
    assert world.jobs()["102"]["state"] == "CANCELLED"
    facts = world.answers("status", "long")
    assert (facts["state"], facts["exit_status"]) == ("CANCELLED", errors.CANCELLED)
    assert facts["message"].startswith("the run was cancelled while its next")
    assert world.run("wait", "long").returncode == errors.CANCELLED
    assert "CANCELLED" in world.run("ls").stdout


def test_an_attempt_that_waits_for_the_one_before_was_not_requeued(world: World, waiting: Path) -> None:
    (waiting / "job").unlink()
    jobs = world.jobs()
    world.set_jobs({**jobs, "102": {**jobs["102"], "reason": "Dependency"}})
    message = says("the next attempt waits: waiting")
    assert world.answers("status", "long")["message"] == message


def test_an_attempt_before_is_told(world: World, waiting: Path) -> None:
    """By status and by why, when the next one runs."""
    (waiting / "next-job").rename(waiting / "job")
    (waiting / "attempts/0/end.json").write_text((waiting / "status.json").read_text())
    (waiting / "attempts/1").mkdir()
    with (waiting / "events.jsonl").open("a") as log:
        near = {"time": 1.0e9 + 3500, "attempt": 0, "event": "time-limit-near", "seconds": 100}
        event = {"time": 1.0e9 + 9000, "attempt": 1, "event": "allocated", "nodes": ["n2"], "job": "102"}
        log.write(f"{json.dumps(near)}\n{json.dumps(event)}\n")
    world.set_job("102", state="RUNNING")
    before = "attempt 0: job 101, on n1, 1:00:00, TIMEOUT: the script stopped; the next attempt follows"
    told = world.run("status", "long").stdout
    assert f"before     {before}\n" in told
    assert "attempt    1 of this run" in told
    (before_now,) = world.answers("status", "long")["attempts"]
    assert (before_now["number"], before_now["exit_status"], before_now["job"]) == (0, 92, "101")
    assert world.answers("why", "long")["attempts"] == [before]
    assert "time limit" not in world.answers("status", "long")["hint"], "that was the attempt before"


def test_the_log_of_one_attempt(world: World, waiting: Path) -> None:
    (waiting / "logs/script.log").write_text("first\nsecond\n")
    with (waiting / "events.jsonl").open("a") as log:
        event = {"time": 1.0e9 + 9000, "attempt": 1, "event": "allocated", "nodes": ["n2"], "job": "102", "log": 6}
        log.write(f"{json.dumps(event)}\n")
    assert [world.run("logs", "long", *words).stdout for words in ((), ("--attempt", "0"), ("--attempt", "1"))] == [
        "first\nsecond\n",
        "first\n",
        "second\n",
    ]
    missing = world.run("logs", "long", "--attempt", "2")
    assert missing.returncode == errors.NOT_FOUND
    assert "no attempt 2" in missing.stderr
    assert world.run("logs", "long", "worker", "--attempt", "1").returncode == errors.USAGE
