"""Files that others could have written, files that are put in place, and folders in which others could replace things."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml import safe_files
from hpcml.errors import StorageError
from hpcml.runs import directories

STRANGER = 12345
PACKAGE = Path(safe_files.__file__).parent


def give_by_acl(path: Path) -> None:
    """Let STRANGER write to it by a POSIX ACL; the mode shows the mask as the bits of the group."""
    nobody = 0xFFFFFFFF
    entries = ((0x01, 7, nobody), (0x02, 7, STRANGER), (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"this file system keeps no ACL: {error.strerror}")
    assert path.stat().st_mode & 0o070 == 0o070


@pytest.fixture
def root() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another account")


@pytest.mark.parametrize(("members", "primary", "name", "ours"), [
    ([], 777, "me", True), (["me", "you"], 777, "me", False), ([], 778, "me", False), ([], 777, "staff", False),
])  # fmt: skip
def test_a_group_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: None, members: list[str], primary: int, name: str, ours: bool
) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    os.chown(path, -1, 777)
    path.chmod(0o664)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=primary))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    if ours:
        assert safe_files.read_setting(path) == "x"
    else:
        with pytest.raises(safe_files.ForeignError, match=f"group {name} can write to the file"):
            safe_files.read_setting(path)


def test_a_file_is_written_whole_and_through_no_link(tmp_path: Path) -> None:
    target, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_text("mine")
    target.symlink_to(victim)
    safe_files.write(target, "new")
    assert (target.read_text(), victim.read_text()) == ("new", "mine")
    assert not target.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        safe_files.write(target, "half \ud800")
    assert sorted(os.listdir(tmp_path)) == ["a", "victim"]


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert safe_files.read(path, 100) == b"x" * 100
    with pytest.raises(safe_files.ForeignError, match="larger than 99 bytes"):
        safe_files.read(path, 99)
    with pytest.raises(safe_files.ForeignError, match="is a link"):
        safe_files.read(Path("/proc/self/exe"))


def test_a_record_of_another_user_is_not_read(tmp_path: Path, root: None) -> None:
    path = tmp_path / "a"
    path.write_text("theirs")
    os.chown(path, STRANGER, STRANGER)
    assert safe_files.read(path, ours=False) == b"theirs"
    with pytest.raises(safe_files.ForeignError, match=f"belongs to uid {STRANGER}"):
        safe_files.read(path)


def replaceable(path: Path, *trusted: str) -> list[tuple[str, str, bool]]:
    found = safe_files.replaceable(path, trusted)
    return [(one.path.name, one.who, one.meant) for one in found]


def test_who_can_replace_what_a_path_leads_to(tmp_path: Path, root: None) -> None:
    path = tmp_path / "a" / "b" / "runs"
    path.mkdir(parents=True)
    assert replaceable(path) == []
    assert replaceable(path / "not" / "there") == []
    (tmp_path / "a").chmod(0o777)
    assert replaceable(path) == [("a", "everybody", False)]
    (tmp_path / "a").chmod(0o1777)
    assert replaceable(path) == []
    os.chown(tmp_path / "a" / "b", STRANGER, -1)
    assert replaceable(path) == [("b", f"uid {STRANGER}", False)]
    assert replaceable(path, f"uid {STRANGER}") == []
    os.chown(tmp_path / "a" / "b", 0, STRANGER)
    (tmp_path / "a" / "b").chmod(0o2770)
    assert replaceable(path) == [("b", f"group gid {STRANGER}", True)]
    assert replaceable(path, f"@gid {STRANGER}") == []


def test_links_on_the_way_count_with_what_they_lead_to(tmp_path: Path, root: None) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "runs").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/../open/runs")
    assert replaceable(tmp_path / "link" / "x") == [("open", "everybody", False)]
    (tmp_path / "open").chmod(0o755)
    assert replaceable(tmp_path / "link" / "x") == []
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    assert replaceable(tmp_path / "link" / "x") == [("link", f"uid {STRANGER}", False)]
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="Too many levels"):
        replaceable(tmp_path / "ring" / "x")


def test_an_acl_is_no_group_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each user has a group of the same name, g+w alone lets nobody else in; the mask of an ACL looks the same."""
    me, gid = pwd.getpwuid(os.geteuid()).pw_name, os.getegid()
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name=me, pw_gid=gid))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=me, gr_mem=[]))
    folder = tmp_path / "a b"
    folder.mkdir()
    path = folder / "hpcml.toml"
    path.write_text("x")
    path.chmod(0o664)
    folder.chmod(0o775)
    assert safe_files.read_setting(path) == "x"
    assert replaceable(folder / "runs") == []

    give_by_acl(path)
    with pytest.raises(
        safe_files.ForeignError, match=r"through an ACL \(see getfacl .*a b/hpcml.toml'\), can write"
    ) as told:
        safe_files.read_setting(path)
    assert told.value.hint == f"chmod go-w '{path}'"
    subprocess.run(["chmod", "go-w", path], check=True)
    assert safe_files.read_setting(path) == "x"

    give_by_acl(folder)
    with pytest.raises(
        safe_files.ForeignError, match=r"other users, through an ACL .*, can write to the file's folder"
    ):
        safe_files.read_setting(path)
    assert replaceable(folder / "runs") == [("a b", f"other users, through an ACL (see getfacl '{folder}'),", True)]


