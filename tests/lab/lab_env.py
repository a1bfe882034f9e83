"""The Python environment of the lab's users: a venv they can read, with hpcml in it as a wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lab_paths import LabError, Places

PYTHON = "/usr/bin/python3"
SITE = Path(__file__).with_name("site")  # the lab's own profile
EXTRAS = "local,test,ucx,jupyter,polars"
VERSIONS = Path(__file__).parents[1] / "versions-{}.{}.txt".format(*sys.version_info)
IGNORED_NAMES = (
    ".git", ".venv", "venv", "__pycache__", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "node_modules",
)  # fmt: skip


def build(places: Places, source: Path, extras: str = EXTRAS) -> tuple[Path, bool]:
    """Install hpcml from a checkout; returns its wheel and whether its dependencies had to be installed too."""
    if not (source / "pyproject.toml").is_file():
        raise LabError(f"There is no pyproject.toml in {source}. Name the checkout: lab.py env --source DIR")
    python = places.venv / "bin" / "python"
    if not python.exists():
        _run([PYTHON, "-m", "venv", "--clear", str(places.venv)])
    wheel = _wheel(places, python, source)
    write_settings(places)
    stamp = places.venv / "hpcml-dependencies"
    wanted = _dependencies(wheel, extras)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--disable-pip-version-check"]
    if stamp.exists() and stamp.read_text() == wanted:
        _run([*pip, "--force-reinstall", "--no-deps", str(wheel)])
        _laptop(places, pip, wheel)
        return wheel, False
    _run([*pip, "--force-reinstall", "--no-deps", str(wheel)])
    _run([*pip, *(("--constraint", str(VERSIONS)) if VERSIONS.exists() else ()), f"{wheel}[{extras}]"])
    _laptop(places, pip, wheel)
    stamp.write_text(wanted)
    return wheel, True


def write_settings(places: Places) -> None:
    """Put the lab's own profile in place, whatever the checkout's umask: nobody else may write to settings."""
    shutil.copytree(SITE, places.site, dirs_exist_ok=True)
    for path in (places.site, *places.site.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _laptop(places: Places, pip: Sequence[str], wheel: Path) -> None:
    """The laptop's own environment: hpcml and what its base install needs, no Dask."""
    python = places.laptop_venv / "bin" / "python"
    if not python.exists():
        _run([PYTHON, "-m", "venv", "--clear", "--without-pip", str(places.laptop_venv)])
        _run([*pip[:3], "--python", str(python), *pip[3:], str(wheel)])
        return
    _run([*pip[:3], "--python", str(python), *pip[3:], "--force-reinstall", "--no-deps", str(wheel)])


def _wheel(places: Places, python: Path, source: Path) -> Path:
    """Build from a copy, so that no build folder is left in the checkout."""
    wheels = places.top / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="hpcml-wheel-") as folder:
        copy = Path(folder) / "source"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*IGNORED_NAMES), symlinks=True)
        _run([str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check",
              "-w", str(wheels), str(copy)])  # fmt: skip
    found = sorted(wheels.glob("hpcml-*.whl"))
    if not found:
        raise LabError(f"pip made no hpcml wheel from {source} in {wheels}. Read its pyproject.toml.")
    return found[-1]


def _dependencies(wheel: Path, extras: str) -> str:
    """A digest of everything the wheel asks of other packages, and of the interpreter it was installed for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    asked = [line for line in lines if line.startswith(("Requires-Dist:", "Requires-Python:", "Provides-Extra:"))]
    versions = VERSIONS.read_text() if VERSIONS.exists() else ""
    return hashlib.sha256("\n".join([extras, os.path.realpath(PYTHON), versions, *asked]).encode()).hexdigest()


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, umask=0o022, timeout=1800, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(argv)}` failed ({done.returncode}). Read its messages above.")
