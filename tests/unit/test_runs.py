"""Run records on disk, and the snapshot of the code."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import weakref
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import hpcml
from hpcml import node_archive, safe_files, typed_json
from hpcml.cli import submit
from hpcml.errors import NotFoundError, StorageError
from hpcml.paths import RunPaths
from hpcml.request.record import Awaited
from hpcml.runs import directories, lib_zip, record, snapshot, waiting
from hpcml.runs.status import Status
from hpcml.schedulers import Submission
from hpcml.sites.schema import Code
from hpcml.units import Memory


@pytest.mark.parametrize(("setting", "folder"), [
    ("~/.hpcml/runs", "/home/me/.hpcml/runs"),
    ("$WORK/r", "/work/me/r"),
    ("${WORK}x/$HOME_2", "/work/mex/2"),
    ("/a b/~", "/a b/~"),
])  # fmt: skip
def test_the_folder_for_runs(setting: str, folder: str) -> None:
    environment = {"HOME": "/home/me", "WORK": "/work/me", "HOME_2": "2"}
    assert directories.runs_folder(setting, environment) == Path(folder)


@pytest.mark.parametrize("setting", ["runs", "", "$NOPE/runs", "~me/runs"])
def test_a_folder_for_runs_that_is_none(setting: str) -> None:
    with pytest.raises(StorageError):
        directories.runs_folder(setting, {"HOME": "/home/me"})


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a-20261121-074500-1a2b"
    with pytest.raises(KeyboardInterrupt), directories.creating(directory) as paths:
        assert not directory.exists()
        safe_files.write(paths.plan, "{}")
        raise KeyboardInterrupt
    assert list(directory.parent.iterdir()) == []
    with directories.creating(directory) as paths:
        safe_files.write(paths.plan, "{}")
    assert [path.name for path in directory.parent.iterdir() if path.is_dir()] == [directory.name]
    for path in directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.is_dir(), path
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_folder_that_somebody_made_meanwhile_is_looked_at(tmp_path: Path) -> None:
    """Between the first look, when it was not there, and the run's own folder."""
    place = tmp_path / "runs"
    assert directories.check_folder(place, []) == []
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(StorageError, match="not safe in this folder: Every user"), directories.creating(place / "a"):
        pytest.fail("nothing may be written there")
    assert list(place.iterdir()) == []


