"""Building images: what the command is, what is known beforehand, what a failure says, and the stream of its words."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml import subprocesses
from hpcml.errors import ImageError, NotFoundError, StorageError, UsageError
from hpcml.images import build, sif

APPTAINER = build.Program("/opt/bin/apptainer", "apptainer", (1, 4, 5))


def order(tmp_path: Path, name: str = "cpu") -> build.Order:
    return build.Order(sif.find_definition(name, Path()), tmp_path / "a.sif", APPTAINER, fakeroot=True, arguments={"B": "2", "A": "1 x"},
                             certificates="/a")  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    made = order(tmp_path)
    assert made.command(tmp_path / "new") == [
        "/opt/bin/apptainer", "build", "--fakeroot", "--bind", "/a:/etc/ssl/certs/ca-certificates.crt", "--build-arg", "A=1 x", "--build-arg", "B=2",
        str(tmp_path / "new"), str(made.definition.path),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "words", "kind"),
    [("FATAL:   While performing build: packer failed to pack: write /tmp/archive-40: no space left on device", "ran out of space", StorageError),
     ("tar: x: Cannot write: Disk quota exceeded", "ran out of space", StorageError),
     ("FATAL: could not use fakeroot: no mapping entry found in /etc/subuid for ada", "(--fakeroot)", ImageError),
     ("ERROR  : Requesting capability set 0x1ff while permitted capability set is 0x1fe\nFATAL: while running %post section: exit status 1",
      "oot on this machine lacks capabilities", ImageError),
     ("ERROR: newuidmap execution failed", "(--fakeroot)", ImageError),
     ("FATAL: while pulling: dial tcp: lookup registry: no such host", "download failed", ImageError),
     ("FATAL: toomanyrequests: You have reached your pull rate limit", "too many downloads", ImageError),
     ("AssertionError: {'dask': '1'}\nFATAL: While performing build: failed to execute %test script: exit status 1", "its test failed", ImageError),
     ("E: Unable to locate package x\nFATAL: While performing build: while running engine: while running %post section: exit status 100", "%post failed", ImageError),
     ("INFO:    User not listed in /etc/subuid, trying root-mapped namespace\nFATAL: something new", "did not build the image", ImageError),
     ("FATAL: something new", "did not build the image (its exit status was 255)", ImageError)],
)  # fmt: skip
def test_a_failed_build_is_told_in_words(tmp_path: Path, said: str, words: str, kind: type[Exception]) -> None:
    error = build.failure(subprocesses.Answer(255, f"INFO: Starting build...\n{said}\n", ""), order(tmp_path))
    assert isinstance(error, kind)
    assert words in error.message
    assert error.quote[-1] == said.splitlines()[-1]
    assert error.hint
    assert "{" not in error.hint


IMAGE = (
    "FATAL:   While performing build: while creating SIF: while creating container: write {out}/.a.sif.35052.new: {why}"
)
ROOM = ("FATAL:   While performing build: packer failed to pack: while unpacking local image: root filesystem extraction failed: "
        "failed to copy content in staging file: write /t/hpcml-build-uj6f/build-temp-18/archive-27: {why}")  # fmt: skip
CACHE = "FATAL:   Unable to build: while fetching library image: write /home/ada/.apptainer/cache/blob/tmp_1: {why}"


@pytest.mark.parametrize(("said", "what", "place", "remedy"), [
    (IMAGE, "out of space for the image", "{out}", "Write the image"),
    (ROOM, "out of space in its temporary folder", "/t", "APPTAINER_TMPDIR"),
    (CACHE, "out of space in the cache", "/home/ada/.apptainer/cache", "APPTAINER_CACHEDIR"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("why", "words"),
    [("no space left on device", "the disk is full"), ("disk quota exceeded", "your quota is used up")],
)
def test_which_place_is_full(
    tmp_path: Path, said: str, what: str, place: str, remedy: str, why: str, words: str
) -> None:
    """The words are Apptainer's (1.4), seen with folders that were too small."""
    text = said.format(out=tmp_path, why=why)
    error = build.failure(subprocesses.Answer(255, f"INFO: Starting build...\n{text}\n", ""), order(tmp_path))
    assert isinstance(error, StorageError)
    assert what in error.message
    assert words in error.message
    assert error.place == place.format(out=tmp_path)
    assert remedy in error.hint


