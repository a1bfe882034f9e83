"""The wheel holds what a login node needs, and works where nothing of the checkout is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # With build isolation hatchling comes from the network: a machine without one is no failure of the wheel.
    here = ["--no-build-isolation"] if find_spec("hatchling") else []
    words = ("wheel", "--quiet", "--no-deps", "--disable-pip-version-check", *here, "-w", folder, ROOT)
    command = [sys.executable, "-m", "pip", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and (
        "Could not find a version" in done.stderr or "No matching distribution" in done.stderr
    ):
        pytest.skip("hatchling cannot be had: no package index answers")
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_it_holds_code_and_assets(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for path in [*(ROOT / "hpcml").rglob("*.py"), *(ROOT / "hpcml").rglob("*.toml"), ROOT / "hpcml" / "py.typed"]:
        assert str(path.relative_to(ROOT)) in names
    for folder in ("templates", "templates/sbatch", "jobs", "containers"):
        for path in (ROOT / folder).glob("*.*"):
            assert f"hpcml/_assets/{folder}/{path.name}" in names
    for path in (ROOT / "jobs").glob("*.py"):  # what `hpcml new` writes
        assert f"hpcml/_assets/jobs/{path.name}" in names
    assert not [name for name in names if name.startswith(("tests/", "hpcml/_assets/tests"))]
    assert not [name for name in names if "__pycache__" in name or Path(name).stem == "lab"]


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
        outputs.append([line.replace(run, "RUN") for line in lines])
    assert outputs[0] == outputs[1]
