"""Folders on a node's own disk: nobody else's place is taken, and only what nobody lives in is swept."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.kinds.dask.node import temporary_directory
from hpcml.node.scratch import LIVES, Folder, UnsafePlaceError, sweep, why_not

OTHER = 65533  # a user who is not the one who runs the tests


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder like /tmp; those above it are the test's own."""
    made = tmp_path / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


def left(place: Path, name: str = "hpcml_abcd_123") -> Path:
    """Make what a role that was killed left."""
    folder = place / name
    (folder / "n1/storage").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "n1/storage/spilled").write_text("x")
    (folder / LIVES).write_text(socket.gethostname())
    return folder


def test_a_folder_is_new_private_and_gone_afterwards(place: Path) -> None:
    with Folder(place) as one, Folder(place) as other:
        assert one.path.parent == place
        assert one.path != other.path
        assert one.path.stat().st_mode & 0o7777 == 0o700
        (one.path / "dask-scratch-space").mkdir()
        (one.path / "link").symlink_to(other.path)
        sys.path[:0] = [str(one.path), f"{one.path}/dask-scratch-space", f"{other.path}/x"]
        one.remove()
        assert sys.path.pop(0) == f"{other.path}/x"  # the name is anybody's now, and nothing is imported from there
        assert not any(str(one.path) in entry for entry in sys.path)
        assert not one.path.exists()
        assert other.path.exists()  # no link was followed
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "said"), [(0o777, "not sticky"), (0o775, "mode 0775"), (0o1777, ""), (0o755, ""), (0o700, "")]
)
def test_a_place_that_others_may_change(place: Path, mode: int, said: str) -> None:
    place.chmod(mode)
    assert (said in why_not(str(place))) if said else why_not(str(place)) == ""
    inner = place / "inner"
    inner.mkdir()
    link = place.parent / "link"
    link.symlink_to(inner)
    assert (said in why_not(str(link))) if said else why_not(str(link)) == ""
    if said:
        with pytest.raises(UnsafePlaceError, match=said):
            Folder(inner)
        assert list(inner.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's folder")
def test_a_place_of_another_user(place: Path) -> None:
    os.chown(place, OTHER, OTHER)
    with pytest.raises(UnsafePlaceError, match="belongs to another user"):
        Folder(place)
    assert sweep(place) == []


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    for wrong in (tmp_path / "none", Path("/dev/null")):
        with pytest.raises(UnsafePlaceError, match="is not a folder on this node"):
            Folder(wrong)


def test_what_killed_roles_left_is_swept_and_no_link_is_followed(place: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (left(place) / "n1/link").symlink_to(treasure)
    left(place, "hpcml-4711-0123456789abcdef")  # of the image's copy
    with Folder(place) as mine:
        assert sorted(sweep(place)) == ["hpcml-4711-0123456789abcdef", "hpcml_abcd_123"]
        assert [path.name for path in place.iterdir()] == [mine.path.name]
    assert treasure.is_dir()


def test_a_fork_leaves_its_parent_s_folder(place: Path) -> None:
    with Folder(place) as folder:
        pid = os.fork()
        if not pid:
            folder.remove()
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0)
        assert folder.path.exists()


def test_who_lives_in_anothers_folder_keeps_it(place: Path) -> None:
    """The scheduler, in that of the supervisor."""
    folder = left(place)
    code = "import sys; from pathlib import Path; from hpcml.node.scratch import live_in; live_in(Path(sys.argv[1])); print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as role:
        assert role.stdout is not None
        assert role.stdout.readline() == b"in\n"
        assert sweep(place) == []
        role.communicate(timeout=120)
    assert sweep(place) == [folder.name]


def test_what_is_not_ours_stays(place: Path, tmp_path: Path) -> None:
    """Other names, planted links, open folders, no file of life, another node's, and what others own."""
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / LIVES).write_text(socket.gethostname())
    (treasure / "gold").write_text("x")
    (place / "hpcml_link0000").symlink_to(treasure)
    left(place, "hpcml_open0000").chmod(0o755)
    left(place, "hpcml_UPPER000")
    left(place, "hpcml_checkouts")
    (left(place, "hpcml_nolife00") / LIVES).unlink()
    (left(place, "hpcml_distant0") / LIVES).write_text("another-node")
    lives = left(place, "hpcml_linked00") / LIVES
    lives.unlink()
    lives.symlink_to(treasure / LIVES)
    fifo = left(place, "hpcml_fifo0000") / LIVES
    fifo.unlink()
    os.mkfifo(fifo)
    (place / "hpcml_file0000").write_text("x")
    if os.geteuid() == 0:
        os.chown(left(place, "hpcml_theirs00"), OTHER, OTHER)
        os.chown(left(place, "hpcml_lifes000") / LIVES, OTHER, OTHER)
    before = sorted(place.rglob("*"))
    assert sweep(place) == []
    assert sorted(place.rglob("*")) == before
    assert (treasure / "gold").exists()


def test_a_folder_that_is_being_made_is_not_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a folder and its lock there is a moment."""
    swept: list[list[str]] = []
    real = fcntl.flock

    def sweeping(descriptor: int, operation: int) -> None:
        if not swept:
            swept.append([])
            swept.append(sweep(place))
        real(descriptor, operation)

    monkeypatch.setattr("hpcml.node.scratch.fcntl.flock", sweeping)
    with Folder(place) as mine:
        assert swept == [[], []]
        assert mine.path.exists()
        assert sweep(place) == []


def test_dasks_own_setting(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dask = pytest.importorskip("dask")
    assert temporary_directory.chosen("/else") == "/else"
    with dask.config.set({"temporary-directory": str(place)}):
        assert temporary_directory.chosen("/else") == str(place)
    assert capsys.readouterr().err == ""
    place.chmod(0o777)
    for wrong, said in (("/nowhere", "is not a folder on this node"), (str(place), "not sticky")):
        with dask.config.set({"temporary-directory": wrong}):
            assert temporary_directory.chosen("/else") == "/else"
        assert said in capsys.readouterr().err


def test_the_semaphores_of_a_killed_process_go_with_its_folder(place: Path) -> None:
    code = """
import multiprocessing, os, signal, sys
from hpcml.node import scratch
folder = scratch.Folder(sys.argv[1])
scratch.name_semaphores(folder.path)
kept = multiprocessing.get_context("spawn").Queue()
os.kill(multiprocessing.resource_tracker._resource_tracker._pid, signal.SIGKILL)  # as the end of a job does
print(folder.path.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False)
    name = done.stdout.strip()
    assert name, done.stderr
    left_there = [path for path in Path("/dev/shm").iterdir() if name in path.name]
    assert left_there
    assert sweep(place) == [name]
    assert not any(path.exists() for path in left_there)