def test_a_build_that_never_ends(tmp_path: Path) -> None:
    assert "did not end within 6:00:00" in build.failure(subprocesses.Answer(None, "INFO", ""), order(tmp_path)).message


def test_ids_for_a_namespace(tmp_path: Path) -> None:
    table, name = tmp_path / "subuid", pwd.getpwuid(os.getuid()).pw_name
    for text in (None, "", f"x{name}:100000:65536\n"):
        if text is not None:
            table.write_text(text)
        with pytest.raises(ImageError, match="no subordinate user ids"):
            build.check_subordinate(table)
    for owner in (name, str(os.getuid())):
        table.write_text(f"other:1:1\n{owner}:100000:65536\n")
        build.check_subordinate(table)


def test_too_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Bootstrap: docker\nFrom: a:1\n%labels\n    org.hpcml.space 900000T\n"
    own = sif.Definition("a", tmp_path / "a.def", text)
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    with pytest.raises(StorageError, match="the build needs about") as caught:
        build.check_space(own, tmp_path / "a.sif", APPTAINER)
    assert (caught.value.place, "APPTAINER_TMPDIR" in caught.value.message) == (str(tmp_path), True)
    monkeypatch.delenv("APPTAINER_TMPDIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nope"))
    with pytest.raises(StorageError, match="No such file"):
        build.check_space(own, tmp_path / "a.sif", APPTAINER)
    monkeypatch.delenv("TMPDIR")
    build.check_space(own._replace(text=text.replace("900000T", "1K")), tmp_path / "a.sif", APPTAINER)


def test_pip_s_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://file.example.org/simple\ntimeout = 5\n"
                                       "[install]\nindex-url = https://install.example.org/simple\n")  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    found = build.pip_settings()
    assert (found["index-url"], found["timeout"]) == ("https://install.example.org/simple", "5")
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example.org/simple")
    found = build.pip_settings()
    assert found["index-url"] == "https://variable.example.org/simple"


def test_a_password_in_pip_s_index_stays_out_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = sif.find_definition("cpu", tmp_path)

    def prepared(index: str) -> build.Order:
        monkeypatch.setattr(build, "pip_settings", lambda: {"index-url": index})
        return build.prepare(cpu, tmp_path / "a.sif", APPTAINER, fakeroot=False, given={}, force=False)

    assert prepared("https://index.example.org/simple").arguments == {"PIP_INDEX": "https://index.example.org/simple"}
    secret = prepared("https://ada:secret@index.example.org/simple")
    assert secret.arguments == {}
    assert any("password" in note for note in secret.notes)
    assert "secret" not in json.dumps([*secret.command(tmp_path / "new"), *secret.notes])


@pytest.mark.parametrize(("listed", "mirror"), [
    ("Packages|Debian-Security|http://a.example.org/security/\nPackages|Debian|http://b.example.org/debian/\n",
     "http://b.example.org/debian"),
    ("Packages|Debian|http://ada:secret@b.example.org/debian/\nContents|Debian|http://c.example.org/debian/\n", ""),
    ("Packages|Ubuntu|http://b.example.org/ubuntu/\n", ""),
])  # fmt: skip
def test_debian_comes_from_the_mirror_of_this_machine_s_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, mirror: str
) -> None:
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text(f"#!/bin/sh\ncat <<'END'\n{listed}END\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "pip_settings", dict)
    wheels, given = sif.find_definition("cpu-wheels", tmp_path), {"PIP_INDEX": ""}
    if mirror:
        assert build._arguments(wheels, given)[0]["MIRROR"] == mirror
    else:
        with pytest.raises(UsageError, match="no Debian mirror"):
            build._arguments(wheels, given)
    own = {**given, "MIRROR": "http://own.example.org/debian"}
    assert build._arguments(wheels, own)[0]["MIRROR"] == own["MIRROR"]


def test_the_source_of_ucx_is_looked_for_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "check_space", lambda *_: None)
    monkeypatch.setattr(build, "pip_settings", dict)
    monkeypatch.setattr(build, "apt_mirror", lambda: "http://b.example.org/debian")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/sbin/debootstrap")
    monkeypatch.chdir(tmp_path)

    def prepared(**given: str) -> build.Order:
        wheels = sif.find_definition("rapids-cu12-wheels", tmp_path)
        return build.prepare(wheels, tmp_path / "a.sif", APPTAINER, fakeroot=False, given=given, force=False)

    assert any("UCX_SOURCE" in note and "not support InfiniBand" in note for note in prepared().notes)
    with pytest.raises(NotFoundError, match="UCX is not a file"):
        prepared(UCX_SOURCE="ucx.tar.gz")
    (tmp_path / "ucx.tar.gz").touch()
    order = prepared(UCX_SOURCE="ucx.tar.gz")
    assert order.arguments["UCX_SOURCE"] == str(tmp_path / "ucx.tar.gz")
    assert not any("InfiniBand" in note for note in order.notes)


