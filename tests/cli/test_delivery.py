"""`hpcml --host HOST pack`: what is sent is in its place whole, or nothing of it is anywhere."""

from __future__ import annotations

import json
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml import __version__, errors
from hpcml.remote import receiver
from remote_world import Laptop
from world import until

A_PART = """import os, time
left = 100_000
while left and (piece := os.read(0, left)):
    os.write(1, piece)
    left -= len(piece)
open("stuck", "w").close()
time.sleep(1000)
"""
PARTS = f".*{receiver.END}"


def left(laptop: Laptop) -> list[str]:
    """Return what lies half-written on the login node, and temporary folders of this end."""
    temporary = laptop.world.top / "tmp"
    return [path.name for path in (*laptop.far.rglob(PARTS), *temporary.iterdir())]


@pytest.fixture(autouse=True)
def _temporary(laptop: Laptop) -> None:
    (laptop.world.top / "tmp").mkdir()
    laptop.world.environment["TMPDIR"] = str(laptop.world.top / "tmp")


def machine(laptop: Laptop, text: str) -> None:
    """Have the login node's `python3` be a shell script; `$REAL` is the real one."""
    place = laptop.world.top / "far-bin/python3"
    place.write_text(f"#!/bin/sh\nREAL={shlex.quote(str(Path(sys.executable).resolve()))}\n{text}\n")
    place.chmod(0o755)


def no_hpcml(laptop: Laptop) -> None:
    (laptop.world.top / "far-bin/hpcml").unlink()


def test_a_login_node_without_hpcml_gets_it(laptop: Laptop) -> None:
    no_hpcml(laptop)
    assert laptop.run("ls").returncode == errors.NOT_FOUND
    (laptop.far / "bin").mkdir()
    done = laptop.run("pack", "-o", "bin/hpcml")
    assert done.returncode == 0, done.stderr
    assert "bin/hpcml is on cluster" in done.stdout
    file = laptop.far / "bin/hpcml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o700
    assert laptop.run("ls", env={"HPCML_LOGIN__HPCML": shlex.quote(str(file))}).returncode == 0
    assert not (laptop.world.project / "hpcml.pyz").exists()
    again = laptop.run("pack", "-o", "bin/hpcml", "--json")
    assert (again.returncode, json.loads(again.stdout)["exit_status"]) == (errors.USAGE, errors.USAGE)
    assert "bin/hpcml already exists on cluster" in again.stderr
    facts = json.loads(laptop.run("pack", "-o", "bin/hpcml", "--force", "--json").stdout)
    assert facts == {"host": "cluster", "path": "bin/hpcml", "version": __version__, "bytes": file.stat().st_size}
    assert left(laptop) == []


def test_what_cannot_be_put_there_is_refused(laptop: Laptop) -> None:
    (laptop.far / "hpcml.pyz").mkdir()
    for words, status, said in (
        ((), errors.USAGE, "hpcml.pyz already exists on cluster"),
        (("-o", "nowhere/hpcml"), errors.STORAGE, "nowhere/hpcml does not exist on cluster"),
        (("--force",), errors.STORAGE, "on cluster: Is a directory"),
    ):
        done = laptop.run("pack", *words)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert said in done.stderr
    assert left(laptop) == []


def test_a_login_shell_may_greet(laptop: Laptop) -> None:
    machine(laptop, 'echo "Welcome to the cluster!"; exec "$REAL" "$@"')
    done = laptop.run("pack")
    assert done.returncode == 0, done.stderr
    assert "hpcml.pyz is on cluster" in done.stdout


def test_no_room_there(laptop: Laptop) -> None:
    """Before the first byte, by what the file system says; or in the middle, by its refusal."""
    no_hpcml(laptop)
    full = 'import os, collections; os.statvfs = lambda _: collections.namedtuple("F", "f_bavail f_frsize")(3, 1024)'
    machine(laptop, f'exec "$REAL" -IS -c \'{full}; import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))\' "$4"')
    done = laptop.run("pack")
    assert (done.returncode, done.stdout) == (errors.STORAGE, ""), done.stderr
    assert "hpcml.pyz on cluster: only 3.0 KiB" in done.stderr
    machine(laptop, 'trap "" XFSZ; ulimit -f 100; exec "$REAL" "$@"')
    done = laptop.run("pack")
    assert (done.returncode, done.stdout) == (errors.STORAGE, ""), done.stderr
    assert "on cluster: File too large" in done.stderr
    assert left(laptop) == []
    assert not (laptop.far / "hpcml.pyz").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_delivery_leaves_nothing(laptop: Laptop, number: int) -> None:
    """The login node reads a part, and then no more: the laptop is interrupted in the middle."""
    no_hpcml(laptop)
    (laptop.far / "pass.py").write_text(A_PART)
    machine(laptop, '"$REAL" -IS "$HOME/pass.py" | "$REAL" "$@"')
    words = [str(laptop.world.command), "--host", "cluster", "pack"]
    process = subprocess.Popen(words, env=laptop.world.environment, cwd=laptop.world.project, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    until((laptop.far / "stuck").exists)
    assert list(laptop.far.glob(PARTS))
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), err
    until(lambda: not left(laptop))
    assert not (laptop.far / "hpcml.pyz").exists()


def test_a_link_that_breaks_leaves_nothing(laptop: Laptop) -> None:
    no_hpcml(laptop)
    laptop.tell("payload")
    done = laptop.run("pack")
    assert (done.returncode, done.stdout) == (errors.UNREACHABLE, ""), done.stderr
    assert "The connection to cluster was lost" in done.stderr
    until(lambda: not left(laptop))
    laptop.tell()
    assert laptop.run("pack").returncode == 0, "it is repeated as it was typed"
