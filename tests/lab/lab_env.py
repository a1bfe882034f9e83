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

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
SITE = Path(__file__).with_name("site")  # the lab's own profile
EXTRAS = "local,test,ucx,jupyter,polars"
VERSIONS = Path(__file__).parents[1] / "versions-{}.{}.txt".format(*sys.version_info)
IGNORED_NAMES = (
    ".git", ".venv", "venv", "__pycache__", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "node_modules",
)  # fmt: skip


def build(places: Places) -> Path:
    """Install hpcml from this checkout, and its dependencies if they are others than last time; returns its wheel."""
    python = places.venv / "bin" / "python"
    if not python.exists():
        _run([PYTHON, "-m", "venv", "--clear", str(places.venv)])
    wheel = _wheel(places, python)
    write_settings(places)
    stamp = places.venv / "hpcml-dependencies"
    wanted = _dependencies(wheel)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--disable-pip-version-check"]
    _run([*pip, "--force-reinstall", "--no-deps", str(wheel)])
    if not stamp.exists() or stamp.read_text() != wanted:
        _run([*pip, *(("--constraint", str(VERSIONS)) if VERSIONS.exists() else ()), f"{wheel}[{EXTRAS}]"])
    _laptop(places, pip, wheel)
    stamp.write_text(wanted)
    return wheel


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


def _wheel(places: Places, python: Path) -> Path:
    """Build from a copy, so that no build folder is left in the checkout."""
    wheels = places.top / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="hpcml-wheel-") as folder:
        copy = Path(folder) / "source"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns(*IGNORED_NAMES), symlinks=True)
        _run([str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check",
              "-w", str(wheels), str(copy)])  # fmt: skip
    return next(wheels.glob("hpcml-*.whl"))


def _dependencies(wheel: Path) -> str:
    """A digest of everything the wheel asks of other packages, and of the interpreter it was installed for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    asked = [line for line in lines if line.startswith(("Requires-Dist:", "Requires-Python:", "Provides-Extra:"))]
    versions = VERSIONS.read_text() if VERSIONS.exists() else ""
    return hashlib.sha256("\n".join([EXTRAS, os.path.realpath(PYTHON), versions, *asked]).encode()).hexdigest()


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, umask=0o022, timeout=1800, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(argv)}` failed ({done.returncode}). Read its messages above.")
