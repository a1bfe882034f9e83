"""The wheel holds what a login node needs, and works where nothing of the checkout is."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcml import __version__
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
    assert {"LICENSE", "CITATION.cff", "Makefile", "mkdocs.yml", "pyproject.toml", ".ci/run"} <= names


def test_the_wheel_has_the_extras_that_the_first_pages_install(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    typed = {
        name
        for page in pages
        for words in re.findall(r"install.*(?:hpcml|\.)\[([a-z0-9,-]+)\]", page.read_text())
        for name in words.split(",")
    }
    assert {"array", "local", "cuda12", "jupyter"} <= typed <= extras
    needed = re.findall(r"^Requires-Dist: (\S+?)[<>=].*; extra == 'array'$", metadata, re.MULTILINE)
    assert needed == ["cryptography", "dask[array]", "distributed"]


def test_all_files_name_one_version() -> None:
    places = {
        "CITATION.cff": r"(?m)^version: (\S+)$",
        "docs/conda/recipe.yaml": r'(?m)^ *version: "(\S+)"$',
        "CHANGELOG.md": r"(?m)^## (\S+) \(",
    }
    found = {name: re.search(pattern, (ROOT / name).read_text(encoding="utf-8")) for name, pattern in places.items()}
    assert {name: match and match[1] for name, match in found.items()} == dict.fromkeys(places, __version__)


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


def test_they_render_the_same_script_as_the_checkout(wheel: Path, source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    subprocess.run(["tar", "xzf", source, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.glob("hpcml-*")
    (tmp_path / "job.py").write_text("1\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from hpcml.cli.main import main; sys.exit(main(sys.argv[2:]))"
    outputs = []
    for place in (tmp_path / "site", unpacked, ROOT):
        words = ("submit", "--dry-run=script", "--site", "leonardo", "--account", "a", "job.py")
        done = subprocess.run([sys.executable, "-c", code, str(place), *words], cwd=tmp_path, check=True, text=True,
                              env={"HOME": str(tmp_path), "PATH": "/usr/bin"}, capture_output=True)  # fmt: skip
        lines = done.stdout.splitlines()
        run = next(line for line in lines if "hpcml:" in line).rpartition("hpcml:")[2]
        page = subprocess.run([sys.executable, "-c", code, str(place), "help", "otp"], check=True, text=True,
                              cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True)  # fmt: skip
        assert page.stdout.startswith("# From a laptop\n")
        outputs.append([line.replace(run, "RUN") for line in lines])
    assert outputs[0] == outputs[1] == outputs[2]
