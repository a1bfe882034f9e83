"""What is known of a script before nodes are asked for."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from hpcml.cli import submit
from hpcml.config_trust import HPCML, TYPED
from hpcml.errors import REFUSED, HpcmlError, ScriptError, UsageError
from hpcml.runs.checks import script_checks
from tests.said import in_order, says


def script(folder: Path, text: str, name: str = "main.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def check(
    path: Path, python: str = sys.executable, *, image: bool = False, prepared: bool = False, dry_run: bool = False
) -> list[str]:
    return script_checks.check_code(
        path, path.parent, python, named=TYPED, image=image, prepared=prepared, dry_run=dry_run
    )


def test_a_syntax_error_is_told_with_its_line_and_a_mark(tmp_path: Path) -> None:
    with pytest.raises(ScriptError) as caught:
        check(script(tmp_path, "import os\nif True:\n    print(1\n"))
    error = caught.value
    assert (error.exit_status, error.place) == (REFUSED, "main.py:3")
    assert error.quote == ("print(1", "     ^")


def test_modules_beside_the_script_are_compiled_too_where_it_imports_them(tmp_path: Path) -> None:
    script(tmp_path, "def f(:\n", "unused.py")
    script(tmp_path, "from . import *\nimport broken\n", "pack/__init__.py")
    assert check(script(tmp_path, "import pack\nprint('\\d')\n")) != []  # broken is not there yet
    script(tmp_path, "x = = 1\n", "broken.py")
    with pytest.raises(ScriptError) as caught:
        check(tmp_path / "main.py")
    assert caught.value.place == "broken.py:1"


def test_a_module_inside_a_package_is_compiled_where_the_script_always_imports_it(tmp_path: Path) -> None:
    script(tmp_path, "", "pack/__init__.py")
    script(tmp_path, "x = = 1\n", "pack/core.py")
    assert check(script(tmp_path, "def f():\n    import pack.core\n")) == []
    with pytest.raises(ScriptError) as caught:
        check(script(tmp_path, "from pack.core import x\n"))
    assert caught.value.place == "pack/core.py:1"


def other_python(folder: Path, answer: str) -> str:
    """Return an interpreter that is not this one."""
    path = folder / "bin/python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def test_a_newer_interpreter_decides_itself_what_it_compiles(tmp_path: Path) -> None:
    path = script(tmp_path, "x = = 1\n")
    assert "does not compile with Python" in check(path, other_python(tmp_path, "exit 0"))[0]
    assert "does not compile with Python" in check(path, "/nowhere/bin/python")[0]
    assert "the image's Python may be newer" in check(path, image=True)[0]
    refusing = other_python(tmp_path / "other", "echo SyntaxError: no >&2; exit 1")
    with pytest.raises(ScriptError):
        check(path, refusing)


CONDITIONAL = """
import os, numpy.linalg
from typing import TYPE_CHECKING
import beside, pack.part, dask_mpi
from dask_jobqueue import SLURMCluster
import hpcml
if TYPE_CHECKING:
    import nothing_a
try:
    import nothing_b
except ImportError:
    nothing_b = None
def f():
    import nothing_c
