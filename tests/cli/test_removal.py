"""Runs are removed when they have ended for good, whole, and with nothing that links in them lead to."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcml import errors
from hpcml.cli import cancel_rm
from hpcml.runs import directories
from planted import give, need_another_account
from tests.said import in_order
from world import World, write_end


def ended(world: World, name: str, exit_status: int = 0) -> Path:
    """Return the directory of a run that has ended."""
    directory = world.submit("--name", name)
    write_end(directory, exit_status)
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


def test_a_sweep_that_loses_points_is_named(world: World) -> None:
    request = ended(world, "a") / "request.json"
    found = json.loads(request.read_text())
    found["spec"]["sweep"] = "groups"
    request.write_text(json.dumps(found))
    done = world.run("rm", "a", "--dry-run")
    assert re.search(in_order("sweep 'groups'", "in 1"), done.stderr), done.stderr


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(world: World, answer: str, left: int) -> None:
    ended(world, "a")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run([str(world.command), "rm", "a"], env=world.environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
                          text=True, check=False, timeout=240)  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "Remove 1 run" in done.stderr
    assert done.returncode == left
    assert len(world.left()) == left


def test_by_age_and_by_failure(world: World) -> None:
    kept, failed, cancelled = ended(world, "good"), ended(world, "bad", 3), ended(world, "stopped", errors.CANCELLED)
    old = failed.with_name("old-20200101-000000-0000")
    shutil.copytree(kept, old)
    assert json.loads(world.run("rm", "--older-than", "30d", "--yes", "--json").stdout)["removed"] == [old.name]
    assert json.loads(world.run("rm", "--failed", "--older-than", "30d", "--yes", "--json").stdout)["removed"] == []
    assert [row["run"] for row in json.loads(world.run("ls", "--failed", "--json").stdout)] == [failed.name]
    assert json.loads(world.run("rm", "--failed", "--yes", "--json").stdout)["removed"] == [failed.name]
    assert world.run("rm", "--failed", "--keep", "0").stderr == "No ended run matches --failed --keep 0.\n"
    assert world.left() == sorted([kept.name, cancelled.name])


def test_by_name(world: World) -> None:
    older, newer, other = ended(world, "a"), ended(world, "a"), ended(world, "b")
    done = world.run("rm", "--dry-run", "a")
    assert f"'a' means {newer.name}, the newest run; 1 older run has this name (to remove all: --name a)" in done.stderr
    done = world.run("rm", "a", "--older-than", "1w")
    assert (done.returncode, "RUN and --older-than 1w cannot be combined" in done.stderr) == (errors.USAGE, True)
    assert json.loads(world.run("rm", "--name", "a", "--keep", "1", "--yes", "--json").stdout)["removed"] == [
        older.name
    ]
    assert json.loads(world.run("rm", "--name", "a*", "--yes", "--json").stdout)["removed"] == [newer.name]
    assert world.left() == [other.name]


@pytest.mark.parametrize("words", [[], ["--older-than", "soon"], ["last", "--failed"], ["nosuch", "--yes"]])
def test_what_is_not_clear_removes_nothing(world: World, words: list[str]) -> None:
    ended(world, "a")
    assert world.run("rm", *words).returncode in (errors.USAGE, errors.NOT_FOUND)
    assert len(world.left()) == 1


def test_an_unknown_name_keeps_no_other_run(world: World) -> None:
    ended(world, "long")
    ok = ended(world, "ok")
    done = world.run("rm", "nock", "long", "--yes")
    assert done.returncode == 1
    assert "note: There is no run 'nock'" in done.stderr
    assert "ok" not in done.stderr.replace("nock", ""), "another run is no advice for a removal"
    assert world.left() == [ok.name]
    ended(world, "ok")
    done = world.run("rm", "nock", "ok-", "--json", "--yes")
    assert (done.returncode, "begin with 'ok-'" in done.stderr) == (66, True), "which of them is meant is asked"
    assert json.loads(world.run("rm", "nock", ok.name, "--json", "--yes").stdout)["unknown"] == ["nock"]


def test_the_size_of_all_runs_and_of_the_uv_environments(world: World) -> None:
    ended(world, "a")
    assert "uv environments" not in world.run("rm", "--dry-run", "--name", "*").stderr
    made = world.runs / ".environments/key/lib/big"
    made.parent.mkdir(parents=True)
    made.write_bytes(os.urandom(3 << 20))
    hint = re.search(r"all ended runs: hpcml (.*)\.", world.run("rm", "--dry-run").stderr)
    assert hint, "the refusal names the command"
    done = world.run(*shlex.split(hint[1]))
    assert "would remove 1 run, " in done.stderr
    assert re.search(rf"3\.\d MiB in {re.escape(str(world.runs))}/\.environments", done.stderr)
    world.run("rm", "--name", "*", "--yes")
    assert made.exists()


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
    world.run("rm", "--older-than", "0s", "--yes")
    assert (moved / "plan.json").is_file()


def test_a_stranger_s_run_stays(world: World) -> None:
    need_another_account()
    directory = ended(world, "a")
    give(directory)
    assert world.run("rm", directory.name, "--yes").returncode == errors.STORAGE
    world.run("rm", "--older-than", "0s", "--yes")
    assert directory.is_dir()


def test_all_are_cancelled(world: World) -> None:
    ended(world, "done")
    world.submit("--name", "a")
    world.submit("--name", "b")
    assert world.run("cancel").returncode == errors.USAGE
    assert world.run("cancel", "--all", "a").returncode == errors.USAGE
    assert world.run("cancel", "--all").returncode == errors.USAGE
    assert world.calls("scancel") == []
    world.answer("scancel", code=1, err="scancel: error: Kill job error on job id 102: Access/permission denied\n")
    assert world.run("cancel", "--all", "--yes").returncode != 0
    assert len(world.calls("scancel")) == 2, "each is asked for"
    world.answer("scancel")
    (world.state / "calls").unlink()
    done = world.run("cancel", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert [call["arguments"] for call in world.calls("scancel")] == [["102"], ["103"]]
    assert world.run("cancel", "--all", "--yes").stderr == "No run is active.\n"


def aged(directory: Path, name: str) -> Path:
    """Copy a run that has ended to one of another date."""
    copy = directory.with_name(name)
    shutil.copytree(directory, copy)
    return copy


def test_rm_by_age_size_and_number(world: World) -> None:
    kept = ended(world, "new")
    old = [aged(kept, f"old-2020010{day}-000000-0000") for day in (1, 2, 3)]
    (old[1] / "out/large").write_bytes(b"x" * (20 << 20))

    def taken(*words: str, key: str = "removed") -> object:
        return json.loads(world.run("rm", *words, "--yes", "--json").stdout)[key]

    assert taken("--older-than", "30d", "--keep", "4") == taken("--keep", "9") == taken("--larger-than", "40M") == []
    assert taken("--older-than", "30d", "--dry-run", key="would_remove") == [run.name for run in old]
    assert all(run.is_dir() for run in old)
    assert taken("--older-than", "30d", "--larger-than", "20M") == [old[1].name]
    assert taken("--older-than", "30d", "--keep", "2") == [old[0].name]
    assert taken("--keep", "0", "--older-than", "30d") == [old[2].name]
    assert world.left() == [kept.name]


def test_rm_counts_what_runs_share_once_and_removes_it_with_the_last(world: World) -> None:
    """An older run has a file of its own, and a submission that was killed may have a link too."""
    first, second, old = (ended(world, name) for name in ("first", "second", "old"))
    library = (old / "lib.zip").read_bytes()
    (old / "lib.zip").unlink()
    (old / "lib.zip").write_bytes(library)
    (first / "out/one").write_bytes(b"x" * 300_000)
    (first / "out/two").hardlink_to(first / "out/one")
    (shared,) = world.runs.glob(".lib-*.zip")
    full = shared.stat().st_blocks * 512

    def freed(*words: str) -> int:
        answer = json.loads(world.run("rm", *words, "--yes", "--json").stdout)
        return int(answer["bytes"])

    assert 300_000 < freed("first", "--dry-run") < 600_000 < full
    assert 300_000 < freed("first") < 600_000
    assert (second / "lib.zip").samefile(shared)
    assert full < freed("--larger-than", "4M") < full + 300_000
    assert world.left() == [second.name]
    assert freed("--name", "none*") == 0
    killed = world.runs / f".b-20200101-000000-0000.{'0' * 16}.removed"
    shutil.copytree(second, killed)
    (killed / "lib.zip").unlink()
    (killed / "lib.zip").hardlink_to(shared)
    assert full > freed(second.name)
    done = world.run("rm", "--older-than", "30d", "--yes")
    assert "lib.zip of these runs" in done.stdout, done.stderr
    assert (world.left(), list(world.runs.glob(".lib-*"))) == ([], [])
    fresh = ended(world, "fresh")
    assert full < freed(fresh.name) < full + 300_000
    assert list(world.runs.glob(".lib-*")) == []


def test_rm_until_so_much_is_free(world: World, subtests: pytest.Subtests) -> None:
    kept = ended(world, "new")
    old = aged(kept, "old-20200101-000000-0000")
    waiting = world.submit("--name", "waiting")
    assert world.run("rm", "--until-free", "much").returncode == errors.USAGE
    assert json.loads(world.run("rm", "--until-free", "1M", "--yes", "--json").stdout)["removed"] == []
    done = world.run("rm", "--until-free", "99999T", "--older-than", "30d", "--yes")
    assert "cannot be freed" in done.stderr
    assert world.left() == sorted([kept.name, waiting.name])
    folders = [world.top / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_bytes(b"x" * 100_000)
    size = directories.size(folders[0])
    for missing, count in ((0, 0), (1, 1), (size, 1), (size + 1, 2), (9 * size, 3), (None, 3)):
        with subtests.test(missing=missing):
            assert list(cancel_rm._taken(folders, 0, missing)) == folders[:count]
    assert not old.exists()


def test_rm_leaves_what_may_be_alive_or_is_not_a_run(world: World) -> None:
    waiting = world.submit("--name", "waiting")
    ending = world.submit("--name", "ending")
    write_end(ending)  # and its job is there still
    unreadable = aged(ended(world, "gone"), "bad-20200101-000000-0000")
    (unreadable / "submission.json").write_text("{")
    unsaid = aged(waiting, "unsaid-20200101-000000-0000")
    (unsaid / "submission.json").unlink()
    mine = world.runs / "my-notes"
    mine.mkdir()
    (world.runs / "link-20200101-000000-0000").symlink_to(mine)
    done = world.run("rm", "--keep", "0", "--yes")
    assert done.returncode == 0, done.stderr
    assert "hpcml keeps 3 runs that may still be active" in done.stderr
    assert f"{unreadable.name} stays" in done.stderr
    left = {waiting.name, ending.name, unreadable.name, unsaid.name, mine.name, "link-20200101-000000-0000"}
    assert set(world.left()) == left
    world.answer("squeue", code=1, err="slurm_load_jobs error: Unable to contact slurm controller\n")
    done = world.run("rm", "--keep", "0", "--yes")
    assert "does not answer" in done.stderr
    assert {waiting.name, unsaid.name} <= set(world.left())


def test_rm_takes_what_a_killed_removal_left(world: World) -> None:
    directory = ended(world, "a")
    half = world.runs / f".{directory.name}.{'0' * 16}.removed"
    shutil.copytree(directory, half)
    (half / "status.json").unlink()
    (half / "out").chmod(0o500)
    new = world.runs / f".b-20200101-000000-0000.{'0' * 16}.new"  # it may be a submission that goes on
    new.mkdir()
    other = world.runs / ".a.0.removed"
    other.mkdir()
    assert half.name not in world.run("ls", "--all").stdout
    assert json.loads(world.run("ls", "--all", "--json").stdout)[0]["run"] == directory.name
    done = world.run("rm", "--older-than", "30d", "--yes")
    assert done.returncode == 0, done.stderr
    assert "leftover files of 1 interrupted command" in done.stderr
    assert set(world.left()) == {directory.name, new.name, other.name}


def test_two_removals_at_once_are_one(world: World) -> None:
    half = world.runs / f".a-20200101-000000-0000.{'0' * 16}.removed"
    for number in range(300):
        (half / f"out/{number}").mkdir(parents=True)
        (half / f"out/{number}/file").write_text("x")
    command = [str(world.command), "rm", "--older-than", "1d", "--yes"]
    both = [
        subprocess.Popen(command, env=world.environment, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [one.communicate(timeout=240)[1] and one.returncode for one in both] == [0, 0]
    assert world.left() == []


def test_what_a_killed_attempt_wrote_beside_the_code_is_not_lost_by_what_an_earlier_one_brought(world: World) -> None:
    directory = ended(world, "a")
    (directory / "code" / "first.csv").write_text("1")
    assert world.run("status", "a").returncode == 0
    assert (world.project / "first.csv").exists()
    (directory / "attempts" / "1").mkdir(parents=True)
    (directory / "code" / "second.csv").write_text("2")
    done = world.run("rm", directory.name)
    assert done.returncode == errors.USAGE, done.stderr
    assert (world.project / "second.csv").read_text() == "2"


def test_folders_within_folders_without_an_end_are_an_error_with_a_next_step(world: World) -> None:
    directory = ended(world, "a")
    here = os.open(directory / "out", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        done = world.run("rm", "a", "--yes")
        assert done.returncode == errors.STORAGE, done.stderr
        assert "rm -rf " in done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(world.runs)], check=True)
