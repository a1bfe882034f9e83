"""``--after``: what Slurm is asked for, what is refused, and what the waiting run says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml import errors
from test_prepare import prepare
from world import World, write_end


def directives(directory: Path) -> dict[str, str]:
    lines = (directory / "job.sh").read_text().splitlines()
    return dict(line.removeprefix("#SBATCH ").partition("=")[::2] for line in lines if line.startswith("#SBATCH "))


def test_runs_by_name_id_and_job_become_slurm_s_dependency(world: World) -> None:
    first, second, third = (world.submit("--name", name) for name in ("first", "second", "third"))
    waiting = world.submit(
        "--after", "first", "--after", f"{second.name}:any", "--after", "103:fail", "--dependency", "afterok:7"
    )
    asked = directives(waiting)
    assert asked["--dependency"] == "afterok:7,afterok:101,afterany:102,afternotok:103"
    assert asked["--kill-on-invalid-dep"] == "yes"
    assert "--kill-on-invalid-dep" not in directives(first)
    world.set_job("104", reason="Dependency")
    ends = f"{first.name} to succeed and for {second.name} to end and for {third.name} to fail"
    facts = world.answers("status", waiting.name)
    assert (facts["state"], facts["message"]) == ("PENDING", f"waiting for {ends}")
    world.set_job("104", reason="Resources")
    assert world.answers("status", waiting.name)["message"] == "waiting for free nodes"
    line, prepared = prepare(world, "--after", "first", "job.py")
    assert directives(prepared)["--dependency"] == "afterok:101", line


def test_a_run_that_has_ended_is_judged_by_its_own_record(world: World, subtests: pytest.Subtests) -> None:
    for name, exit_status in (("well", 0), ("badly", 3)):
        write_end(world.submit("--name", name), exit_status)
    world.forget()  # Slurm has forgotten them
    for word in ("well", "well:any", "badly:any", "badly:fail"):
        with subtests.test(word=word):
            run = world.submit("--after", word)
            assert "--dependency" not in directives(run)
            assert "--kill-on-invalid-dep" not in directives(run)
    for word, ended in (("well:fail", "that run succeeded"), ("badly", "that run exited with status 3")):
        with subtests.test(word=word):
            before = world.left()
            done = world.run("submit", "--site", "slurm", "--after", word, "job.py")
            assert (done.returncode, world.left()) == (errors.REFUSED, before), done.stderr
            assert ended in done.stderr


def test_what_cannot_be_waited_for_is_one_sentence(world: World, subtests: pytest.Subtests) -> None:
    world.submit("--name", "there")
    world.submit("--name", "goes-on", "--until-done")
    line, _ = prepare(world, "--name", "prepared", "job.py")
    world.answer("sbatch", code=1, err="sbatch: error: Batch job submission failed: invalid partition specified")
    assert world.run("submit", "--site", "slurm", "--name", "refused", "job.py").returncode == errors.REFUSED
    world.answer("sbatch")
    left = world.left()
    for words, code, said in (
        (("nosuch",), errors.NOT_FOUND, "There is no run 'nosuch'"),
        (("prepared",), errors.NOT_FOUND, line),
        (("refused",), errors.REFUSED, "never ran: Slurm refused it"),
        (("there:never",), errors.USAGE, "'there:never' does not name a run"),
        (
            ("there", "--dependency", "afterok:1?afterok:2"),
            errors.USAGE,
            "Remove --after",
        ),
        (("there", "--site", "local"), errors.REFUSED, "cannot wait for there-"),
        (("goes-on",), errors.REFUSED, "continues in several jobs"),
    ):
        with subtests.test(words=words):
            done = world.run("submit", "--site", "slurm", "--after", *words, "job.py")
            assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
            assert said in done.stderr.replace("\n", " "), done.stderr
            assert world.left() == left


def test_a_run_that_slurm_dropped_says_for_what_it_waited(world: World, subtests: pytest.Subtests) -> None:
    first = world.submit("--name", "first")
    waiting = world.submit("--name", "waiting", "--after", "first")
    write_end(first, 3)
    for forgotten in (False, True):
        with subtests.test(forgotten=forgotten):
            if forgotten:
                world.forget()
            else:
                world.set_job("102", state="CANCELLED")
            facts = world.answers("status", waiting.name)
            assert (facts["state"], facts["exit_status"]) == ("CANCELLED", errors.CANCELLED)
            said = f"the run never started: it waited for {first.name} to succeed, and that run exited with status 3"
            assert facts["message"] == said
            why = world.answers("why", "waiting")
            assert (why["failed"], why["rule"], why["cause"]) == (True, "dependency", said)
            assert first.name in why["next_step"]


def test_the_same_again_waits_for_nobody_unless_that_is_said(world: World) -> None:
    first = world.submit("--name", "first")
    world.submit("--name", "waiting", "--after", "first")
    again = world.made("rerun", "waiting")
    assert "--dependency" not in directives(again)
    assert directives(world.made("rerun", again.name, "--after", first.name))["--dependency"] == "afterok:101"