"""


def test_imports_that_are_there_or_may_not_be_needed_are_not_told(tmp_path: Path) -> None:
    script(tmp_path, "", "beside.py")
    script(tmp_path, "", "pack/part.py")
    assert check(script(tmp_path, CONDITIONAL)) == []


def test_a_missing_module_is_an_error_where_nothing_can_add_it(tmp_path: Path) -> None:
    path = script(tmp_path, "import os\nimport nowhere_here.part\n")
    with pytest.raises(ScriptError) as caught:
        check(path)
    assert "'nowhere_here'" in caught.value.message
    assert caught.value.place == "main.py:2"
    assert f"{sys.executable} -m pip install nowhere_here" in caught.value.hint
    assert "nowhere_here (main.py:2)" in check(path, prepared=True)[0]
    (note,) = check(path, dry_run=True)
    assert re.search(in_order("nowhere_here (main.py:2)", "Before you submit", "--python PATH"), note)
    with pytest.raises(ScriptError) as caught:  # another package is called hydra
        check(script(tmp_path, "import hydra\n"))
    assert f"{sys.executable} -m pip install hydra-core." in caught.value.hint
    assert check(path, image=True) == []


@pytest.mark.parametrize("line", ["import sys; sys.path.append('/x')", "'pip install'"])
def test_a_missing_module_is_a_note_where_the_script_may_add_it(tmp_path: Path, line: str) -> None:
    assert "nowhere_here (main.py:2)" in check(script(tmp_path, f"{line}\nimport nowhere_here\n"))[0]
    script(tmp_path, "import nowhere_here\n", "beside.py")
    assert "nowhere_here (beside.py:1)" in check(script(tmp_path, "import beside\n"))[0]


def test_a_package_that_opens_clusters_elsewhere_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, to install it would not be the way; where it is there, it would open another cluster."""
    path = script(tmp_path, "import coiled\ncluster = coiled.Cluster(n_workers=4)\n")
    with pytest.raises(ScriptError) as caught:
        check(path)
    assert caught.value.place == "main.py:1"
    assert "pip" not in caught.value.hint
    assert "Use Client() to connect to the run's cluster" in caught.value.hint
    script(tmp_path / "site-packages", "", "coiled.py")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (note,) = check(path)
    assert re.match(in_order("coiled (main.py:1)", "outside the run", "Client()"), note)


def test_a_missing_module_that_is_a_file_nearby_is_named(tmp_path: Path) -> None:
    """No package index has it, whatever has its name there."""
    (tmp_path / "lib/own_part").mkdir(parents=True)
    for name, file in (("own_part", "lib/own_part/__init__.py"), ("own_file", "jobs/sub/own_file.py")):
        path = script(tmp_path, f"import {name}\n", "jobs/main.py")
        script(tmp_path, "", file)
        with pytest.raises(ScriptError) as caught:
            check(path)
        assert f"{tmp_path / file}, add its folder to PYTHONPATH" in caught.value.hint
        assert "pip" not in caught.value.hint