# -- the stream of a long command -----------------------------------------------------------------------------------


def test_a_stream_hands_on_what_comes_and_keeps_the_end() -> None:
    pieces: list[bytes] = []
    answer = subprocesses.stream(["sh", "-c", "echo one; echo two >&2; exit 3"], 20, pieces.append)
    assert (answer.code, answer.text) == (3, "one\ntwo")
    assert b"".join(pieces) == b"one\ntwo\n"


def living(group: int) -> list[str]:
    """Return the processes of a group; those that have ended and were not collected yet do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it went while we looked
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("shape", ["sleep 60", "sleep 60 & wait", "exec >&- 2>&-; sleep 60"])
def test_a_stream_that_is_late_is_ended_with_all_that_it_started(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.monotonic

    def begun(_: bytes) -> None:  # the command has half a second from now on
        monkeypatch.setattr(time, "monotonic", lambda: real() + 599.5)

    answer = subprocesses.stream(["bash", "-c", f"echo $$; {shape}"], 600, begun)
    assert answer.code is None
    group, end = int(answer.text), time.monotonic() + 120
    while living(group) and time.monotonic() < end:  # killed, and not gone yet
        time.sleep(0.02)
    assert living(group) == []


@pytest.mark.parametrize("leader", ["exec sleep 60", "trap 'exit 0' INT; while :; do sleep 0.05; done"])
def test_what_a_command_started_may_clean_up_after_the_command_has_ended(tmp_path: Path, leader: str) -> None:
    """The command goes at the first signal; its child needs a little longer, and is not killed within that."""
    child = (
        "import pathlib, signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: (time.sleep(0.3), sys.exit()))\n"
    )
    child += "try:\n  print('begun', flush=True)\n  time.sleep(60)\nfinally:\n  pathlib.Path('clean').touch()\n"
    (tmp_path / "child.py").write_text(child)
    command = ["bash", "-c", f"cd {tmp_path}; {sys.executable} child.py & {leader}"]

    def interrupt(_: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subprocesses.stream(command, 60, interrupt)
    assert (tmp_path / "clean").exists()


def test_what_has_ended_and_is_not_collected_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose first process collects nobody: here this process gets the orphans, and leaves them."""
    in_vain: list[bool] = []
    child = subprocesses.Child(["sh", "-c", "sleep 60 & wait"])

    def sleep(seconds: float, real: Callable[[float], None] = time.sleep) -> None:
        in_vain.append(not living(child.process.pid))
        assert sum(in_vain) < 3, "it waits for processes that have ended"
        real(seconds)

    be_subreaper = functools.partial(ctypes.CDLL(None, use_errno=True).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    assert be_subreaper(1) == 0
    try:
        end = time.monotonic() + 60
        while len(living(child.process.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        monkeypatch.setattr(time, "sleep", sleep)
        child.stop()
        os.killpg(child.process.pid, 0)  # the orphan is still there, so this was tried
    finally:
        be_subreaper(0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-child.process.pid, 0)


def test_a_signal_that_comes_while_the_command_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler raises: were it called before the process has a name here, nobody would end the process."""
    started, real = [], subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            subprocesses.stream(["sleep", "60"], 30, lambda _: None)
        assert signal.getsignal(signal.SIGTERM) is interrupted
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].poll() == -signal.SIGINT
    assert living(started[0].pid) == []


def test_the_record_of_an_image_holds_no_password(tmp_path: Path) -> None:
    arguments = {"INDEX": "https://ada:secret@pypi.example.org/simple", "PLAIN": "https://example.org"}
    image = sif.Image(tmp_path / "a.sif", 1, 0.0, "x86_64", {})
    made: Any = build._record(order(tmp_path)._replace(arguments=arguments), image, 1.0)
    assert made["arguments"] == {"INDEX": "https://…@pypi.example.org/simple", "PLAIN": "https://example.org"}
