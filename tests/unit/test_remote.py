"""What travels between laptop and login node: marked facts out of any bytes, names that lead nowhere else, notes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml import errors
from hpcml.remote import answers, server, upload
from hpcml.remote.answers import StreamDemux, mark
from hpcml.remote.ssh import check_host
from hpcml.remote.transfer import Entry, entries_of, listing, parts_of, receive, send

NONCE = "0123456789abcdef"
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"\x1e", b"\x1e0123", b"\n", mark(NONCE, run="a-20260101-000000-0000")]),
    )
)


@given(PIECES, st.integers(1, 9))
def test_facts_are_found_in_any_bytes_however_they_are_cut(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    demux, plain = StreamDemux(NONCE), b""
    facts: list[answers.CallFacts] = []
    for begin in range(0, len(data), size):
        more, found = demux.feed(data[begin : begin + size])
        plain, facts = plain + more, facts + found
    more, found = demux.feed(b"", last=True)
    plain, facts = plain + more, facts + found
    whole = mark(NONCE, run="a-20260101-000000-0000")
    assert len(facts) == data.count(whole)
    assert plain == data.replace(whole, b"")


def test_what_was_said_is_shown_at_once() -> None:
    assert StreamDemux(NONCE).feed(b"half a li") == (b"half a li", [])


@given(st.lists(st.sampled_from(["a", "b c", "..", ".", "", "\0", "~", "-x", "é"]), min_size=1, max_size=4))
def test_a_name_never_leads_out(parts: list[str]) -> None:
    name = "/".join(parts)
    try:
        found = parts_of(name)
    except errors.StorageError:
        assert {"..", ".", "", "\0"} & set(parts)
        return
    folder = Path("/somewhere/here")
    assert os.path.normpath(folder / name) == str(folder / Path(*found))
    assert (folder / name).is_relative_to(folder)


@pytest.mark.parametrize(
    "rows",
    [None, 5, [["a"]], [["a", "x", 0, 0]], [["a", -1, 0, 0]], [["a", 1, 0, 0], ["a", 1, 0, 0]], [["../a", 1, 0, 0]]],
)
def test_a_listing_that_is_none_is_refused(rows: object) -> None:
    with pytest.raises(errors.StorageError):
        entries_of(rows, "here")


def test_files_travel_unchanged_and_without_privileges(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    modes = {
        "plain": (0o644, 0o644),
        "sub/program": (0o755, 0o755),
        "sub/loose": (0o4777, 0o755),
        "closed": (0o400, 0o600),
    }
    for name, (mode, _) in modes.items():
        (source / name).write_bytes(os.urandom(1000))
        (source / name).chmod(mode)
    entries, others = listing(source)
    assert others == 0
    stream = io.BytesIO()
    send(source, entries, stream.write)
    stream.seek(0)
    old = os.umask(0o022)
    try:
        for entry in entries_of([list(entry) for entry in entries], "here"):
            receive(target, entry, stream.read)
    finally:
        os.umask(old)
    for name, (_, mode) in modes.items():
        assert (target / name).read_bytes() == (source / name).read_bytes()
        assert (target / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
        assert (target / name).stat().st_mode & 0o7777 == mode


def test_a_file_that_does_not_come_whole_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(errors.StorageError, match="arrived incomplete"):
        receive(tmp_path, Entry("a", 10, 0, 0o644), io.BytesIO(b"12345").read)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").symlink_to(outside)
    receive(folder, Entry("a", 3, 0, 0o644), io.BytesIO(b"new").read)
    assert (outside.read_text(), (folder / "a").read_text(), (folder / "a").is_symlink()) == ("mine", "new", False)


def test_a_file_that_shrinks_while_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    with pytest.raises(errors.StorageError, match="became shorter"):
        send(tmp_path, [Entry("a", 9, 0, 0o644)], io.BytesIO().write)


def test_arguments_that_name_what_is_not_sent(tmp_path: Path) -> None:
    for name in ("sub/conf.txt", "job.py", "data.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    sent = [Entry("sub/conf.txt", 1, 0, 0), Entry("job.py", 1, 0, 0)]
    words = (
        "sub/conf.txt", "./sub/conf.txt", "sub", "data.bin", "--in=data.bin", f"{tmp_path}/job.py", "other/data",
        "-v", "5", ".", "x" * 5000, "a\0b", "",
    )  # fmt: skip
    assert upload.unsent(words, tmp_path, sent) == ["data.bin", "--in=data.bin", f"{tmp_path}/job.py"]


@pytest.mark.parametrize("host", ["", "-v", "a b", "a\n", "a\x1b", "a\u2028"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(errors.UsageError):
        check_host(host)
    assert check_host("ssh://me@host:2222") == "ssh://me@host:2222"


def test_a_laptop_that_never_says_that_it_knows_the_run_s_id_submits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GO_DEADLINE", 0.01)
    session = server.RemoteSession({"words": ["submit", "job.py"], "nonce": "0" * 32}, 0)
    with pytest.raises(errors.LinkError, match="submitted no job"), session.handing_over("job-1"):
        pytest.fail("the run was handed over")
