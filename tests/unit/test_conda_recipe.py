"""The draft of a recipe for conda-forge: it says what pyproject.toml says, and the tools that are here take it."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpcml

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "docs/conda/recipe.yaml"


def spaced(dependencies: list[str]) -> list[str]:
    """Return dependencies as conda writes them: the version behind a space."""
    return [dependency.replace(">=", " >=") for dependency in dependencies]


def test_it_says_what_pyproject_says() -> None:
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    own: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, requirements, about = own["project"], recipe["requirements"], recipe["about"]
    assert recipe["package"]["name"] == project["name"]
    assert recipe["context"]["version"] == hpcml.__version__
    assert f">={recipe['context']['python_min']}" == project["requires-python"]
    assert recipe["build"]["python"]["entry_points"] == [f"{a} = {b}" for a, b in project["scripts"].items()]
    assert set(requirements["host"][2:]) == set(spaced(own["build-system"]["requires"]))
    assert set(requirements["run"][2:]) == set(spaced(project["dependencies"]))
    assert set(requirements["run_constraints"]) == set(spaced(project["optional-dependencies"]["node"]))
    assert (about["summary"], about["license"]) == (project["description"], project["license"])
    assert [about["license_file"]] == project["license-files"]


def test_rattler_build_takes_it() -> None:
    rattler_build = pytest.importorskip("rattler_build", reason="needs rattler-build: pip install py-rattler-build")
    [made] = rattler_build.Stage0Recipe.from_file(str(RECIPE)).render()
    assert made.recipe.to_dict()["package"] == {"name": "hpcml", "version": hpcml.__version__}


def test_conda_forge_s_linter_takes_it() -> None:
    linter = shutil.which("conda-smithy")
    if linter is None:
        pytest.skip("needs conda-smithy, which conda-forge alone has: conda install -c conda-forge conda-smithy")
    done = subprocess.run([linter, "recipe-lint", str(RECIPE.parent)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
