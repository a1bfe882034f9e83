"""The modules of its project that a script reaches by imports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.runs import modules_code_uses


def project(folder: Path, **texts: str) -> Path:
    """Write files, a double underscore in a name being a folder, and return the script ``main.py``."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "main.py"


def reached(script: Path, folder: Path | None = None) -> dict[str, bool]:
    folder = folder or script.parent
    return {
        module.path.relative_to(folder).as_posix(): module.always
        for module in modules_code_uses.reached(script, folder)
    }


def package(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text("")


def test_each_way_to_import_a_module_of_the_project_reaches_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    ways = {
        "from solver.core import main": ["solver/__init__.py", "solver/core.py"],
        "import solver.core": ["solver/__init__.py", "solver/core.py"],
        "from solver import core": ["solver/__init__.py", "solver/core.py"],
        "import solver": ["solver/__init__.py"],
        "import plain": ["plain.py", "other.py"],
        "import spread.inside": ["spread/inside.py"],  # a folder without __init__.py
        "from solver.deep import relative": [
            "solver/__init__.py", "solver/deep/__init__.py", "solver/deep/relative.py", "solver/core.py",
        ],
        "import numpy, os.path": [],
    }  # fmt: skip
    for name in ("solver", "solver/deep"):
        package(tmp_path, name)
    files = {"solver__core": "x = 1\n", "plain": "import other\n", "other": "", "spread__inside": ""}
    project(tmp_path, **files, solver__deep__relative="from ..core import x\n")
    for line, expected in ways.items():
        with subtests.test(line):
            assert reached(project(tmp_path, main=f"{line}\n")) == dict.fromkeys(["main.py", *expected], True)


def test_a_module_that_a_function_or_a_branch_imports_is_reached_but_not_always(tmp_path: Path) -> None:
    project(tmp_path, a="import b\n", b="", c="import d\n", d="", e="")
    text = "import a\ndef f():\n    import c\n    import b\nif TYPE_CHECKING:\n    import e\n"
    assert reached(project(tmp_path, main=text)) == {
        "main.py": True, "a.py": True, "b.py": True, "c.py": False, "d.py": False,
    }  # fmt: skip


def test_a_module_by_its_name_reaches_its_packages_first(tmp_path: Path) -> None:
    package(tmp_path, "pack")
    project(tmp_path, pack__run="from .core import x\n", pack__core="x = 1\n")
    assert list(reached(tmp_path / "pack/run.py", tmp_path)) == ["pack/run.py", "pack/__init__.py", "pack/core.py"]


def test_a_circle_ends_and_a_module_that_may_not_be_loaded_need_not_be_python(tmp_path: Path) -> None:
    project(tmp_path, a="import main\nimport a\n", newer="x = = 1\n")
    script = project(tmp_path, main="import a\ntry:\n    import newer\nexcept SyntaxError:\n    pass\n")
    assert reached(script) == {"main.py": True, "a.py": True}
    script.write_text("import newer\n")
    with pytest.raises(SyntaxError):
        reached(script)


def test_the_other_modules_of_a_package_come_last_once(tmp_path: Path) -> None:
    package(tmp_path, "pack")
    script = project(tmp_path, main="import pack.a\n", pack__a="", pack__b="", other="")
    names = [module.path.name for module in modules_code_uses.reached_and_packages(script, tmp_path)]
    assert names == ["main.py", "__init__.py", "a.py", "b.py"]


def test_an_import_whose_name_no_file_can_have_reaches_nothing(tmp_path: Path) -> None:
    assert reached(project(tmp_path, main=f"import {'a' * 300}\n")) == {"main.py": True}


@pytest.mark.parametrize("planted", ["device", "pipe", "large", "many"])
def test_a_package_that_is_made_to_hang_its_reader_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    script = project(tmp_path, main="import pkg.a\n", pkg__a="A = 1\n", pkg__b="B = 1\n")
    expected = ["a.py", "b.py", "main.py"]
    place = tmp_path / "pkg" / "c.py"
    match planted:
        case "device":
            place.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(place)
        case "large":
            place.touch()
            os.truncate(place, 1 << 40)
        case "many":
            monkeypatch.setattr(modules_code_uses, "_MOST_ENTRIES", 2)
            project(tmp_path, pkg__c="C = 1\n")
            expected = ["a.py", "main.py"]
    modules = modules_code_uses.reached_and_packages(script, tmp_path)
    assert sorted(module.path.name for module in modules) == expected
