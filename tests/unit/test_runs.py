"""Run records on disk, and the snapshot of the code."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from hpcml import runs, snapshot
from hpcml.errors import NotFoundError, StorageError
from hpcml.schema import Code


@pytest.mark.parametrize(
    ("setting", "folder"),
    [
        ("~/.hpcml/runs", "/home/me/.hpcml/runs"),
        ("$WORK/r", "/work/me/r"),
        ("${WORK}x/$HOME_2", "/work/mex/2"),
        ("/a b/~", "/a b/~"),
        ("/a$$b", "/a$b"),
    ],
)
def test_the_folder_for_runs(setting: str, folder: str) -> None:
    environment = {"HOME": "/home/me", "WORK": "/work/me", "HOME_2": "2"}
    assert runs.runs_folder(setting, environment) == Path(folder)


@pytest.mark.parametrize("setting", ["runs", "", "$NOPE/runs", "~me/runs", "./x", "${NOPE}"])
def test_a_folder_for_runs_that_is_none(setting: str) -> None:
    with pytest.raises(StorageError):
        runs.runs_folder(setting, {"HOME": "/home/me"})


def test_ids_sort_by_time() -> None:
    made = []
    for _ in range(50):
        made.append(runs.new_id("a"))
        time.sleep(0.0001)
    assert sorted(made) == made
    assert len(set(made)) == 50


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a-20261121-074500-1a2b"
    with pytest.raises(KeyboardInterrupt), runs.creating(directory) as paths:
        assert not directory.exists()
        runs.write(paths.plan, "{}")
        raise KeyboardInterrupt
    assert list(directory.parent.iterdir()) == []
    with runs.creating(directory) as paths:
        runs.write(paths.plan, "{}")
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    for path in directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.is_dir(), path
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_library_is_what_runs_on_the_nodes_with_its_times(tmp_path: Path) -> None:
    with runs.creating(tmp_path / "a") as paths:
        pass
    root = Path(runs.__file__).parent.parent
    copied = sorted(path.relative_to(tmp_path / "a" / "lib") for path in (tmp_path / "a" / "lib").rglob("*.py"))
    assert Path("hpcml/inside/__main__.py") in copied
    assert Path("hpcml/cli.py") not in copied
    for path in copied:
        source, copy = root / path, tmp_path / "a" / "lib" / path
        assert copy.read_bytes() == source.read_bytes()
        assert int(copy.stat().st_mtime) == int(source.stat().st_mtime), "or the compiled file would not be used"
    assert paths.directory.parent == tmp_path
    assert paths.directory.name.startswith(".a.")


def test_runs_are_found(tmp_path: Path) -> None:
    names = ["b-20261121-074500-1a2b", "a-x-20261121-074501-0000", "a-x-20261122-074501-0000"]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        runs.write_json(tmp_path / name / "submission.json", {"job": str(100 + number)})
    (tmp_path / "notes").mkdir()
    (tmp_path / ".a-20261121-074500-1a2b.new").mkdir()
    assert runs.ids(tmp_path) == names
    for word, name in (
        ("last", names[2]),
        (names[0], names[0]),
        ("b", names[0]),
        ("a-x", names[2]),
        ("101", names[1]),
        ("a-x-20261121", names[1]),
    ):
        assert runs.find(tmp_path, word).id == name
    for word in ("a", "a-", "", "c", "999", "notes"):
        with pytest.raises(NotFoundError):
            runs.find(tmp_path, word)


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert runs.ids(tmp_path / "none") == []


def put(folder: Path, name: str, size: int = 1) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def taken(folder: Path, **code: object) -> tuple[set[str], str]:
    target = folder.parent / "target"
    target.mkdir()
    left_out = snapshot.take(folder / "job.py", target, Code(**code))  # type: ignore[arg-type]
    return {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}, left_out


@pytest.fixture
def project(tmp_path: Path) -> Path:
    put(tmp_path / "project", "job.py")
    return tmp_path / "project"


def test_the_snapshot_has_the_code_and_what_lies_beside_it(project: Path) -> None:
    for name in ("lib/a.py", "lib/deep/b.json", "data.csv", ".git/config", ".hidden", "__pycache__/x.pyc", "venv/pyvenv.cfg",
                 "venv/bin/python", "lib/.x/y"):  # fmt: skip
        put(project, name)
    (project / "empty").mkdir()
    os.mkfifo(project / "pipe")
    (project / "link.py").symlink_to("lib/a.py")
    (project / "dangling").symlink_to("nowhere")
    (project / "around").symlink_to(".")
    put(project, "big.bin", 2000)
    files, left_out = taken(project, max_file="1K")
    assert files == {"job.py", "lib/a.py", "lib/deep/b.json", "data.csv", "link.py"}
    assert left_out == "1 files that are links to folders; 1 files larger than code.max_file"


def test_the_script_alone(project: Path) -> None:
    put(project, "other.py")
    assert taken(project, snapshot="script") == ({"job.py"}, "")


def test_a_script_larger_than_the_limit_is_copied_nevertheless(project: Path) -> None:
    put(project, "job.py", 5000)
    assert taken(project, max_file="1K")[0] == {"job.py"}


@pytest.mark.parametrize("limit", [{"max_files": 3}, {"max_total": "2K"}])
def test_of_a_large_folder_the_python_files(project: Path, limit: dict[str, object]) -> None:
    for number in range(6):
        put(project, f"data/{number}.txt", 900)
    put(project, "helper.py")
    files, left_out = taken(project, **limit)
    assert files == {"job.py", "helper.py"}
    assert "all of " in left_out


def test_a_script_that_is_a_link_is_copied_as_a_file(project: Path, tmp_path: Path) -> None:
    put(tmp_path, "real.py", 7)
    (project / "job.py").unlink()
    (project / "job.py").symlink_to("../real.py")
    files, _ = taken(project)
    assert files == {"job.py"}
    assert (tmp_path / "target" / "job.py").stat().st_size == 7


def test_what_cannot_be_read_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything, so a folder that refuses is made by hand."""
    put(project, "closed/a.py")
    real = os.scandir

    def scandir(place: Path) -> object:
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert taken(project) == ({"job.py"}, "1 files or folders that cannot be read")


def test_a_script_that_vanished_is_an_error(project: Path) -> None:
    (project / "job.py").unlink()
    with pytest.raises(StorageError, match="No such file"):
        taken(project)
