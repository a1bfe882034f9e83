"""Building images: what the command is, what is known beforehand, what a failure says, and the stream of its words."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hpcml import subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import ImageError, NotFoundError, StorageError, UsageError
from hpcml.failures.rule import Where
from hpcml.failures.rules import meaning
from hpcml.images import build, definitions, sif

APPTAINER = build.Program("/opt/bin/apptainer", "apptainer", (1, 4, 5), HPCML)


def order(tmp_path: Path, name: str = "cpu") -> build.Order:
    return build.Order(definitions.find_definition(name, Path()), tmp_path / "a.sif", APPTAINER, fakeroot=True, arguments={"B": "2", "A": "1 x"},
                             certificates="/a")  # fmt: skip


@pytest.mark.parametrize(
    ("said", "words"),
    [("FATAL: could not use fakeroot: no mapping entry found in /etc/subuid for ada", "(--fakeroot)"),
     ("ERROR  : Requesting capability set 0x1ff while permitted capability set is 0x1fe\nFATAL: while running %post section: exit status 1",
      "oot on this machine lacks capabilities"),
     ("FATAL: while pulling: dial tcp: lookup registry: no such host", "download failed"),
     ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    dask==2026.7.1 from https://index.example.org/a.whl "
      "(from -r /opt/hpcml/lock.txt (line 25)):\n        Expected sha256 0\n             Got        9\nFATAL: while running %post section: exit status 1",
      ": dask==2026.7.1"),
     ("FATAL: toomanyrequests: You have reached your pull rate limit", "too many downloads"),
     ("AssertionError: {'dask': '1'}\nFATAL: While performing build: failed to execute %test script: exit status 1", "its test failed"),
     ("E: Unable to locate package x\nFATAL: While performing build: while running engine: while running %post section: exit status 100", "%post failed"),
     ("INFO:    User not listed in /etc/subuid, trying root-mapped namespace\nFATAL: something new",
      "the image (its exit status was 255)")],
)  # fmt: skip
def test_a_failed_build_is_told_in_words(tmp_path: Path, said: str, words: str) -> None:
    error = build.failure(subprocesses.Answer(255, f"INFO: Starting build...\n{said}\n", ""), order(tmp_path))
    assert isinstance(error, ImageError)
    assert words in error.message
    assert error.quote[-1] == said.splitlines()[-1]
    assert error.hint
    assert "{" not in error.hint


@pytest.mark.parametrize(("said", "what", "place", "remedy"), [
    ("while creating SIF: while creating container: write {out}/.a.sif.35052.new: no space left on device",
     "space for the image: the disk is full", "{out}", "Write the image"),
    ("packer failed to pack: while unpacking local image: root filesystem extraction failed: failed to copy content in staging file: "
     "write /t/hpcml-build-uj6f/build-temp-18/archive-27: disk quota exceeded",
     "temporary folder: your quota is used up", "/t", "APPTAINER_TMPDIR"),
    ("while fetching library image: write /home/ada/.apptainer/cache/blob/tmp_1: no space left on device",
     "in the cache: the disk is full", "/home/ada/.apptainer/cache", "APPTAINER_CACHEDIR"),
])  # fmt: skip
def test_which_place_is_full(tmp_path: Path, said: str, what: str, place: str, remedy: str) -> None:
    """The words are Apptainer's (1.4), seen with folders that were too small."""
    text = f"INFO: Starting build...\nFATAL:   While performing build: {said.format(out=tmp_path)}\n"
    error = build.failure(subprocesses.Answer(255, text, ""), order(tmp_path))
    assert isinstance(error, StorageError)
    assert what in error.message
    assert error.place == place.format(out=tmp_path)
    assert remedy in error.hint


def test_a_build_that_never_ends(tmp_path: Path) -> None:
    assert "did not end within 6:00:00" in build.failure(subprocesses.Answer(None, "INFO", ""), order(tmp_path)).message


def test_ids_for_a_namespace(tmp_path: Path) -> None:
    table, name = tmp_path / "subuid", pwd.getpwuid(os.getuid()).pw_name
    with pytest.raises(ImageError, match="no subordinate user ids"):
        build.check_subordinate(table)
    table.write_text(f"x{name}:100000:65536\n")
    with pytest.raises(ImageError, match="no subordinate user ids"):
        build.check_subordinate(table)
    for owner in (name, str(os.getuid())):
        table.write_text(f"other:1:1\n{owner}:100000:65536\n")
        build.check_subordinate(table)


def test_too_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Bootstrap: docker\nFrom: a:1\n%labels\n    org.hpcml.space 900000T\n"
    own = definitions.Definition("a", tmp_path / "a.def", text)
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    with pytest.raises(StorageError, match="the build needs about") as caught:
        build.check_space(own, tmp_path / "a.sif", APPTAINER)
    assert (caught.value.place, "APPTAINER_TMPDIR" in caught.value.message) == (str(tmp_path), True)
    build.check_space(own._replace(text=text.replace("900000T", "1K")), tmp_path / "a.sif", APPTAINER)


def test_pip_s_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://file.example.org/simple\ntimeout = 5\n"
                                       "[install]\ntimeout = 6\n")  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example.org/simple")
    found = build.pip_settings()
    assert (found["index-url"], found["timeout"]) == ("https://variable.example.org/simple", "6")


