"""Runs that another account planted, and records with hostile files: passed over or named, never obeyed, never waited for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import planted
from hpcml import errors, subprocesses
from world import World, write_end

FILES = ("submission.json", "plan.json", "status.json", "events.jsonl")


def plant(world: World, name: str, **submission: object) -> Path:
    """Put a run of another account into the runs folder, with the files of a real one."""
    source = world.runs / next(one for one in world.left() if one.startswith("job-"))
    target = world.runs / name
    shutil.copytree(source, target, symlinks=True)
    facts = json.loads((target / "submission.json").read_text()) | submission
    (target / "submission.json").write_text(json.dumps(facts))
    planted.give(target)
    return target


def test_a_run_of_another_account_is_nobody_s(world: World) -> None:
    planted.need_another_account()
    own = world.submit()
    planted.open_to_all(world.runs)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        pid = {"slurm": False, "job": "", "pid": sleeper.pid, "started": subprocesses.start_time(sleeper.pid)}
        plant(world, "evil-20990101-000000-0000", **pid)
        plant(world, "zed-20990101-000000-0001", job="1")
        (world.runs / "zed-20990101-000000-0001" / ".submission.json.new").symlink_to(world.script)
        link = world.runs / "link-20990101-000000-0002"
        link.symlink_to(world.runs / "evil-20990101-000000-0000")
        os.chown(link, planted.STRANGER, planted.STRANGER, follow_symlinks=False)
        (world.runs / f"x{planted.ESCAPES.strip()}-20990101-000000-0003".replace("/", "")).mkdir()
        rows = json.loads(world.run("ls", "--json").stdout)
        assert [row["run"] for row in rows] == [own.name]
        assert world.run("ls").stdout.count("2099") == 0
        assert own.name in world.run("status", "last").stdout
        for word in ("evil", "zed", "link", "evil-20990101-000000-0000", "zed-2", "link-20990101-000000-0002"):
            for command in ("status", "logs", "cancel", "tunnel", "interconnect"):
                done = world.run(command, word)
                assert done.returncode in (errors.NOT_FOUND, errors.USAGE), (command, word, done.stdout, done.stderr)
                assert planted.is_plain(done.stdout + done.stderr)
        done = world.run("cancel", "last")
        assert own.name in done.stdout, done.stderr
        assert sleeper.poll() is None, "nobody's word ends a process of the user's"
        assert world.script.read_text() == "print('hello')\n"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_hostile_files_of_a_run_keep_no_other_from_being_shown(world: World) -> None:
    good = world.submit()
    damaged: list[tuple[Path, str, str]] = []
    for name in FILES:
        for make in planted.HOSTILE:
            copy = world.runs / f"bad-20261121-0000{len(damaged):02d}-0000"
            shutil.copytree(good, copy)
            planted.put(copy / name, make)
            damaged.append((copy, name, make.__name__))
    last = world.submit()
    done = world.run("ls", "--all", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["run"]: row for row in json.loads(done.stdout)}
    assert rows[good.name]["state"] == rows[last.name]["state"] == "PENDING"
    assert len(rows) == len(damaged) + 2
    done = world.run("ls", "--all")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(rows) + 1, "no row more than there are runs"
    assert planted.is_plain(done.stdout)
    for copy, name, kind in damaged[: 2 * len(planted.HOSTILE)] + damaged[3 * len(planted.HOSTILE) :: 3]:
        done = world.run("status", copy.name)
        assert done.returncode in (0, errors.STORAGE), (name, kind, done.stderr)
        assert planted.is_plain(done.stdout + done.stderr), (name, kind)
        if kind != "escapes" and (name, kind) != ("plan.json", "kinds"):
            assert done.returncode == errors.STORAGE, (name, kind, done.stdout)
            assert str(copy) in done.stderr


@pytest.mark.parametrize("make", [planted.pipe, planted.endless])
def test_a_log_that_is_no_file(world: World, make: object) -> None:
    directory = world.submit()
    planted.put(directory / "logs" / "script.log", make)
    done = world.run("logs", "last")
    assert done.returncode in (errors.STORAGE, errors.NOT_FOUND), done.stdout
    assert "script" in done.stderr


def runs_in(place: Path) -> str:
    """Return the setting of a folder for runs."""
    return f"paths.runs={place}".replace("$", "$$")


def test_a_folder_for_runs_that_others_could_replace(world: World) -> None:
    planted.need_another_account()
    above = world.top / "shared"
    for mode, uid, gid, status, says in (
        (0o755, planted.STRANGER, 0, errors.STORAGE, f"belongs to uid {planted.STRANGER}"),
        (0o777, 0, 0, errors.STORAGE, "Every user can replace"),
        (0o2770, 0, planted.STRANGER, 0, f"note: group gid {planted.STRANGER} can replace runs"),
        (0o1777, 0, 0, 0, ""),
    ):
        for place in (above / "runs", above / "not" / "yet"):
            above.mkdir()
            os.chown(above, uid, gid)
            above.chmod(mode)
            done = world.run("submit", "--site", "slurm", "--set", runs_in(place), "job.py")
            assert done.returncode == status, (mode, uid, done.stderr)
            assert says in done.stderr
            assert says or "can replace" not in done.stderr
            if status:
                assert list(above.iterdir()) == []
            shutil.rmtree(above)
    assert len(world.calls("sbatch")) == 4, "two folders that are not refused, each at two places"
    above.mkdir()
    os.chown(above, planted.STRANGER, 0)
    trust = f'paths.trust=["uid {planted.STRANGER}"]'
    done = world.run("submit", "--site", "slurm", "--set", runs_in(above / "runs"), "--set", trust, "job.py")
    assert done.returncode == 0, done.stderr
    assert "can replace" not in done.stderr


def test_a_run_that_was_replaced_while_it_waited(world: World) -> None:
    planted.need_another_account()
    directory = world.submit()
    script = world.top / "slurm-s-own-copy"
    shutil.copy(directory / "job.sh", script)
    aside = directory.with_name("aside")
    directory.rename(aside)
    owned = world.top / "owned"
    for make in ("folder", "link", "stranger-s-link", "nothing"):
        if make == "folder":
            directory.mkdir()
            (directory / "step.sh").write_text(f"touch '{owned}'\n")
            planted.give(directory)
        elif make != "nothing":
            directory.symlink_to(aside)
            os.chown(directory, planted.STRANGER if make == "stranger-s-link" else 0, 0, follow_symlinks=False)
        done = subprocess.run(["bash", script], env=world.environment, check=False, capture_output=True, text=True)
        assert done.returncode == errors.STORAGE, (make, done.stderr)
        assert "missing, or not yours" in done.stderr
        assert not owned.exists()
        if directory.is_symlink():
            directory.unlink()
        elif directory.exists():
            shutil.rmtree(directory)


def test_a_log_drives_no_terminal(world: World) -> None:
    directory = world.submit()
    text = f"hello {planted.ESCAPES} bye\n".encode() + b"\xff\x9b5n\n"
    (directory / "logs" / "script.log").write_bytes(text)
    write_end(directory)  # so that what follows it ends
    for verb in ("logs last", "logs -f last"):
        words = f"TERM=xterm {world.command} {verb}"
        shown = subprocess.run(["script", "-qec", words.replace("'", "'\\''"), "/dev/null"], cwd=world.project, check=True, capture_output=True,
                               env={**world.environment, "PATH": os.environ["PATH"], "SHELL": "/bin/sh"}, timeout=240)  # fmt: skip
        assert b"hello \\x1b[2J\\x1b]0;owned\\x07" in shown.stdout, verb
        assert b"\x1b" not in shown.stdout, verb
        assert "\u202e".encode() not in shown.stdout, verb
    plain = subprocess.run([str(world.command), "logs", "last"], env=world.environment, cwd=world.project, check=True,
                           capture_output=True)  # fmt: skip
    assert plain.stdout == text, "a pipe gets every byte"
