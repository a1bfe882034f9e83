"""``hpcml wheelhouse``: the wheels for another machine, by the real pip from a folder in the place of an index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcml import __version__
from world import World

OWN = f"hpcml-{__version__}-py3-none-any.whl"
HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"


def wheel(folder: Path, name: str, tag: str, requires: str = "") -> str:
    """Write a wheel that holds one module, and return its name."""
    path, info = folder / f"{name}-3.1-{tag}.whl", f"{name}-3.1.dist-info"
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n" + (f"Requires-Dist: {requires}\n" if requires else "")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", said)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path.name


@pytest.fixture
def index(world: World) -> Path:
    folder = world.top / "index"
    folder.mkdir()
    wheel(folder, "jinja2", "py3-none-any", "markupsafe")
    for python in ("cp399", HERE):
        for platform in (
            "manylinux2014_aarch64",
            "manylinux_2_34_aarch64",
            "manylinux2014_x86_64",
            "manylinux_2_34_x86_64",
        ):
            wheel(folder, "markupsafe", f"{python}-{python}-{platform}")
    # pip divides PIP_FIND_LINKS at spaces: it is called where the folder is named without any
    (world.project / "index").symlink_to(folder)
    world.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "index", "PIP_CONFIG_FILE": os.devnull}
    return folder


def test_for_another_machine(world: World, index: Path) -> None:
    words = ("--extra", "none", "--python", "3.99", "--platform", "manylinux_2_28_aarch64", "--json")
    done = world.run("wheelhouse", *words)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    expected = [OWN, "jinja2-3.1-py3-none-any.whl", "markupsafe-3.1-cp399-cp399-manylinux2014_aarch64.whl"]
    assert facts["wheels"] == expected == sorted(os.listdir(world.project / "wheelhouse"))
    before = world.run("wheelhouse", *words)
    assert (before.returncode, "wheelhouse is there already" in before.stderr) == (64, True)


def test_it_is_installed_without_a_network(world: World, index: Path) -> None:
    done = world.run("wheelhouse", "--extra", "none", "-o", "for nodes")
    assert done.returncode == 0, done.stderr
    assert "pip install --no-index --find-links 'for nodes' hpcml" in done.stdout
    there = world.top / "there"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        "for nodes",
        "--target",
        str(there),
        "hpcml",
    ]
    done = subprocess.run(install, cwd=world.project, capture_output=True, text=True, check=False,
                          env={"HOME": str(world.home), "PATH": "/usr/bin", "PIP_CONFIG_FILE": os.devnull})  # fmt: skip
    assert done.returncode == 0, done.stderr
    python = Path(sys.executable).resolve()
    hpcml = [str(python), "-S", "-P", "-c", "import sys; from hpcml.cli.main import main; sys.exit(main())"]
    for words, said in (
        (("--version",), __version__),
        (("submit", "--dry-run", "--site", "slurm", "job.py"), "#SBATCH"),
        (("new",), "kmeans"),
    ):
        done = subprocess.run([*hpcml, *words], cwd=world.project, env=world.environment | {"PYTHONPATH": str(there)}, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert (done.returncode, said in done.stdout) == (0, True), done.stderr
    assert (there / "bin/hpcml").is_file()


def test_what_cannot_be_had_leaves_nothing(world: World, index: Path) -> None:
    for words, status, said in (
        (("--python", "3.98"), 66, "No matching distribution found for markupsafe"),
        (("--python", "3.9"), 64, "no Python that runs hpcml"),
        (("--platform", "win_amd64"), 64, "no platform of Linux"),
        (("--extra", "nodes"), 64, "Did you mean node?"),
        (("-o", "job.py/house"), 74, "cannot be made"),
    ):
        done = world.run("wheelhouse", "--extra", "none", *words)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert said in done.stderr
    assert {path.name for path in world.project.iterdir()} == {"index", "job.py"}