def test_a_password_in_pip_s_index_stays_out_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = definitions.find_definition("cpu", tmp_path)

    def prepared(index: str) -> build.Order:
        monkeypatch.setattr(build, "pip_settings", lambda: {"index-url": index})
        return build.prepare(cpu, tmp_path / "a.sif", APPTAINER, fakeroot=False, given={}, force=False)

    assert prepared("https://index.example.org/simple").arguments["PIP_INDEX"] == "https://index.example.org/simple"
    secret = prepared("https://ada:secret@index.example.org/simple")
    assert "PIP_INDEX" not in secret.arguments
    assert any("password" in note for note in secret.notes)
    assert "secret" not in json.dumps([*secret.command(tmp_path / "new"), *secret.notes])


def test_debian_comes_from_the_mirror_of_this_machine_s_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wheels, given = definitions.find_definition("cpu-wheels", tmp_path), {"PIP_INDEX": ""}
    apt.write_text(
        "#!/bin/sh\necho 'Packages|Debian-Security|http://a.org/s/'; echo 'Packages|Debian|http://b.org/debian/'\n"
    )
    apt.chmod(0o755)
    assert build._arguments(wheels, given)[0]["MIRROR"] == "http://b.org/debian"
    apt.write_text(
        "#!/bin/sh\necho 'Packages|Debian|http://ada:secret@b.org/d/'; echo 'Packages|Ubuntu|http://b.org/u/'\n"
    )
    with pytest.raises(UsageError, match="no Debian mirror"):
        build._arguments(wheels, given)


def test_the_source_of_ucx_is_looked_for_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wheels = definitions.find_definition("rapids-cu12-wheels", tmp_path)
    given = {"PIP_INDEX": "", "MIRROR": "http://b.example.org/debian"}
    assert any("not support InfiniBand" in note for note in build._arguments(wheels, given)[2])
    with pytest.raises(NotFoundError, match="UCX is not a file"):
        build._arguments(wheels, {**given, "UCX_SOURCE": "ucx.tar.gz"})
    (tmp_path / "ucx.tar.gz").touch()
    arguments, _, notes = build._arguments(wheels, {**given, "UCX_SOURCE": "ucx.tar.gz"})
    assert (arguments["UCX_SOURCE"], notes) == (str(tmp_path / "ucx.tar.gz"), [])


def test_the_list_of_wheels_is_the_definition_s_own_and_of_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cpu = definitions.find_definition("cpu", tmp_path)
    assert build._arguments(cpu, {})[0]["LOCK"] == str(cpu.path.parent / "locks/cpu.txt")
    assert build._arguments(cpu, {"DASK": cpu.defaults["DASK"]})[0]["LOCK"].endswith("locks/cpu.txt")
    with pytest.raises(UsageError, match=r"another version than DASK=2026\.9\.0"):
        build._arguments(cpu, {"DASK": "2026.9.0"})
    with pytest.raises(NotFoundError, match="list of wheels is not a file"):
        build._arguments(cpu, {"DASK": "2026.9.0", "LOCK": "mine.txt"})
    (tmp_path / "mine.txt").touch()
    arguments, _, _ = build._arguments(cpu, {"DASK": "2026.9.0", "LOCK": "mine.txt"})
    assert arguments["LOCK"] == str(tmp_path / "mine.txt")
    (tmp_path / "mine.def").write_text(cpu.text)  # a copy without the folder beside it
    with pytest.raises(NotFoundError) as caught:
        build._arguments(definitions.find_definition("mine.def", tmp_path), {})
    assert str(cpu.path.parent / "locks") in caught.value.hint


def test_pip_refuses_a_wheel_with_another_hash_in_words_that_hpcml_knows(tmp_path: Path) -> None:
    """A real pip, so that its new words are noticed."""
    wheel = tmp_path / "cask-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("cask.py", "")
        archive.writestr("cask-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: cask\nVersion: 1.0\n")
        archive.writestr("cask-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("cask-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lines = {"hash": f"cask==1.0 --hash=sha256:{'0' * 64}", "no-hash": "cask==1.0", "no-wheel": f"cask==2.0 --hash=sha256:{digest}",
             "": f"cask==1.0 --hash=sha256:{digest}"}  # fmt: skip
    for rule, line in lines.items():
        (tmp_path / "lock.txt").write_text(line + "\n")
        places = ("--find-links", str(tmp_path), "--dest", str(tmp_path / "out"), "-r", str(tmp_path / "lock.txt"))
        words = [sys.executable, "-m", "pip", "--isolated", "download", "--no-index", "--require-hashes", *places]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        known = meaning(done.stdout + done.stderr, Where.BUILD)
        assert (known.rule.name if known else "") == rule, done.stderr
        assert (done.returncode == 0) == (not rule)


# -- the stream of a long command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["sleep 60 & wait", "exec >&- 2>&-; sleep 60"])
def test_a_stream_that_is_late_is_ended_with_all_that_it_started(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.monotonic

    def begun(_: bytes) -> None:  # the command has half a second from now on
        monkeypatch.setattr(time, "monotonic", lambda: real() + 599.5)

    answer = subprocesses.stream(["bash", "-c", f"echo $$; {shape}"], 600, begun, program=HPCML)
    assert answer.code is None
    group, end = int(answer.text), time.monotonic() + 120
    while subprocesses._living(group) and time.monotonic() < end:  # killed, and not gone yet
        time.sleep(0.02)
    assert subprocesses._living(group) == []


def test_the_record_of_an_image_holds_no_password(tmp_path: Path) -> None:
    arguments = {"INDEX": "https://ada:secret@pypi.example.org/simple", "PLAIN": "https://example.org"}
    image = sif.Image(tmp_path / "a.sif", 1, 0.0, "x86_64", {})
    made: Any = build._record(order(tmp_path)._replace(arguments=arguments), image, 1.0)
    assert made["arguments"] == {"INDEX": "https://…@pypi.example.org/simple", "PLAIN": "https://example.org"}
