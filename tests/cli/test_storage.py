"""Disks that are full, closed or damaged: nothing half-written, and the file is named."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml import errors
from world import World


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, less than a run's directory takes."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root, with mount, can make a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(world: World, tiny_disk: Path) -> None:
    done = world.run("submit", "--site", "slurm", "--set", f"paths.runs={tiny_disk}", "job.py")
    assert done.returncode == errors.STORAGE
    assert "The file system is full" in done.stderr
    assert list(tiny_disk.iterdir()) == []
    assert world.calls("sbatch") == []


def test_a_limit_on_files(world: World) -> None:
    done = world.run("submit", "--site", "slurm", "job.py",
                     before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))  # fmt: skip
    assert done.returncode == errors.STORAGE, done.stderr
    assert "File too large" in done.stderr
    assert world.left() == []


@pytest.mark.parametrize("set_group", [False, True])
def test_results_keep_the_group_of_the_folder_for_runs(world: World, *, set_group: bool) -> None:
    world.runs.mkdir(parents=True)
    world.runs.chmod(0o2700 if set_group else 0o700)
    run = world.submit()
    assert bool((run / "out").stat().st_mode & stat.S_ISGID) == set_group
    assert bool(run.stat().st_mode & stat.S_ISGID) == set_group


def test_code_whose_modules_would_not_be_in_its_copy_is_refused(world: World) -> None:
    world.script.write_text("import b\n")
    for name in ("a", "b"):
        (world.project / f"{name}.py").write_text("")
    words = ["submit", "--site", "slurm", "--set", "code.snapshot=script", "--set", "code.max_files=1", "job.py"]
    done = world.run(*words)
    assert done.returncode == errors.USAGE, done.stderr
    assert "The copy of the code would lack required files (b.py (exceeds code.max_files = 1))" in done.stderr
    assert not world.left()
    assert not world.calls("sbatch")
    world.script.write_text("import a\n")
    done = world.run(*words)
    assert done.returncode == 0, done.stderr
    assert "the run's copy of the code lacks b.py (exceeds code.max_files = 1)" in done.stderr


def test_the_folder_for_runs_is_a_file(world: World) -> None:
    world.runs.parent.mkdir()
    world.runs.write_text("")
    done = world.run("submit", "--site", "slurm", "job.py")
    assert done.returncode == errors.STORAGE
    assert str(world.runs) in done.stderr
    for command in (["ls"], ["status"], ["logs"]):
        assert world.run(*command).returncode == errors.STORAGE


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that all may enter; pytest's own is closed again whenever another pytest of the same user starts."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def test_what_only_others_may_read(open_place: Path, hpcml_command: Path) -> None:
    """Root may read anything, so the refusal is asked for as nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    world = World(open_place, hpcml_command)
    for path in (world.top, world.home, world.project, world.state):
        os.chown(path, 65534, 65534)
    world.script.chmod(0o600)

    def nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    try:
        reachable = world.run("--version", before=nobody).returncode == 0
    except PermissionError:  # the checkout lies in a folder that others may not enter
        reachable = False
    if not reachable:
        pytest.skip("nobody cannot run the Python of this environment")
    done = world.run("submit", "--site", "slurm", "job.py", before=nobody)
    assert done.returncode == errors.NOT_FOUND, done.stderr
    assert "cannot be read: Permission denied" in done.stderr
    world.script.chmod(0o644)
    (world.project / "hpcml.toml").touch(mode=0o600)
    done = world.run("submit", "--site", "slurm", "job.py", before=nobody)
    assert done.returncode == errors.CONFIG
    assert "hpcml.toml" in done.stderr
    (world.project / "hpcml.toml").unlink()
    world.runs.mkdir(parents=True, mode=0o755)
    done = world.run("submit", "--site", "slurm", "job.py", before=nobody)
    assert done.returncode == errors.STORAGE
    assert "Permission denied" in done.stderr
    assert world.left() == []


DAMAGED = [
    (name, text)
    for name in ("plan.json", "submission.json", "status.json")
    for text in ("", "{", "[]", "null", "\xff", '{"a": 1')
]
LACKING = [("status.json", "{}"), ("submission.json", '{"pid": "x"}'), ("plan.json", '{"inside": 3}'), ("events.jsonl", "garbage\n"),
           ("events.jsonl", '{"event": "allocated"}\n')]  # fmt: skip


def test_a_damaged_record_is_named(world: World, subtests: pytest.Subtests) -> None:
    good = world.submit()
    copies = [good.with_name(f"job-20260101-0000{number:02d}-0000") for number in range(len(DAMAGED) + len(LACKING))]
    for copy, (name, text) in zip(copies, DAMAGED + LACKING, strict=True):
        shutil.copytree(good, copy, symlinks=True)
        (copy / name).write_text(text, encoding="latin-1")
    for copy, (name, text) in zip(copies, DAMAGED + LACKING, strict=True):
        with subtests.test(name=name, text=text):
            for command in ("status", "cancel") if (name, text) in DAMAGED else ("status",):
                done = world.run(command, copy.name)
                assert done.returncode == errors.STORAGE, (command, done.stdout, done.stderr)
                assert str(copy / name if (name, text) in DAMAGED else copy) in done.stderr
                assert "Traceback" not in done.stderr
    rows = json.loads(world.run("ls", "--all", "--json").stdout)
    assert {row["run"]: row["state"] for row in rows if row["run"] in {good.name, *(copy.name for copy in copies[: len(DAMAGED)])}} == {
        good.name: "PENDING", **{copy.name: "UNKNOWN" for copy in copies[: len(DAMAGED)]}
    }, "the others are shown nevertheless"  # fmt: skip
    assert len(rows) == 1 + len(copies)
