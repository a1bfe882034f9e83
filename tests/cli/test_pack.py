"""``hpcml pack``: hpcml as one file, run by a Python that has nothing else, in a folder that holds nothing else."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcml.cli import pack_start
from world import World


class Login:
    """A login node with the file alone; `run` starts it by a Python without packages."""

    def __init__(self, world: World, file: Path) -> None:
        self.world = world
        self.folder = world.top / "login"
        self.folder.mkdir()
        self.file = Path(shutil.copy(file, self.folder))

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        python = Path(sys.executable).resolve()
        environment = {**self.world.environment, **variables}
        return subprocess.run([str(python), "-I", "-S", str(self.file), *words], cwd=self.folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)  # fmt: skip

    def unpacked(self) -> list[Path]:
        return sorted((self.world.home / ".cache/hpcml").iterdir())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, hpcml_command: Path) -> Path:
    world = World(tmp_path_factory.mktemp("packed"), hpcml_command)
    done = world.run("pack")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Wrote hpcml.pyz: " in done.stdout
    return world.project / "hpcml.pyz"


@pytest.fixture
def login(world: World, packed: Path) -> Login:
    return Login(world, packed)


def test_it_does_what_hpcml_does(login: Login) -> None:
    assert login.run("--version").stdout == login.world.run("--version").stdout
    assert login.run("site", "ls").stdout == login.world.run("site", "ls").stdout
    assert "Wrote first.py: " in login.run("new", "first", "kmeans").stdout
    own = login.folder / "templates"
    own.mkdir()
    (own / "batch.sh.j2").write_text(
        '{% extends "hpcml/batch.sh.j2" %}\n{% block environment %}\n: by-jinja\n{% endblock %}\n'
    )
    (place := login.world.home / ".config/hpcml").mkdir(parents=True)
    for template in (False, True):
        if template:
            own.rename(place / "templates")
        done = login.run("submit", "--dry-run=script", "--site", "leonardo", "--account", "a", "first.py")
        assert done.returncode == 0, done.stderr
        assert "#SBATCH --account=a" in done.stdout
        assert (": by-jinja" in done.stdout) == template
    done = login.run("submit", "--detach", "--site", "slurm", "--python", sys.executable, "first.py")
    assert done.returncode == 0, done.stderr
    assert login.world.calls("sbatch")
    assert len(login.unpacked()) == 1  # once for all of these


def test_it_packs_itself(login: Login) -> None:
    done = login.run("pack", "-o", "again.pyz", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(login.folder / "again.pyz")
    with zipfile.ZipFile(login.file) as one, zipfile.ZipFile(login.folder / "again.pyz") as two:
        assert {name: one.read(name) for name in one.namelist()} == {name: two.read(name) for name in two.namelist()}
        assert "lib/hpcml/_assets/containers/locks/cpu.txt" in one.namelist()  # `hpcml image build cpu` wants it
        licences = [name for name in one.namelist() if "LICENSE" in name]
    assert {name.split("/")[1].partition("-")[0] for name in licences} == {"hpcml", "jinja2", "markupsafe"}


def test_it_replaces_nothing_unasked(world: World) -> None:
    before = world.script.read_bytes()
    done = world.run("pack", "-o", "job.py")
    assert (done.returncode, world.script.read_bytes()) == (64, before)
    assert "job.py already exists" in done.stderr
    assert world.run("pack", "-o", "nowhere/hpcml.pyz").returncode == 74
    assert world.run("pack", "-o", "job.py", "--force").returncode == 0


def test_what_was_unpacked_is_the_user_s_own(login: Login) -> None:
    assert login.run("--version").returncode == 0
    (folder,) = login.unpacked()
    folder.chmod(0o777)
    done = login.run("--version")
    assert (done.returncode, done.stdout) == (74, "")
    assert "Other users could have changed" in done.stderr
    cache = login.world.top / "shared"  # in which others could give the cache another name, between look and import
    (cache / "below").mkdir(parents=True)
    for mode in (0o777, 0o755):
        cache.chmod(mode)
        for place in (cache, cache / "below"):
            done = login.run("--version", XDG_CACHE_HOME=str(place))
            assert done.returncode == (74 if mode == 0o777 else 0), done.stderr
            assert ("Other users can replace the unpacked files" in done.stderr) == (mode == 0o777)
            assert (place / "hpcml").exists() == (mode == 0o755)
    done = login.run("--version", XDG_CACHE_HOME="/proc/nowhere")
    assert done.returncode == 74
    assert "set XDG_CACHE_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_an_older_python_is_told(login: Login) -> None:
    """Its first lines are read by any Python 3; a newer one on PATH takes over, otherwise a sentence says what to do."""
    with zipfile.ZipFile(login.file) as archive:
        first = archive.read("__main__.py").decode()
    ast.parse(first, feature_version=(3, 4))
    script = login.folder / "first.py"
    script.write_text(first.replace("OLDEST = (3, 11)", "OLDEST = (3, 99)"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env={"PATH": ""})
    assert done.returncode == 78
    assert "needs Python 3.11 or newer" in done.stderr
    newer = login.world.bin / "python3.99"
    newer.write_text('#!/bin/sh\n[ "$1" = -I ] || echo "$@"\n')
    newer.chmod(0o755)
    script.write_text(first.replace("OLDEST = (3, 11)", "OLDEST = (3, 99)").replace("range(40", "range(100"))
    done = subprocess.run([sys.executable, str(script), "ls", "--all"], capture_output=True, text=True, check=False,
                          env={"PATH": f"{login.world.bin}"})  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{script} ls --all\n")


def test_of_two_first_starts_the_later_one_takes_what_the_other_unpacked(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(new: str, folder: str) -> None:
        shutil.copytree(new, folder)
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pack_start, "refuse_shared", lambda *_: None)
    monkeypatch.setattr(os, "rename", late)
    folder = Path(pack_start.unpacked(str(packed)))
    assert (folder / "hpcml/cli/main.py").is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing is left of the own one
