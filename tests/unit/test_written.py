"""What a script wrote into the copy of its code is brought to where plain Python would have written it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from hpcml import outputs_brought_back
from hpcml.paths import RunPaths
from tests.said import says


class Case:
    """A project and runs of it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.runs = folder / "proj", folder / "runs"
        self.home.mkdir()
        (self.home / "scripts").mkdir()
        (self.home / "scripts" / "train.py").write_text("1")
        (self.home / "config.json").write_text("{}")

    def run(self, name: str = "train-20260101-000000-aaaa", why: str = "") -> RunPaths:
        run = RunPaths(self.runs / name)
        (run.code / "scripts").mkdir(parents=True)
        (run.code / "scripts" / "train.py").write_text("1")
        (run.code / "config.json").write_text("{}")
        (run.code / "data").symlink_to(self.home / "data")
        outputs_brought_back.begin(run, self.home, why)
        return run


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def bring(run: RunPaths) -> outputs_brought_back.Written:
    result = outputs_brought_back.bring(run, 0)
    assert result
    assert outputs_brought_back.of(run) == result
    return result


def put(folder: Path, name: str, text: str = "new") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def stamps(run: RunPaths, *names: str) -> dict[str, str]:
    """The files as hpcml fetch offers them."""
    found = {name: (run.code / name).lstat() for name in names if (run.code / name).exists()}
    return {name: outputs_brought_back.stamp(status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.fixture(params=["linked", "copied"])
def across(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The run's folder is on the project's file system, or on another one."""
    if request.param == "copied":
        link = os.link

        def refused(source: Path | str, name: str, **more: object) -> None:
            if "src_dir_fd" not in more:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            link(source, name, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "link", refused)
    return bool(request.param == "copied")


@pytest.mark.usefixtures("across")
def test_new_files_links_and_folders_are_brought(case: Case) -> None:
    run = case.run()
    put(run.code, "results/deep/r.csv").chmod(0o640)
    put(run.code, "scripts/beside.txt")
    put(run.code, "scripts/__pycache__/x.pyc")
    (run.code / "empty").mkdir(mode=0o750)
    (run.code / "results" / "last").symlink_to("deep/r.csv")
    (run.code / "whole").symlink_to(run.code / "results/deep")
    result = bring(run)
    assert sorted(result.brought) == ["results/deep/r.csv", "results/last", "scripts/beside.txt", "whole"]
    assert not result.left
    assert not result.sentence()
    assert (case.home / "results/deep/r.csv").read_text() == "new"
    assert (case.home / "results/deep/r.csv").stat().st_mode & 0o777 == 0o640
    assert (case.home / "results/last").readlink() == Path("deep/r.csv")
    assert (case.home / "whole").readlink() == case.home / "results/deep"
    assert (case.home / "empty").is_dir()
    assert not (case.home / "data").exists()
    assert not (case.home / "scripts/__pycache__").exists()
    assert not [name for name in os.listdir(case.home / "results/deep") if name.startswith(".")]


@pytest.mark.usefixtures("across")
def test_a_changed_file_takes_the_place_of_what_the_copy_began_with(case: Case) -> None:
    run = case.run()
    put(run.code, "config.json", "changed")
    assert list(bring(run).brought) == ["config.json"]
    assert (case.home / "config.json").read_text() == "changed"
    assert (run.replaced / "config.json").read_text() == "{}"


@pytest.mark.usefixtures("across")
@pytest.mark.parametrize("name", ["config.json", "results/r.csv"])
def test_no_file_is_replaced_that_the_copy_did_not_begin_with(case: Case, name: str) -> None:
    run = case.run()
    put(case.home, name, "mine")
    os.utime(case.home / name, ns=(1, 1))  # by digest, and not by time
    put(run.code, name, "of the run")
    result = bring(run)
    assert (case.home / name).read_text() == "mine"
    assert (run.code / name).read_text() == "of the run"
    assert result.left == (outputs_brought_back.Left(name, says("the original folder has another file")),)
    assert f"Only the run's folder code/ has 1 file of the script: {name} (the original folder" in result.sentence()


def test_the_same_content_is_no_conflict_and_a_touched_file_no_change(case: Case) -> None:
    run = case.run()
    put(case.home, "r.csv", "same")
    put(run.code, "r.csv", "same")
    os.utime(run.code / "config.json")
    assert list(bring(run).brought) == ["r.csv"]


def test_bringing_twice_is_as_once(case: Case) -> None:
    run = case.run()
    put(run.code, "r.csv")
    put(run.code, "config.json", "changed")
    assert bring(run) == bring(run)


@pytest.mark.usefixtures("across")
def test_a_later_attempt_replaces_what_an_earlier_one_brought(case: Case) -> None:
    run = case.run()
    put(run.code, "config.json", "one")
    bring(run)
    put(run.code, "new", "two").replace(run.code / "config.json")
    assert not bring(run).left
    assert (case.home / "config.json").read_text() == "two"


def test_nothing_is_deleted(case: Case) -> None:
    run = case.run()
    (run.code / "config.json").unlink()
    bring(run)
    assert (case.home / "config.json").exists()


@pytest.mark.usefixtures("across")
@pytest.mark.parametrize("link", ["results", "results/deep"])
def test_no_link_is_followed(case: Case, tmp_path: Path, link: str) -> None:
    secret = tmp_path / "ssh"
    secret.mkdir()
    run = case.run()
    put(run.code, "results/deep/authorized_keys")
    (case.home / link).parent.mkdir(exist_ok=True)
    (case.home / link).symlink_to(secret)
    result = bring(run)
    assert not list(secret.iterdir())
    assert [one.name for one in result.left] == ["results/deep/authorized_keys"]
    assert f"{link.rpartition('/')[2]} is not a folder there, or a link" in result.sentence()


@pytest.mark.usefixtures("across")
def test_a_file_that_is_a_link_there_stays_a_link(case: Case, tmp_path: Path) -> None:
    target = put(tmp_path, "target", "{}")
    (case.home / "config.json").unlink()
    (case.home / "config.json").symlink_to(target)
    run = case.run()
    put(run.code, "config.json", "changed")
    assert bring(run).left
    assert target.read_text() == "{}"


def test_an_original_folder_that_is_another_now_gets_nothing(case: Case, tmp_path: Path) -> None:
    run = case.run()
    put(run.code, "r.csv")
    case.home.rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    case.home.symlink_to(tmp_path / "other")
    assert bring(run).left
    assert not list((tmp_path / "other").iterdir())


def test_folders_of_others_get_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case.run()
    put(run.code, "results/r.csv")
    (case.home / "results").mkdir()
    fstat = os.fstat
    results = (case.home / "results").stat().st_ino

    def of_mallory(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        return os.stat_result((*status[:4], 4242, *status[5:])) if status.st_ino == results else status

    monkeypatch.setattr(os, "fstat", of_mallory)
    assert [one.why for one in bring(run).left] == ["the folder results belongs to uid 4242"]
    assert not list((case.home / "results").iterdir())


def test_of_two_runs_with_one_name_none_wins(case: Case) -> None:
    first, second = case.run(), case.run("train-20260101-000000-bbbb")
    put(first.code, "results/r.csv", "first")
    put(second.code, "results/r.csv", "second")
    left = bring(first).left
    assert left == (
        outputs_brought_back.Left("results/r.csv", "another run wrote a file of this name", second.directory.name),
    )
    assert first.directory.name in bring(second).sentence()
    assert not (case.home / "results/r.csv").exists()


def test_a_run_that_ends_after_another_has_brought_its_file_names_it(case: Case) -> None:
    first, second = case.run(), case.run("train-20260101-000000-bbbb")
    put(first.code, "r.csv", "first")
    assert not bring(first).left
    put(second.code, "r.csv", "second")
    assert bring(second).left[0].run == first.directory.name
    assert (case.home / "r.csv").read_text() == "first"


@pytest.mark.usefixtures("across")
def test_what_a_killed_copy_left_is_removed_and_the_file_brought(case: Case) -> None:
    run = case.run()
    put(run.code, "results/r.csv")
    put(case.home, f"results/.hpcml-{run.directory.name}-0123", "half")
    assert not bring(run).left
    assert os.listdir(case.home / "results") == ["r.csv"]


def test_code_from_a_laptop_stays_for_fetch(case: Case) -> None:
    run = case.run(why=outputs_brought_back.FROM_LAPTOP)
    put(run.code, "plain.txt")
    assert outputs_brought_back.to_fetch(run) == ["plain.txt"]
    result = bring(run)
    assert result.left == (outputs_brought_back.Left("plain.txt", "hpcml fetch copies it"),)
    assert "plain.txt (hpcml fetch copies it)" in result.sentence()
    assert outputs_brought_back.to_fetch(run) == ["plain.txt"]
    outputs_brought_back.note_fetched(run, stamps(run, "plain.txt"))
    after = outputs_brought_back.of(run)
    assert after
    assert not after.sentence()


def test_a_later_look_keeps_what_a_laptop_has_until_it_changes(case: Case) -> None:
    """The tasks of an array write into one copy, which is looked at again after a task was fetched."""
    run = case.run(why=outputs_brought_back.FROM_LAPTOP)
    for name in ("part_0", "part_1", "gone"):
        put(run.code, name)
    bring(run)
    outputs_brought_back.note_fetched(run, stamps(run, "part_0", "part_1", "gone"))
    assert not bring(run).sentence()
    put(run.code, "part_1", "of a later task")
    (run.code / "gone").unlink()
    result = bring(run)
    assert [file.name for file in result.unsaved] == ["part_1"]
    assert [*result.fetched] == ["part_0"]


def test_what_is_brought_is_not_fetched_too(case: Case) -> None:
    run = case.run()
    put(run.code, "r.csv")
    assert not outputs_brought_back.to_fetch(run)
    bring(run)
    assert not outputs_brought_back.to_fetch(run)


def test_a_folder_that_is_not_here_is_left_to_another_machine(case: Case, tmp_path: Path) -> None:
    run = case.run()
    put(run.code, "r.csv")
    case.home.rename(tmp_path / "away")
    assert outputs_brought_back.bring(run, 0, everywhere=False) is None
    assert outputs_brought_back.of(run) is None
    assert bring(run).left[0].why.endswith("No such file or directory")


def test_runs_without_a_record_and_damaged_ones_are_left_alone(case: Case) -> None:
    run = case.run()
    put(run.code, "r.csv")
    run.copied.write_text(json.dumps({"home": str(case.home)}))
    assert outputs_brought_back.bring(run, 0) is None
    run.copied.unlink()
    assert outputs_brought_back.bring(run, 0) is None
    run.written.write_text("[]")
    assert outputs_brought_back.of(run) is None


@pytest.mark.usefixtures("across")
def test_many_files_of_one_folder_need_one_look_at_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case.run()
    for number in range(50):
        put(run.code, f"results/{number}")
    looks, listdir = list[object](), os.listdir

    def counted(place: int) -> list[str]:
        looks.append(place)
        return listdir(place)

    monkeypatch.setattr(os, "listdir", counted)
    assert not bring(run).left
    assert len(looks) < 5  # a look for each file takes an hour for 100 000 files


def test_files_that_were_not_looked_at_are_told_and_keep_the_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case.run()
    put(run.code, "a.csv")
    put(run.code, "scripts/z.csv")
    monkeypatch.setattr(outputs_brought_back, "_MOST", 3)
    result = bring(run)
    assert result.left == (outputs_brought_back.Left("./", says("the files and folders after the first 3")),)
    outputs_brought_back.note_fetched(run, stamps(run, *outputs_brought_back.to_fetch(run)[1:]))
    assert "were not looked at" in result.sentence()


@pytest.mark.usefixtures("across")
@pytest.mark.parametrize("kind", ["folder", "not removable"])
def test_a_planted_name_like_an_unfinished_file_hinders_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = case.run()
    put(run.code, "r.csv")
    planted = case.home / f".hpcml-{run.directory.name}-0123"
    if kind == "folder":
        planted.mkdir()
    else:  # in a sticky folder, of another account
        planted.touch()
        unlink = os.unlink

        def refused(name: str, **more: int) -> None:
            if name == planted.name:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            unlink(name, **more)

        monkeypatch.setattr(os, "unlink", refused)
    assert list(bring(run).brought) == ["r.csv"]


@pytest.mark.parametrize("planted", ["pipe", "other file"])
def test_what_takes_the_place_of_a_file_meanwhile_is_not_read(
    case: Case, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    run = case.run()
    put(run.code, "config.json", "changed")
    place, open_ = case.home / "config.json", os.open

    def swapped(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "config.json":  # whoever may write to the folder does it in this moment
            place.rename(case.home / "away")
            os.mkfifo(place) if planted == "pipe" else place.write_text("{}")
        return open_(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    assert [one.name for one in bring(run).left] == ["config.json"]
    assert not run.replaced.exists()


def test_what_was_there_at_the_submission_is_kept_through_all_attempts(case: Case) -> None:
    run = case.run()
    put(run.code, "config.json", "one")
    bring(run)
    put(run.code, "new", "two").replace(run.code / "config.json")
    bring(run)
    assert (run.replaced / "config.json").read_text() == "{}"


def test_new_folders_keep_the_group_of_a_project_that_many_share(case: Case) -> None:
    case.home.chmod(0o2770)
    run = case.run()
    put(run.code, "results/r.csv")
    (run.code / "results").chmod(0o750)
    bring(run)
    assert (case.home / "results").stat().st_mode & 0o7777 == 0o2750


def test_a_folder_that_takes_the_place_of_a_new_one_keeps_its_mode(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the project puts a private folder of the user's there, in the moment between two calls."""
    run, private = case.run(), case.home / "private"
    put(private, "key")
    private.chmod(0o700)
    put(run.code, "results/r.csv")
    (run.code / "results").chmod(0o755)
    mkdir = os.mkdir

    def swapped(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        if path == "results":
            (case.home / "results").rename(case.home / "away")
            private.rename(case.home / "results")

    monkeypatch.setattr(os, "mkdir", swapped)
    bring(run)
    assert (case.home / "results/key").exists()
    assert (case.home / "results").stat().st_mode & 0o777 == 0o700


def test_a_copy_that_is_a_link_is_not_looked_at(case: Case, tmp_path: Path) -> None:
    run = case.run()
    put(tmp_path, "elsewhere/secret")
    run.code.rename(tmp_path / "away")
    run.code.symlink_to(tmp_path / "elsewhere")
    result = bring(run)
    assert not result.brought
    assert not result.left


def test_a_copy_larger_than_the_free_space_is_not_begun(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = case.run()
    os.truncate(put(run.code, "hole"), 1 << 42)
    link = os.link

    def across_file_systems(*_: object, **more: int) -> None:
        if "src_dir_fd" not in more:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(*_, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", across_file_systems)
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((512, 512, 0, 9, 9, 0, 0, 0, 0, 255)))
    assert bring(run).left == (outputs_brought_back.Left("hole", "No space left on device"),)


def test_an_impossible_number_in_the_record_is_damage(case: Case) -> None:
    run = case.run()
    bring(run)
    run.written.write_text(run.written.read_text().replace('"attempt": 0', '"attempt": Infinity'))
    assert outputs_brought_back.of(run) is None


@pytest.mark.parametrize("why", ["closed", "deep"])
def test_folders_that_cannot_be_read_are_told(case: Case, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    run = case.run()
    put(run.code, "results/r.csv")
    code = errno.EACCES if why == "closed" else errno.ENAMETOOLONG
    scandir = os.scandir

    def refused(path: Path) -> object:
        if path.name == "results":
            raise OSError(code, os.strerror(code))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert bring(run).left == (
        outputs_brought_back.Left("results/", f"the folder cannot be read: {os.strerror(code)}"),
    )