@pytest.mark.parametrize(("listed", "locked", "wanted"), [
    ('["Hydra_Core[x]>=1"]', False, "uv lock"), ('["other"]', False, "pip install"), ("1", False, "pip install"),
    ('["hydra-core"]', True, "pip install"),
])  # fmt: skip
def test_a_missing_package_of_a_project_without_a_lock(tmp_path: Path, listed: str, locked: bool, wanted: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[project]\ndependencies = {listed}\n")
    if locked:
        (tmp_path / "uv.lock").touch()
    with pytest.raises(ScriptError) as caught:
        check(script(tmp_path, "import hydra\n", "src/main.py"))
    assert wanted in caught.value.hint


def test_a_scheduler_file_that_no_argument_names_is_told_of(tmp_path: Path) -> None:
    """The IndexError would come on a node."""
    path = script(tmp_path, "import sys\nfrom distributed import Client\nclient = Client(scheduler_file=sys.argv[1])\n")
    (note,) = script_checks.missing_argument(path, tmp_path, 0)
    assert note.startswith("main.py:3 expects a Dask scheduler file")
    assert script_checks.missing_argument(path, tmp_path, 1) == []


def test_another_environment_is_known_by_its_files(tmp_path: Path) -> None:
    path = script(tmp_path, "import one\nimport two\nimport four\n")
    python = other_python(tmp_path, "exit 0")
    assert check(path, python) == []  # nothing is known of it
    packages = tmp_path / "lib/python3.12/site-packages"
    script(packages, "", "one/__init__.py")
    script(tmp_path / "editable", "", "two.py")
    script(packages, f"{tmp_path}/editable\n", "x.pth")
    script(tmp_path, "include-system-site-packages = false\n", "pyvenv.cfg")
    with pytest.raises(ScriptError, match="imports 'four'") as caught:
        check(path, python)
    assert f"{python} -m pip install four" in caught.value.hint
    script(packages, "import finder\n", "y.pth")  # which may find modules anywhere
    assert [word for word in ("one (", "two (", "four (") if word in check(path, python)[0]] == ["four ("]


@pytest.mark.parametrize(("name", "start", "what"), [
    ("a", b"\x7fELF\0\1", "a compiled program"), ("run.sh", b"echo 1\n", "a shell script"),
    ("job", b"#!/bin/bash -l\n", "a script for bash"), ("job", b"#!/usr/bin/env -S Rscript --vanilla\n", "a script for Rscript"),
])  # fmt: skip
def test_what_is_no_python_is_told_as_what_it_is(tmp_path: Path, name: str, start: bytes, what: str) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    with pytest.raises(UsageError) as caught:
        script_checks.check_file(path)
    assert caught.value.message.startswith(f"SCRIPT is {what}")
    assert caught.value.hint


@pytest.mark.parametrize(("text", "apply"), [("#SBATCH -n 1\nsrun a\n", True), ("a=1\n#SBATCH -n 1\n", False)])
def test_lines_after_the_first_command_are_no_lines_of_the_run(tmp_path: Path, text: str, apply: bool) -> None:
    path = script(tmp_path, text, "run.sh")
    with pytest.raises(UsageError) as caught:
        script_checks.check_file(path)
    assert ("#SBATCH lines" in caught.value.hint) == apply


@pytest.mark.parametrize("start", ["#!/opt/x/bin/python3.12 -u\n", "print(1)\n"])
def test_what_may_be_python_is_taken_whatever_its_name(tmp_path: Path, start: str) -> None:
    script_checks.check_file(script(tmp_path, start, "job"))


def test_a_script_of_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(b"abc\0")
    with pytest.raises(HpcmlError, match="zero bytes"):
        script_checks.check_file(path)


def test_a_module_s_code_is_checked_from_its_folder(tmp_path: Path) -> None:
    script(tmp_path, "from . import part\nimport beside\n", "pack/train.py")
    script(tmp_path, "", "beside.py")
    assert script_checks.check_module_code(tmp_path / "pack.train", sys.executable, named=HPCML) == []
    script(tmp_path, "x = = 1\n", "beside.py")
    with pytest.raises(ScriptError) as caught:
        script_checks.check_module_code(tmp_path / "pack.train", sys.executable, named=HPCML)
    assert caught.value.place == "beside.py:1"


@pytest.mark.parametrize(("words", "own", "rest"), [
    (["-N", "4", "-A", "x", "a.py", "-N", "2"], ["-N", "4", "-A", "x"], ["a.py", "-N", "2"]),
    (["-N4", "--exclusive", "-m", "a.b", "-m"], ["-N4", "--exclusive"], ["-m", "a.b", "-m"]),
    (["--wait", "--", "./x", "--wait"], ["--wait"], ["--", "./x", "--wait"]),
    (["--", "-x.py", "1"], [], ["-x.py", "--", "1"]), (["--", "n.ipynb"], [], ["n.ipynb"]), (["a.py", "--", "-m"], [], ["a.py", "--", "-m"]),
])  # fmt: skip
def test_what_stands_in_the_place_of_a_script(words: list[str], own: list[str], rest: list[str]) -> None:
    assert submit.split_script(words) == (own, rest)


@pytest.mark.parametrize(("text", "words"), [
    ("{}", "not a notebook"), ("x = 1", "not a notebook"),
    ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "language is r"),
])  # fmt: skip
def test_what_is_no_notebook_of_python_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        script_checks.check_notebook(script(tmp_path, text, "n.ipynb"), ())
    path = script(tmp_path, '{"cells": []}', "n.ipynb")
    script_checks.check_notebook(path, ())
    with pytest.raises(UsageError, match="cannot pass arguments to a notebook"):
        script_checks.check_notebook(path, ("--k",))


