"""What follows ``--``: which of it is a Python interpreter, which the user's code, and what is never copied."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcml.node.tasks import process as role
from hpcml.runs import script_or_program
from hpcml.workload_forms import Form


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder of submission with code, beside environments and programs elsewhere."""
    for environment, mark in (("here/.venv", "pyvenv.cfg"), ("conda", "conda-meta/history"), ("venv", "pyvenv.cfg")):
        (folder := tmp_path / environment / "bin").mkdir(parents=True)
        (folder.parent / mark).parent.mkdir(exist_ok=True)
        (folder.parent / mark).touch()
        (folder / "python3").symlink_to(sys.executable)
        (folder / "python").symlink_to("python3")
        (folder / "pytest").write_text("#!python\n")
    for name in ("s.py", "tool", "pack/train.py", "pack/__main__.py", "single.py", "../elsewhere/solver"):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    with zipfile.ZipFile(tmp_path / "here/app.pyz", "w") as archive:
        archive.writestr("__main__.py", "x = 1\n")
    (tmp_path / "here/mypython").symlink_to("../venv/bin/python3")
    (tmp_path / "here/linked").symlink_to("../elsewhere/solver")
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("words", "interpreter", "code", "form"),
    [
        (["python", "s.py", "-u", "--nodes"], ["python"], ["s.py", "-u", "--nodes"], Form.SCRIPT),
        ([".venv/bin/python", "-u", "-W", "ignore", "-X", "dev", "s.py"], ["-u", "-W", "ignore", "-X", "dev"], ["s.py"], Form.SCRIPT),
        (["../conda/bin/python3", "-Wignore", "-uBXdev", "s.py", "x"], ["-Wignore", "-uBXdev"], ["s.py", "x"], Form.SCRIPT),
        (["./mypython", "--", "s.py"], ["--"], ["s.py"], Form.SCRIPT),
        (["python", "-m", "pack.train", "-m"], [], ["pack.train", "-m"], Form.MODULE),
        (["python", "-Eum", "pack"], ["-Eu"], ["pack"], Form.MODULE),
        (["pypy3", "--check-hash-based-pycs", "never", "s.py"], ["--check-hash-based-pycs", "never"], ["s.py"], Form.SCRIPT),
        (["python", "-m", "pytest", "tests"], None, [], Form.SCRIPT),
        (["python", "-Im", "single"], None, [], Form.SCRIPT),
        (["python", "-c", "print(1)", "s.py"], None, [], Form.SCRIPT),
        (["python", "app.pyz"], None, [], Form.SCRIPT),
        (["python"], None, [], Form.SCRIPT),
        (["bash", "s.py"], None, [], Form.SCRIPT),
    ],
)  # fmt: skip
def test_an_interpreter_s_script_or_module_is_the_code(
    here: Path, words: list[str], interpreter: list[str] | None, code: list[str], form: Form
) -> None:
    path, named, _ = script_or_program.named(["--", *words], here)
    found = script_or_program.python_code(path, named[1:], here)
    if interpreter is None:
        assert found is None
        return
    own = [word for word in interpreter if word != words[0]]
    assert found == ((str(here / words[0]) if "/" in words[0] else words[0], *own), code, form)


@pytest.mark.parametrize(
    ("program", "stays"),
    [
        ("tool", False), ("linked", True), (".venv/bin/pytest", True), ("../conda/bin/pytest", True), ("/bin/sh", True),
    ],
)  # fmt: skip
def test_only_a_program_of_the_user_s_folder_is_copied(here: Path, program: str, stays: bool) -> None:
    assert script_or_program.stays(here / program, here) is stays


@pytest.mark.parametrize("options", [[], ["-P"]])
def test_a_module_is_imported_from_the_copy_and_not_from_the_folder_of_submission(
    here: Path, options: list[str]
) -> None:
    copy = here.parent / "copy"
    (copy / "pack").mkdir(parents=True)
    (copy / "pack/train.py").write_text("import sys, single\nprint(__name__, __package__, single.__file__, sys.argv)\n")
    (copy / "single.py").write_text("")
    command = [sys.executable, *options, "-c", role.START_MODULE, str(copy), "pack.train", "a", "-m"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout == f"__main__ pack {copy}/single.py {[f'{copy}/pack/train.py', 'a', '-m']}\n"
