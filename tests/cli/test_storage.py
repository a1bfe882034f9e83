"""Disks that are full, closed or damaged: nothing half-written, and the file is named."""

from __future__ import annotations

import os
import stat
import subprocess
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
    assert "(b.py (exceeds code.max_files = 1))" in done.stderr
    assert not world.left()
    assert not world.calls("sbatch")
    world.script.write_text("import a\n")
    done = world.run(*words)
    assert done.returncode == 0, done.stderr
    assert "lacks b.py (exceeds code.max_files = 1)" in done.stderr
