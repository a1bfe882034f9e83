"""keep.sh: the copy of an image lies where nobody else can put another in its place, and goes when its keeper is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcml import assets
from hpcml.node import scratch
from tests.said import says

KEEP = str(assets.folder("templates") / "keep.sh")
NAME = "hpcml-7-0123456789abcdef"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a.sif"
    path.write_bytes(b"x" * 5000)
    return path


def place_of(tmp_path: Path, mode: int = 0o1777) -> Path:
    place = tmp_path / "disk"
    place.mkdir()
    place.chmod(mode)
    return place


def keeper(image: Path, place: Path, name: str = NAME) -> subprocess.Popen[str]:
    return subprocess.Popen(["/bin/sh", KEEP, "copy", str(image), f"{place}/{name}/a.sif"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)  # fmt: skip


def test_the_copy_goes_with_its_keeper(tmp_path: Path, image: Path) -> None:
    place = place_of(tmp_path)
    with keeper(image, place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready local\n"
        assert (place / NAME).stat().st_mode & 0o7777 == 0o700
        assert scratch.sweep(place) == []
        process.communicate("", timeout=120)
    assert list(place.iterdir()) == []


def test_what_a_killed_keeper_leaves_is_swept_by_the_next(tmp_path: Path, image: Path) -> None:
    """What lives stays, and what is not ours. What a run's roles sweep is in test_scratch.py."""
    place = place_of(tmp_path)
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (place / "hpcml-8-0123456789abcdef").symlink_to(treasure)
    (place / "hpcml-9-0123456789abcdef").mkdir(mode=0o700)
    others = {path.name for path in place.iterdir()}
    with keeper(image, place) as killed, keeper(image, place, "hpcml-6-0123456789abcdef") as living:
        for process in (killed, living):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready local\n"
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        deadline = time.monotonic() + 120
        while (place / NAME).exists():
            assert time.monotonic() < deadline
            with keeper(image, place, "hpcml-5-0123456789abcdef") as sweeper:
                sweeper.communicate("", timeout=120)
        assert {path.name for path in place.iterdir()} == {*others, "hpcml-6-0123456789abcdef"}
        living.communicate("", timeout=120)
    assert treasure.exists()


@pytest.mark.parametrize("kind", ["open", "group", "above", "link", "theirs"])
def test_a_place_that_others_may_change_is_refused(tmp_path: Path, image: Path, kind: str) -> None:
    place = place_of(tmp_path, {"open": 0o777, "group": 0o775}.get(kind, 0o755))
    wanted = place
    if kind == "above":
        wanted = place / "deep"
        wanted.mkdir()
        place.chmod(0o777)
    elif kind in ("link", "theirs"):
        if os.geteuid() != 0:
            pytest.skip("needs root: another user's folder or link")
        if kind == "link":
            wanted = tmp_path / "link"
            wanted.symlink_to(place)
        os.chown(wanted, 65533, 65533, follow_symlinks=False)
    with keeper(image, wanted) as process:
        out, _ = process.communicate("", timeout=120)
    culprit = place if kind == "above" else wanted
    assert out.startswith(f"failed local: other users may replace the contents of {culprit}|Set runtime.stage_to"), out
    assert [path for path in place.rglob("*") if path != wanted] == []


def test_a_folder_that_is_none(tmp_path: Path, image: Path) -> None:
    with keeper(image, tmp_path / "no/such") as process:
        out, _ = process.communicate("", timeout=120)
    assert out.startswith(f"failed local: no folder can be created in {tmp_path}/no/such|Set runtime.stage_to"), out
    functions = f'. {Path(KEEP).with_name("stage.sh")}; not_staged() {{ echo "$1"; }}'
    script = f"{functions}; stage copy '$NOT_SET/x' a.sif 60 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, says("local: NOT_SET", "is not set|Correct runtime.stage_to")), (
        done.stderr
    )


def test_half_a_copy_is_not_entered(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "bin/cp"
    cut.parent.mkdir()
    cut.write_text('#!/bin/sh\nhead -c 100 "$2" >"$3"\n')
    cut.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cut.parent}:{os.environ['PATH']}")
    with keeper(image, place_of(tmp_path)) as process:
        out, _ = process.communicate("", timeout=120)
    assert out.startswith("failed local: the copy in "), out


@pytest.mark.parametrize(("mode", "nodes", "sentence"), [
    ("sbcast", 1, "sbcast could not copy the image to"), ("copy", 2, "the image was on 1 of 2 nodes within 2 s")])  # fmt: skip
def test_an_image_that_does_not_come_in_time(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch, mode: str, nodes: int, sentence: str
) -> None:
    """An sbcast that hangs, and a node of two that says nothing."""
    hangs = tmp_path / "bin/sbcast"
    hangs.parent.mkdir()
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hangs.parent}:{os.environ['PATH']}")
    script = f"""
    HPCML_RUN_DIR={Path(KEEP).parent} HPCML_ATTEMPT=0
    . {Path(KEEP).with_name("stage.sh")}
    note_event() {{ :; }}; write_end() {{ echo "$3"; }}
    stage {mode} {place_of(tmp_path)} {image} 2 {nodes}; echo "status $?"; unstage
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert sentence in done.stdout, done
    assert "status 1" in done.stdout


def test_what_ignores_sigterm_is_killed_at_the_end_of_a_run_without_slurm(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    stays = "trap '' TERM; echo here; while :; do sleep 0.1; done"
    run = {**os.environ, "HPCML_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(["bash", "-c", stays], env=run, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        subprocess.run(["bash", Path(KEEP).with_name("sweep.sh")], env=run, timeout=120, check=True)
        ended = process.poll()
        process.kill()
    assert ended == -signal.SIGKILL