def test_settings_of_the_account_that_installed_hpcml(tmp_path: Path, root: None) -> None:
    installed, site, path = tmp_path / "software", tmp_path / "site", tmp_path / "site" / "config.toml"
    shutil.copytree(PACKAGE, installed / "hpcml", ignore=shutil.ignore_patterns("__pycache__"))
    site.mkdir()
    path.write_text("x")
    code = "import sys; from pathlib import Path; from hpcml import safe_files; print(safe_files.__file__, safe_files.read_setting(Path(sys.argv[1])))"

    def read() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(path)]
        environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)

    for place in (site, path):
        os.chown(place, STRANGER, -1)
    assert f"the file's folder belongs to uid {STRANGER}" in read().stderr
    for place in (installed, *installed.rglob("*")):
        os.chown(place, STRANGER, -1)
    assert read().stdout == f"{installed}/hpcml/safe_files.py x\n"
    os.chown(path, STRANGER + 1, -1)
    assert f"the file belongs to uid {STRANGER + 1}" in read().stderr
    os.chown(path, STRANGER, -1)
    path.chmod(0o666)
    assert "everybody can write to the file" in read().stderr


def test_folders_of_whom_a_user_namespace_does_not_know(tmp_path: Path, root: None) -> None:
    """There root's folders look like nobody's: only the modes can be judged."""
    folder = tmp_path / "open"
    folder.mkdir()
    os.chown(folder, STRANGER, -1)
    code = (
        "import sys; from pathlib import Path; from hpcml import safe_files\n"
        "found = safe_files.replaceable(Path(sys.argv[1]) / 'runs')\nprint([one.who for one in found])"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    try:
        subprocess.run([*command[:3], "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no user namespace can be made here")
    assert [one.who for one in safe_files.replaceable(folder)] == [f"uid {STRANGER}"]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == "[]\n"
    folder.chmod(0o777)
    assert "everybody" in subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_nobody_is_never_to_be_trusted(tmp_path: Path, root: None) -> None:
    os.chown(tmp_path, safe_files.overflow_user(), -1)
    with pytest.raises(StorageError, match="this machine cannot identify the owner") as told:
        directories.check_folder(tmp_path / "runs", [])
    assert "paths.trust" not in told.value.hint
    os.chown(tmp_path, STRANGER, -1)
    with pytest.raises(StorageError) as told:
        directories.check_folder(tmp_path / "runs", [])
    assert "paths.trust" in told.value.hint


def test_a_file_without_permission_is_named_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file behind a link, and the folder on its way that is closed; chmod is for one's own alone."""
    real, link = tmp_path / "closed/bin/python", tmp_path / "python"
    real.parent.mkdir(parents=True)
    real.touch()
    link.symlink_to(real)
    me = pwd.getpwuid(os.geteuid()).pw_name
    what, step = safe_files.denied(link)
    assert what == f"{real} of {me}"
    assert "chmod" in step
    monkeypatch.setattr(os, "access", lambda path, _: not Path(path).is_relative_to(tmp_path / "closed/bin"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    what, step = safe_files.denied(link)
    assert what == f"{real}: {tmp_path}/closed belongs to {me}"
    assert f"Ask {me}" in step
    assert "chmod" not in step
