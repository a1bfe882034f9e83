"""Files that others could have written, files that are put in place, and folders in which others could replace things."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml import files

STRANGER = 12345


@pytest.fixture
def root() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another account")


@pytest.mark.parametrize(("members", "primary", "name", "ours"), [
    ([], 777, "me", True), (["me"], 777, "me", True), (["me", "you"], 777, "me", False), ([], 778, "me", False), ([], 777, "staff", False),
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
        assert files.read_setting(path) == "x"
    else:
        with pytest.raises(files.ForeignError, match=f"group {name} may write to it"):
            files.read_setting(path)


def test_a_file_is_written_whole_and_through_no_link(tmp_path: Path) -> None:
    target, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_text("mine")
    target.symlink_to(victim)
    files.write(target, "new")
    assert (target.read_text(), victim.read_text()) == ("new", "mine")
    assert not target.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        files.write(target, "half \ud800")
    assert sorted(os.listdir(tmp_path)) == ["a", "victim"]
    assert len({files.beside(target) for _ in range(100)}) == 100


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert files.read(path, 100) == b"x" * 100
    with pytest.raises(files.ForeignError, match="larger than 99 bytes"):
        files.read(path, 99)
    with pytest.raises(files.ForeignError, match="larger"):
        files.read(Path("/proc/self/status"), 10)  # of size 0, as the system says
    with pytest.raises(files.ForeignError, match="is a link"):
        files.read(Path("/proc/self/exe"))


def replaceable(path: Path, *trusted: str) -> list[tuple[str, str, bool]]:
    found = files.replaceable(path, trusted)
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