def test_a_run_that_is_a_link_is_named_as_that(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(StorageError, match="The run's folder is a link"):
        directories.load(tmp_path / "link")


def make(folder: Path, *names: str) -> list[Path]:
    """Make runs and return the files of their modules."""
    for name in names:
        with directories.creating(folder / name):
            pass
    return [folder / name / "lib.zip" for name in names]


def test_the_library_of_a_run_is_no_file_that_has_changed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Such a file is replaced, so that the next runs share one again; of a version that no run has, no file is left."""
    (tmp_path / ".lib-old.zip").write_bytes(b"of another version")
    first, _ = make(tmp_path, "a", "b")
    ((shared,), archive) = tmp_path.glob(".lib-*.zip"), first.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(archive)

    def plant(what: str) -> None:
        if what == "changed":
            shared.chmod(0o600)
            shared.write_bytes(b"changed by a job")
        elif what == "open to all":
            shared.chmod(0o666)
        else:
            shared.unlink()
            if what == "link":
                shared.symlink_to(elsewhere)
            elif what == "pipe":
                os.mkfifo(shared)
            else:
                shared.mkdir()

    for what in ("changed", "open to all", "link", "pipe", "folder"):
        with subtests.test(what):
            plant(what)
            new, after = make(tmp_path, f"{what}-1", f"{what}-2")
            assert not new.samefile(first)
            assert new.samefile(after) == (what != "folder")
            for library in (new, after):
                assert (library.read_bytes(), library.stat().st_mode & 0o777) == (archive, 0o400)
    assert not list(tmp_path.rglob("*.new"))


def test_a_run_has_a_library_of_its_own_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "hardlink_to", no_links)
        one, two = make(tmp_path, "a", "b")
    assert one.read_bytes() == two.read_bytes()
    assert [library.stat().st_nlink for library in (one, two)] == [1, 1]
    three, four = make(tmp_path, "c", "d")
    assert three.samefile(four)
    assert not three.samefile(one)


def test_submissions_at_once_share_one_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them find no shared file, and write their own; the first gives it to the others."""
    write = safe_files.write

    def write_after_another(path: Path, data: str | bytes, mode: int = 0o600) -> None:
        monkeypatch.setattr(safe_files, "write", write)
        if path.name == "lib.zip":
            make(tmp_path, "first")
        write(path, data, mode)

    monkeypatch.setattr(safe_files, "write", write_after_another)
    lib_zip.put(tmp_path / "lib.zip", tmp_path)
    assert (tmp_path / "lib.zip").samefile(tmp_path / "first/lib.zip")
    assert (tmp_path / "lib.zip").stat().st_nlink == 3


def test_a_submission_that_fails_leaves_no_library(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), directories.creating(tmp_path / "a"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_changed_checkout_has_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, same = make(tmp_path, "a", "b")
    archive = old.read_bytes()
    changed = b"changed" + archive[:-64]
    changed += hashlib.sha256(changed).hexdigest().encode()
    monkeypatch.setattr(node_archive, "node_archive", lambda: changed)
    (new,) = make(tmp_path, "c")
    assert (new.read_bytes(), old.read_bytes(), same.samefile(old)) == (changed, archive, True)
    assert sorted(path.stat().st_nlink for path in tmp_path.glob(".lib-*.zip")) == [2, 3]


def test_the_library_is_one_file_with_what_runs_on_the_nodes(tmp_path: Path) -> None:
    """Which is the same from one submission to the next."""
    for name in ("a", "b"):
        with directories.creating(tmp_path / name) as paths:
            pass
    assert paths.directory.parent == tmp_path
    assert paths.directory.name.startswith(".b.")
    root = Path(directories.__file__).parent.parent.parent
    archive = tmp_path / "a/lib.zip"
    assert archive.samefile(tmp_path / "b/lib.zip")
    assert archive.stat().st_mode & 0o777 == 0o400
    assert archive.read_bytes() == (tmp_path / "b/lib.zip").read_bytes()
    with zipfile.ZipFile(archive) as members:
        assert members.testzip() is None
        copied = [name for name in members.namelist() if name.endswith(".py")]
        assert sorted(members.namelist()) == sorted([*copied, *(f"{name}c" for name in copied)])
        assert "hpcml/kinds/__main__.py" in copied
        assert "hpcml/cli/submit.py" not in copied
        for name in copied:
            assert members.read(name) == (root / node_archive.RENAMED.get(name, name)).read_bytes()


def test_the_command_line_is_found_behind_the_library(tmp_path: Path) -> None:
    """A script that calls hpcml gets the installed one, though the run's library comes first on its path."""
    with directories.creating(tmp_path / "a"):
        pass
    root = Path(directories.__file__).parent.parent.parent
    found = {"HPCML_RUN_DIR": str(tmp_path / "a"), "PYTHONPATH": f"{tmp_path / 'a/lib.zip'}:{root}"}
    for words in (("-m", "hpcml"), ("-c", "from hpcml.cli.main import main; main()")):
        command = [sys.executable, *words, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=found, cwd=tmp_path)
        assert done.stdout.startswith("hpcml "), done.stderr


AT_ITS_START = """
import json, shutil, sys
watches = any(type(finder).__module__ == "sitecustomize" for finder in sys.meta_path)
if "gone" in sys.argv:
    shutil.rmtree(sys.argv[-1])
import cloudpickle
print(json.dumps([watches, getattr(sys.modules.get("sitecustomize"), "WHOSE", None), "hpcml" in sys.modules]))
"""


def test_a_process_of_the_script_watches_for_dask_beside_the_environment_s_sitecustomize(tmp_path: Path) -> None:
    """A role of hpcml does not, nor a process outside; and where the run's folder was removed, all is as without."""
    with directories.creating(tmp_path / "a"):
        pass
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("WHOSE = 'own'")
    script = {"DASK_SCHEDULER_ADDRESS": "tls://1.2.3.4:5", "HPCML_RUN_DIR": str(tmp_path / "a")}
    python = (sys.executable, "-P", "-c", AT_ITS_START)
    cases: tuple[tuple[tuple[str, ...], dict[str, str], list[object]], ...] = (
        (python, {}, [False, "own", False]),
        (python, {**script, "HPCML_PYTHONPATH": ""}, [False, "own", False]),
        ((*python[:3], f"import hpcml.node.shared_files\n{AT_ITS_START}"), script, [False, "own", True]),
        ((*python, "gone", str(tmp_path / "a")), script, [True, "own", False]),
    )
    for words, variables, expected in cases:
        environment = {"PYTHONPATH": f"{tmp_path / 'a/lib.zip'}:{tmp_path / 'own'}", **variables}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        assert (json.loads(done.stdout), done.stderr) == (expected, ""), words


FIRST_OF_DASK = """
import sys
(watch,) = (finder for finder in sys.meta_path if type(finder).__module__ == "sitecustomize")
watch.find_spec(sys.argv[1])
print(watch.used)
"""


@pytest.mark.parametrize(
    ("module", "changes"), [("dask", True), ("distributed", True), ("cloudpickle", True), ("numpy", False)]
)
def test_the_first_import_of_what_hpcml_changes_is_seen(tmp_path: Path, module: str, changes: bool) -> None:
    with directories.creating(tmp_path / "a"):
        pass
    script = {"DASK_SCHEDULER_ADDRESS": "tls://1.2.3.4:5", "HPCML_RUN_DIR": str(tmp_path / "none")}
    environment = {"PYTHONPATH": str(tmp_path / "a/lib.zip"), **script}
    command = [sys.executable, "-P", "-c", FIRST_OF_DASK, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"{changes}\n", "")


def test_inside_a_run_a_name_of_the_login_node_is_one_error(tmp_path: Path) -> None:
    with directories.creating(tmp_path / "a"):
        pass
    command = [sys.executable, "-P", "-c", "import hpcml; hpcml.submit('train.py')"]
    environment = {"PYTHONPATH": str(tmp_path / "a/lib.zip")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert re.findall("^[A-Za-z]+Error", done.stderr, re.MULTILINE) == ["AttributeError"]


def test_the_archive_is_kept_until_a_module_changes(tmp_path: Path) -> None:
    package = tmp_path / "hpcml"
    shutil.copytree(Path(directories.__file__).parent.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    script = "import sys; from hpcml import node_archive; sys.stdout.buffer.write(node_archive.node_archive())"
    command = [sys.executable, "-P", "-c", script]

    def made() -> bytes:
        return subprocess.run(command, capture_output=True, check=True, env={"PYTHONPATH": str(tmp_path)}).stdout

    first = made()
    (kept,) = package.glob("__pycache__/lib.*.zip")
    assert kept.read_bytes() == first
    other = b"kept" + hashlib.sha256(b"kept").hexdigest().encode()
    kept.write_bytes(other)
    assert made() == other
    kept.write_bytes(first[:-1000])  # damaged
    again = made()
    assert again == kept.read_bytes()
    assert again.endswith(node_archive.seal(again).encode())
    for name in ("units.py", "node/script/hpcml_command.py"):  # the second one travels as hpcml/__main__.py
        with (package / name).open("a") as file:
            file.write("# changed\n")
        changed = made()
    with zipfile.ZipFile(io.BytesIO(changed)) as members:
        for name in ("units.py", "__main__.py"):
            assert members.read(f"hpcml/{name}").endswith(b"# changed\n")


def test_runs_are_found(tmp_path: Path) -> None:
    names = ["b-20261121-074500-1a2b", "a-x-20261121-074501-0000", "a-x-20261122-074501-0000"]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        directories.write_json(tmp_path / name / "submission.json", {"job": str(100 + number)})
    (tmp_path / "notes").mkdir()
    (tmp_path / ".a-20261121-074500-1a2b.new").mkdir()
    assert directories.ids(tmp_path) == names
    assert directories.ids(tmp_path / "none") == []
    for word, name in (("last", names[2]), (names[0], names[0]), ("a-x", names[2]), ("101", names[1])):
        assert directories.find(tmp_path, word).id == name
    refused = tmp_path / "c-20261123-074501-0000"
    refused.mkdir()
    directories.write_json(refused / "submission.json", {"error": "no such account", "exit_status": 72})
    assert directories.find(tmp_path, "last").id == names[2]
    for name in names:
        shutil.rmtree(tmp_path / name)
    assert directories.find(tmp_path, "last").id == refused.name
    for word in ("a", "", "999", "notes"):
        with pytest.raises(NotFoundError):
            directories.find(tmp_path, word)


def put(folder: Path, name: str, size: int = 1) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def taken(folder: Path, *, linked: bool = True, **code: Any) -> tuple[set[str], snapshot.Taken]:
    """Return what was copied as files, and what became of the rest."""
    target = folder.parent / "target"
    target.mkdir()
    code |= {key: Memory(code[key]) for key in ("max_file", "max_total") if key in code}
    found = snapshot.take(folder / "job.py", target, Code(**code), linked=linked)
    return {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file() and not _linked(path)}, found


def _linked(path: Path) -> bool:
    return any(place.is_symlink() for place in (path, *path.parents))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    put(tmp_path / "project", "job.py")
    return tmp_path / "project"


def test_the_snapshot_has_the_code_and_what_lies_beside_it(project: Path) -> None:
    for name in ("lib/a.py", "lib/deep/b.json", "data.csv", ".git/config", ".hidden", "__pycache__/x.pyc", "venv/pyvenv.cfg",
                 "venv/bin/python", "lib/.x/y", "lib/__pycache__/z.pyc"):  # fmt: skip
        put(project, name)
    (project / "empty/deep").mkdir(parents=True)
    os.mkfifo(project / "pipe")
    (project / "link.py").symlink_to("lib/a.py")
    (project / "dangling").symlink_to("nowhere")
    (project / "around").symlink_to(".")
    for name in ("loop", "lib/loop"):
        (project / name).symlink_to("loop")
    put(project, "big.bin", 2000)
    files, found = taken(project, max_file="1K")
    assert files == {"job.py", "lib/a.py", "lib/deep/b.json", "data.csv", "link.py"}
    left_out = {one.name: one.why for one in found.left_out}
    assert left_out == {"around/": "a link to a folder", "big.bin": "larger than code.max_file = 1K"}
    assert not found.missing
    target = project.parent / "target"
    for name in (".git/config", ".hidden", "venv/bin/python", "lib/.x/y", "big.bin", "around/job.py"):
        assert (target / name).samefile(project / name), name
    assert not (target / "__pycache__").exists()
    assert not (target / "lib/__pycache__").exists()
    assert (target / "empty/deep").is_dir()
    assert not _linked(target / "empty/deep")


def test_less_than_the_folder_is_copied_where_a_setting_says_so(project: Path) -> None:
    (project / "job.py").write_text("from other import name\n")
    for name in ("0.dat", "other.py", "wide/a.txt"):
        put(project, name)
    target = project.parent / "target"
    files, found = taken(project, linked=False, snapshot="script")
    assert files == {"job.py"}
    assert [one.name for one in snapshot.needed(found, target)] == ["other.py"]
    shutil.rmtree(target)
    files, found = taken(project, snapshot="script")
    assert (files, found.notes()) == ({"job.py"}, [])
    assert sorted(os.listdir(target)) == ["0.dat", "job.py", "other.py", "wide"]
    shutil.rmtree(target)
    _, found = taken(project, snapshot="script", max_files=1)
    assert (target / "other.py").is_symlink(), "modules before all else"
    assert [one.name for one in found.missing] == ["0.dat", "wide/"]
    shutil.rmtree(target)
    assert taken(project, snapshot="none") == (set(), snapshot.Taken())


def test_a_script_larger_than_the_limit_is_copied_nevertheless(project: Path) -> None:
    put(project, "job.py", 5000)
    assert taken(project, max_file="1K")[0] == {"job.py"}


@pytest.mark.parametrize("limit", [{"max_files": 4}, {"max_total": "4K"}])
def test_of_a_large_folder_single_files_and_packages_first(project: Path, limit: dict[str, Any]) -> None:
    """Each folder is copied whole or linked whole, so that no package is half in one place and half in another."""
    for number in range(6):
        put(project, f"data/{number}.txt", 900)
    put(project, "pack/__init__.py", 400)
    put(project, "pack/part.py")
    put(project, "helper.py")
    files, found = taken(project, **limit)
    assert files == {"job.py", "helper.py", "pack/__init__.py", "pack/part.py"}
    key, value = next(iter(limit.items()))
    assert found.left_out == (snapshot.LeftOut("data/", f"exceeds code.{key} = {value}"),)
    assert (project.parent / "target/data").readlink() == project / "data"
    assert f"does not copy data/ (exceeds code.{key} = {value}): " in found.notes()[0]
    assert "os.walk and rglob do not follow" in found.notes()[1]


def test_more_files_than_links_are_made(project: Path) -> None:
    for number in range(9):
        put(project, f"{number}.dat")
    put(project, "zz.py")
    files, found = taken(project, max_files=3)
    assert files == {"job.py", "zz.py", "0.dat"}, "modules before all else"
    assert [one.name for one in found.left_out] == ["1.dat", "2.dat", "3.dat"]
    assert [one.name for one in found.missing] == ["4.dat", "5.dat", "6.dat", "7.dat", "8.dat"]
    assert "4.dat (exceeds code.max_files = 3), 5.dat" in found.notes()[1]
    assert "and 2 more; with --set code.snapshot=none" in found.notes()[1]


def test_runs_that_are_kept_below_the_script(project: Path) -> None:
    target = project / "runs/one/code"
    target.mkdir(parents=True)
    snapshot.take(project / "job.py", target, Code())
    assert sorted(os.listdir(target)) == ["job.py", "runs"]
    assert (target / "runs").is_symlink()


@pytest.mark.parametrize("rule", ["folder", "script"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_package_that_is_run_by_its_name_is_in_the_copy(tmp_path: Path, rule: str, is_link: bool) -> None:
    """The module of ``-m thing`` is named like the entry of the folder, which a script's own file is not taken as."""
    folder, target = tmp_path / "folder", tmp_path / "target"
    for name in ("__init__.py", "__main__.py", "part/x.py"):
        put(tmp_path / "elsewhere" if is_link else folder, f"thing/{name}")
    put(folder, "beside.py")
    if is_link:
        (folder / "thing").symlink_to(tmp_path / "elsewhere/thing")
    count, _ = snapshot.preview(folder / "thing", target, Code(snapshot=rule), module=True)
    target.mkdir()
    snapshot.take(folder / "thing", target, Code(snapshot=rule), module=True)
    assert (target / "thing/part/x.py").exists()
    assert (target / "beside.py").exists()
    copied = [path for path in target.rglob("*.py") if not _linked(path)]
    assert len(copied) == count == (0 if rule == "script" else 1 if is_link else 4)


def test_a_script_that_is_a_link_has_the_modules_of_the_real_one(project: Path, tmp_path: Path) -> None:
    """Python imports from the folder of the file that it leads to; what lies beside the link is found too."""
    put(tmp_path / "real", "real.py", 7)
    put(tmp_path / "real", "helper.py", 9)
    put(project, "helper.py")
    put(project, "data.csv")
    (project / "job.py").unlink()
    (project / "job.py").symlink_to("../real/real.py")
    files, _ = taken(project)
    assert files == {"job.py", "real.py", "helper.py"}
    assert (tmp_path / "target" / "job.py").stat().st_size == 7
    assert (tmp_path / "target" / "helper.py").stat().st_size == 9
    assert (tmp_path / "target" / "data.csv").samefile(project / "data.csv")


def test_a_folder_that_vanishes_or_cannot_be_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything, so a folder that refuses is made by hand."""
    for name in ("pack/a.py", "pack/gone/b.py", "closed/a.py"):
        put(project, name)
    real = os.scandir

    def scandir(place: Path) -> object:
        if str(place).endswith("gone"):
            shutil.rmtree(place)
        if str(place).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    files, found = taken(project)
    assert files == {"job.py", "pack/a.py"}
    assert found.left_out == (snapshot.LeftOut("closed/", "parts of the folder cannot be read"),)


def test_what_the_code_imports_is_not_left_behind_when_it_is_sent(project: Path) -> None:
    (project / "job.py").write_text("import models\nimport numpy\nfrom pack import part\n")
    for name in ("pack/__init__.py", "pack/part.py"):
        put(project, name)
    for number in range(9):
        put(project, f"models/{number}.py")
        put(project, f"pictures/{number}.png")
    put(project, "pack/words.txt", 2000)
    put(project, "pack/tables.py", 2000)
    _, found = taken(project, linked=False, max_file="1K", max_files=8)
    missing = {one.name for one in found.missing}
    assert missing == {"models/", "pictures/", "pack/words.txt", "pack/tables.py"}
    assert {one.name for one in snapshot.needed(found, project.parent / "target")} == {"pack/tables.py"}
    assert not list((project.parent / "target").rglob("models"))


@pytest.mark.parametrize("linked", [True, False])
def test_a_script_in_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch, *, linked: bool) -> None:
    monkeypatch.setenv("HOME", str(project))
    for name in (".hpcml/runs/a", ".ssh/id", "helper.py", "pack/__init__.py", "pack/x.txt", "private.txt", "mail/a"):
        put(project, name)
    files, found = taken(project, linked=linked)
    assert files == {"job.py", "helper.py", "pack/__init__.py", "pack/x.txt"}
    target = project.parent / "target"
    assert not os.path.lexists(target / ".hpcml")
    assert sorted(path.name for path in target.iterdir() if path.is_symlink()) == (
        [".ssh", "mail", "private.txt"] if linked else []
    )
    assert [one.name for one in found.left_out or found.missing] == ["private.txt", "mail/"]
    shutil.rmtree(target)
    taken(project, snapshot="script")
    assert not os.path.lexists(target / ".hpcml")


def test_links_out_of_the_folder_are_not_sent(project: Path, tmp_path: Path) -> None:
    """Code of others may hold links to any file of the user's."""
    put(tmp_path, ".ssh/id")
    put(project, "inner.py")
    (project / "data").mkdir()
    for name in ("key.txt", "data/key"):
        (project / name).symlink_to(tmp_path / ".ssh/id")
    (project / "same.py").symlink_to("inner.py")
    files, found = taken(project, linked=False)
    assert files == {"job.py", "inner.py", "same.py"}
    why = "a link to a place outside the folder"
    assert found.missing == (snapshot.LeftOut("key.txt", why), snapshot.LeftOut("data/key", why))
    shutil.rmtree(tmp_path / "target")
    assert taken(project)[0] == {"job.py", "inner.py", "same.py", "key.txt", "data/key"}


def test_gpus_are_those_of_the_run_and_not_what_is_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("HPCML_GPUS", "4")
    monkeypatch.delenv("HPCML_RUN_DIR", raising=False)
    assert hpcml.run.gpus == 0, "connect() starts workers on CPUs there"
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    assert hpcml.run.gpus == 4
    monkeypatch.setenv("HPCML_GPUS", "0")
    assert hpcml.run.gpus == 0, "a run of CPU workers on a node that shows its GPUs"


def test_a_disk_whose_rest_is_root_s_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 free blocks none is for other users."""
    rest = os.statvfs_result((4096, 4096, 1 << 20, 1000, 0, 1 << 20, 1000, 1000, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: rest)
    assert directories.full(tmp_path) == f"the file system of the run is full ({tmp_path})"


@pytest.mark.parametrize(
    ("value", "kind", "fits"), [(True, bool, True), (True, int, False), (1, int, True), ("1", int, False)]
)
def test_a_value_of_a_record_is_of_its_kind(value: object, kind: type, fits: bool) -> None:
    with contextlib.nullcontext() if fits else pytest.raises(typed_json.DamagedError, match="a has the wrong type"):
        typed_json.Table({"a": value}).get("a", kind)


@pytest.mark.parametrize(
    ("when", "status", "starts"), [("any", 3, True), ("ok", 3, False), ("fail", 3, True), ("ok", 0, True)]
)
def test_a_run_of_this_machine_waits_for_the_end_that_was_asked_for(
    when: str, status: int, starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Status.of("before", phase="ended", exit_status=status, ended_as="FAILED" if status else "COMPLETED")
    became: list[list[str]] = []
    monkeypatch.setattr(waiting, "signal", mock.MagicMock())
    monkeypatch.setattr(directories, "load", lambda _: directories.Run("after", RunPaths(tmp_path), None))
    monkeypatch.setattr("hpcml.runs.record.planned", lambda _: SimpleNamespace(after=(Awaited("before", when),)))
    monkeypatch.setattr(waiting, "_look", lambda _: before)
    monkeypatch.setattr("hpcml.subprocesses.become", lambda command, _, **__: became.append(command))
    with contextlib.nullcontext() if starts else pytest.raises(SystemExit):
        waiting.main(tmp_path)
    assert (len(became), (tmp_path / "status.json").exists()) == (int(starts), not starts)


@pytest.mark.parametrize(("note", "stops"), [("", False), ("time_limit", True), ("terminate", True)])
def test_a_script_is_told_to_stop(note: str, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCML_ATTEMPT", "0")
    attempt = RunPaths(tmp_path).attempt(0)
    attempt.directory.mkdir(parents=True)
    if note:
        getattr(attempt, note).touch()
    assert hpcml.run.should_stop() == stops


def test_what_status_does_not_need_of_a_plan_may_be_damaged(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    table: dict[str, Any] = {
        "environment": 3,
        "inside": {"job": {"nodes": 2}, "deadlines": {"scheduler": []}, "report": 1},
    }
    paths.plan.write_text(json.dumps(table))
    run = directories.Run("a", paths, None)
    assert (record.planned(run).node_count, record.planned(run).kind) == (2, "dask")
    table["inside"]["job"]["nodes"] = "two"
    paths.plan.write_text(json.dumps(table))
    with pytest.raises(StorageError, match=r"inside\.job\.nodes is not a whole number"):
        record.planned(run)


def test_a_record_of_a_run_is_freed_at_once(tmp_path: Path) -> None:
    """A listing reads thousands of them: none may wait for the collector of cycles."""
    (tmp_path / "plan.json").write_text("{}")
    read = record.Record(RunPaths(tmp_path))
    assert (read.plan.memory, read.plan.inside.job.nodes, read.problems) == (0.0, 0, [])
    gone = weakref.ref(read)
    del read
    assert gone() is None


def test_each_point_of_a_sweep_has_results_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCML_POINT", json.dumps({"key": "k=1"}))
    assert hpcml.run.out == tmp_path / "out/k=1"


def test_a_run_of_this_machine_that_waits_for_another_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM is blocked until the run has a handler for it."""
    sent: list[int] = []

    def wait(_: float) -> None:
        assert not sent, "it was not heard"
        sent.append(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    monkeypatch.setattr(directories, "load", lambda _: directories.Run("after", RunPaths(tmp_path), None))
    monkeypatch.setattr("hpcml.runs.record.planned", lambda _: SimpleNamespace(after=(Awaited("before", "any"),)))
    monkeypatch.setattr(waiting, "_look", lambda _: Status.of("before", phase="running"))
    monkeypatch.setattr(time, "sleep", wait)
    try:
        with pytest.raises(SystemExit):
            waiting.main(tmp_path)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that is still blocked
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
        signal.signal(signal.SIGTERM, before[0])
    assert "cancelled before it started" in (tmp_path / "status.json").read_text()


def test_the_json_of_a_run_in_a_hold_names_the_run_and_not_the_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "train-20261129-120000-0a1b"
    directory.mkdir()
    held = Submission(job="7", run="hold-20261129-110000-0a1b", hold=str(tmp_path / "hold"), directory=str(directory))
    (directory / "submission.json").write_text(json.dumps(held.as_json()))
    submit.announce(directories.load(directory), as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["run"], facts["directory"], facts["job"]) == (directory.name, str(directory), "7")
