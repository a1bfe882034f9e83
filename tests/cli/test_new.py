"""``hpcml new``: a script to begin with, never in the place of another."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
from pathlib import Path

from hpcml import errors
from tests.said import in_order
from world import World

JOBS = Path(__file__).resolve().parents[2] / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.py"))


def test_it_writes_an_example(world: World) -> None:
    for words, example in (
        (("first.py",), "minimal"),
        (("first", "kmeans"), "kmeans"),
        (("forest",), "forest"),
    ):
        done = world.run("new", *words, env={"HPCML_HOST": "me@login.example.org"})  # it is written here nevertheless
        assert (done.returncode, done.stderr) == (0, "")
        path = world.project / f"{words[0].removesuffix('.py')}.py"
        assert path.read_bytes() == (JOBS / f"{example}.py").read_bytes()
        sentence = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
        assert f"Wrote {path.name}: {sentence}" in done.stdout
        assert f"hpcml submit {path.name}" in done.stdout
        path.unlink()
    said = world.run("new", "train", "ddp").stdout
    assert re.search(
        in_order("submit --site local --ranks 2 train.py", "cluster: hpcml submit --ranks 2 train.py"), said
    )
    found = json.loads(world.run("new", "--json", "first", "etl").stdout)
    assert found == {"path": str(world.project / "first.py"), "example": "etl"}


def test_the_packages_that_an_example_imports(world: World) -> None:
    """``groups.py`` would not start without ``lloyd``. A file of the package that the user has changed stays."""
    (world.project / "lloyd").mkdir()
    (world.project / "lloyd/kernels.cu").write_text("mine")
    done = world.run("new", "groups", "kmeans")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Wrote the folder lloyd: groups.py imports it." in done.stdout
    assert sorted(os.listdir(world.project / "lloyd")) == ["__init__.py", "kernels.cu"]
    assert (world.project / "lloyd/__init__.py").read_bytes() == (JOBS / "lloyd/__init__.py").read_bytes()
    assert (world.project / "lloyd/kernels.cu").read_text() == "mine"
    assert world.run("new", "forest").returncode == 0
    assert sorted(path.name for path in world.project.iterdir() if path.is_dir()) == ["lloyd"]


def test_it_lists_the_examples(world: World) -> None:
    done = world.run("new")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES
    assert sorted(json.loads(world.run("new", "--json").stdout)) == NAMES


def test_nothing_is_overwritten(world: World) -> None:
    before = world.script.read_text()
    (world.project / "link.py").symlink_to("nowhere")
    for name in ("job", "link"):
        done = world.run("new", name, "kmeans")
        assert done.returncode == errors.USAGE
        assert "already exists" in done.stderr
        assert "Choose another name." in done.stderr
    assert world.script.read_text() == before
    assert sorted(os.listdir(world.project)) == ["job.py", "link.py"]


def test_an_unknown_example(world: World) -> None:
    done = world.run("new", "first", "kmean")
    assert done.returncode == errors.USAGE
    assert "There is no example 'kmean'" in done.stderr
    assert "Did you mean hpcml new first kmeans?" in done.stderr
    done = world.run("new", "kmeans", "groups")
    assert (done.returncode, "Did you mean hpcml new groups kmeans?" in done.stderr) == (errors.USAGE, True)
    assert os.listdir(world.project) == ["job.py"]
    assert world.run("new", "kmean", "minimal").returncode == 0


def test_a_full_disk_leaves_nothing(world: World) -> None:
    done = world.run("new", "first", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
    assert (done.returncode, "cannot be written" in done.stderr) == (errors.STORAGE, True), done.stderr
    assert not (world.project / "first.py").exists()
