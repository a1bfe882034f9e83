"""Runs are removed when they have ended for good, whole, and with nothing that links in them lead to."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcml import errors
from planted import give, need_another_account
from test_verbs import end
from world import World


def ended(world: World, name: str, exit_status: int = 0) -> Path:
    """Return the directory of a run that has ended."""
    directory = world.submit("--name", name)
    end(directory, exit_status)
    (job,) = [key for key, facts in world.jobs().items() if facts["script"] == str(directory / "job.sh")]
    world.set_job(job, state="COMPLETED")
    return directory


def test_nothing_goes_without_a_yes(world: World) -> None:
    directory = ended(world, "a")
    done = world.run("rm", "a")
    assert done.returncode == errors.USAGE
    assert "--yes" in done.stderr
    assert directory.name in done.stdout
    assert "KiB" in done.stdout or "MiB" in done.stdout
    assert directory.is_dir()
    done = world.run("rm", "a", "--yes")
    assert (done.returncode, world.left()) == (0, []), done.stderr
    assert world.run("rm", "a").returncode == errors.NOT_FOUND


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(world: World, answer: str, left: int) -> None:
    ended(world, "a")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run([str(world.command), "rm", "a"], env=world.environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
                          text=True, check=False, timeout=60)  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "Remove 1 run" in done.stderr
    assert done.returncode == left
    assert len(world.left()) == left


def test_a_run_that_may_be_alive_stays(world: World) -> None:
    waiting = world.submit("--name", "waiting")
    ending = world.submit("--name", "ending")
    end(ending)  # and its job is there still
    ended(world, "gone")
    done = world.run("rm", "waiting", "ending", "gone", "--yes")
    assert done.returncode == 1
    assert done.stderr.count("stays, because it may still be going on") == 2
    assert done.stderr.splitlines()[-1].startswith("Removed 1 run, ")
    assert done.stderr.splitlines()[-1].endswith("; 2 runs stay.")
    assert world.left() == sorted([waiting.name, ending.name])
    world.answer("squeue", code=1, err="slurm_load_jobs error: Unable to contact slurm controller\n")
    done = world.run("rm", "waiting", "--yes")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "Nothing was removed."
    assert "Removed" not in done.stderr
    assert world.run("rm", "--failed", "--yes").returncode == 0
    assert waiting.is_dir()


def test_by_age_and_by_failure(world: World) -> None:
    kept, failed = ended(world, "good"), ended(world, "bad", 3)
    old = failed.with_name("old-20200101-000000-0000")
    shutil.copytree(kept, old)
    assert json.loads(world.run("rm", "--older", "30d", "--yes", "--json").stdout)["removed"] == [old.name]
    assert json.loads(world.run("rm", "--failed", "--older", "30d", "--yes", "--json").stdout)["removed"] == []
    assert json.loads(world.run("rm", "--failed", "--yes", "--json").stdout)["removed"] == [failed.name]
    assert world.left() == [kept.name]


@pytest.mark.parametrize("words", [[], ["--older", "soon"], ["last", "--failed"], ["nosuch", "--yes"]])
def test_what_is_not_clear_removes_nothing(world: World, words: list[str]) -> None:
    ended(world, "a")
    assert world.run("rm", *words).returncode in (errors.USAGE, errors.NOT_FOUND)
    assert len(world.left()) == 1


def test_links_are_not_followed_and_closed_folders_go(world: World) -> None:
    directory = ended(world, "a")
    mine = world.top / "mine"
    (mine / "folder").mkdir(parents=True)
    (mine / "folder/file").write_text("keep")
    (directory / "out/link").symlink_to(mine)
    (directory / "out/file").symlink_to(mine / "folder/file")
    closed = directory / "out/closed"
    closed.mkdir()
    (closed / "file").write_text("x")
    closed.chmod(0o500)
    assert world.run("rm", "a", "--yes").returncode == 0
    assert world.left() == []
    assert (mine / "folder/file").read_text() == "keep"


def test_a_link_in_the_place_of_a_run_is_not_one(world: World) -> None:
    directory = ended(world, "a")
    moved = world.top / "moved"
    directory.rename(moved)
    directory.symlink_to(moved)
    assert world.run("rm", directory.name, "--yes").returncode == errors.STORAGE
    world.run("rm", "--older", "0s", "--yes")
    assert (moved / "plan.json").is_file()


def test_a_stranger_s_run_stays(world: World) -> None:
    need_another_account()
    directory = ended(world, "a")
    give(directory)
    assert world.run("rm", directory.name, "--yes").returncode == errors.STORAGE
    world.run("rm", "--older", "0s", "--yes")
    assert directory.is_dir()


def test_all_are_cancelled(world: World) -> None:
    ended(world, "done")
    world.submit("--name", "a")
    world.submit("--name", "b")
    assert world.run("cancel").returncode == errors.USAGE
    assert world.run("cancel", "--all", "a").returncode == errors.USAGE
    assert world.run("cancel", "--all").returncode == errors.USAGE
    assert world.calls("scancel") == []
    done = world.run("cancel", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert [call["arguments"] for call in world.calls("scancel")] == [["102"], ["103"]]
    assert world.run("cancel", "--all", "--yes").stderr == "No run is going on.\n"
