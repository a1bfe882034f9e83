"""The wheel holds what a login node needs, and works where nothing of the checkout is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.doc_blocks import PAGES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("hpcml-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that is built from the source distribution, so that it lacks what that lacks."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--disable-pip-version-check", "--no-build-isolation", "-w", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_source_distribution_holds_what_the_documentation_links_to(source: Path) -> None:
    listed = subprocess.run(["tar", "tzf", source], check=True, capture_output=True, text=True).stdout
    names = {name.partition("/")[2] for name in listed.splitlines()}
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= names
    assert {"LICENSE", "CITATION.cff", "Makefile", "mkdocs.yml", "pyproject.toml"} <= names


def test_it_holds_code_and_assets(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for path in [*(ROOT / "hpcml").rglob("*.py"), *(ROOT / "hpcml").rglob("*.toml"), ROOT / "hpcml" / "py.typed"]:
        assert str(path.relative_to(ROOT)) in names
    for folder in ("templates", "templates/sbatch", "jobs", "jobs/lloyd", "containers"):
        for path in (ROOT / folder).glob("*.*"):
            assert f"hpcml/_assets/{folder}/{path.name}" in names
    for path in (ROOT / "jobs").glob("*.py"):  # what `hpcml new` writes
        assert f"hpcml/_assets/jobs/{path.name}" in names
    for path in (ROOT / "docs").glob("*.md"):  # what `hpcml help` shows
        assert f"hpcml/_assets/docs/{path.name}" in names
    assert not [name for name in names if name.startswith(("docs/", "tests/", "hpcml/_assets/tests"))]
    assert not [name for name in names if "__pycache__" in name or name.endswith("/lab.toml")]


def test_it_renders_the_same_script_as_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "job.py").write_text("1\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from hpcml.cli.main import main; sys.exit(main(sys.argv[2:]))"
    outputs = []
    for place in (tmp_path / "site", ROOT):
        words = ("submit", "--dry-run=script", "--site", "leonardo", "--account", "a", "job.py")
        done = subprocess.run([sys.executable, "-c", code, str(place), *words], cwd=tmp_path, check=True, text=True,
                              env={"HOME": str(tmp_path), "PATH": "/usr/bin"}, capture_output=True)  # fmt: skip
        lines = done.stdout.splitlines()
        run = next(line for line in lines if "hpcml:" in line).rpartition("hpcml:")[2]
        page = subprocess.run([sys.executable, "-c", code, str(place), "help", "otp"], check=True, text=True,
                              cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True)  # fmt: skip
        assert page.stdout.startswith("# From a laptop\n")
        outputs.append([line.replace(run, "RUN") for line in lines])
    assert outputs[0] == outputs[1]