@pytest.mark.parametrize(("text", "told"), [
    ("import sys\n\nfor line in sys.stdin:\n    pass\n", "3"),
    ("name = input('who? ')\n", "1"),
    ("import sys\ninput = sys.argv[1]\nprint(input)\n", ""),
])  # fmt: skip
def test_input_that_would_be_lost_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = script(tmp_path, text, "job.py")
    with (tmp_path / "job.py").open() as file:
        notes = script_checks.lost_input(path, tmp_path, file.fileno())
    assert [note.split(" reads standard input")[0] for note in notes] == ([f"job.py:{told}"] if told else [])
    with open(os.devnull) as nothing:
        assert script_checks.lost_input(path, tmp_path, nothing.fileno()) == []


def test_a_file_beside_the_script_that_hides_a_known_module_is_told(tmp_path: Path) -> None:
    script(tmp_path, "import dask.array\nimport json\n", "helper.py")
    script(tmp_path, "", "json/__init__.py")
    assert check(script(tmp_path, "import helper\nimport sys\n", "dask.py")) == [
        says("dask.py"),
        says("json/__init__.py"),
    ]
    assert check(script(tmp_path / "other", "import sys\n", "sys.py")) == []  # Python's own is there before
    told = check(script(tmp_path, "import hpcml\nhpcml.connect()\n", "main.py"))  # a library imports it, not the script
    assert told == [says("dask.py")]


def test_packages_that_an_edit_changes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editable installations, which the environment names in .pth files or by a finder: they are not in the copy."""
    site, source = tmp_path / "env/lib/python3.11/site-packages", tmp_path / "project/src"
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").parent.mkdir(exist_ok=True)
    (tmp_path / "env/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    for name in ("mine", "other"):
        script(source / name, "", "__init__.py")
    script(source, "", "single.py")
    script(site / "usual", "", "__init__.py")
    script(site, f"{source}\n", "__editable__.mine.pth")
    path = script(
        tmp_path / "project", "import os\nimport usual\nimport mine.part\nimport single\nimport dask\n", "train.py"
    )
    note = (
        f"hpcml does not copy installed packages, and an edit changes mine ({source}/mine), single ({source}/single.py): "
        "do not change them until the run ends, because the run reads them in place"
    )
    assert check(path, str(tmp_path / "env/bin/python"), dry_run=True)[-1] == note
    assert check(script(tmp_path / "project", "import usual\n", "plain.py"), str(tmp_path / "env/bin/python")) == []
    monkeypatch.syspath_prepend(str(source))
    (told,) = check(script(tmp_path / "project", "import other\nimport json\n", "same.py"))
    assert f"an edit changes other ({source}/other): do not change it until" in told
    assert check(tmp_path / "project/same.py", image=True) == []


def test_a_first_line_that_is_not_used_is_told(tmp_path: Path, subtests: pytest.Subtests) -> None:
    other = tmp_path / "env/bin/python3"
    other.parent.mkdir(parents=True)
    other.touch()
    for line, words in {
        "#!/usr/bin/env -S python -O -X utf8": "python -O -X utf8",
        "#!/usr/bin/python3 -OO": "/usr/bin/python3 -OO",
        f"#!{other}": str(other),
        "#!/usr/bin/env python3": "",
        "#!/usr/bin/python3": "",
        f"#!{sys.executable}": "",
        "#!/no/such/python": "",
        "print(1)": "",
    }.items():
        with subtests.test(line):
            notes = script_checks.unused_first_line(script(tmp_path, f"{line}\n"), tmp_path, sys.executable)
            assert bool(notes) is bool(words)
            if notes:
                assert notes[0].startswith(f"main.py:1: hpcml ignores the script's first line ({words})")
                assert notes[0].endswith(f"hpcml submit -- {words} main.py")


def test_a_program_whose_first_line_ends_as_on_windows_is_refused(tmp_path: Path) -> None:
    """The system would look for an interpreter whose name ends with the return, and say that the file is not there."""
    program = tmp_path / "job.sh"
    for start, refused in ((b"#!/bin/bash\r\necho\r\n", True), (b"#!/bin/bash\necho\r\n", False)):
        program.write_bytes(start)
        program.chmod(0o700)
        if refused:
            with pytest.raises(UsageError, match="line ends of Windows"):
                script_checks.check_program(program, None, prepared=False)
        else:
            script_checks.check_program(program, None, prepared=False)
