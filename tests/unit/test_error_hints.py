"""What is said at a script's end: the next step after an error, and the files that it left in the copy of its folder."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from traceback import TracebackException
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcml.node.context import Context
from hpcml.node.script import launcher
from hpcml.node.tasks import error_hint
from hpcml.paths import AttemptPaths
from node_settings import settings as settings_of

START = "import sys; from hpcml.node.script.launcher import main; main()"


def run(folder: Path, text: str, *, image: str = "", name: str = "main.py") -> tuple[str, str]:
    """Run a script as a run does and return the hint, and what the script said."""
    attempt = AttemptPaths(folder)
    script = folder / name
    script.write_text(text)
    root = Path(launcher.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, str(script)], capture_output=True, text=True, check=False, timeout=240,
        env={"HPCML_SCRIPT_ERROR": str(attempt.script_error), "PYTHONPATH": str(root)}, stdin=subprocess.DEVNULL)  # fmt: skip
    context: Any = SimpleNamespace(attempt=attempt, settings=settings_of(job__image=image))
    return error_hint.next_step(cast("Context", context), attempt.script_error), done.stderr


@pytest.mark.parametrize(("text", "words"), [
    ("import nowhere_here", "PYTHONPATH"),
    ("import nowhere_here", f"{sys.executable} -m pip install nowhere_here"),
    ("raise ModuleNotFoundError('x', name='cv2')", f"{sys.executable} -m pip install opencv-python;"),
    ("raise ModuleNotFoundError('x', name='tkinter')", "without the standard module 'tkinter'"),
    ("input('name? ')", "Replace input() by"),
    ("raise TypeError(\"Unsupported type <class 'numpy.ndarray'>\")", 'hpcml.connect(backend="gpu")'),
    ("raise TypeError('Implicit conversion to a host NumPy array via __array__ is not allowed')", ".get()"),
])  # fmt: skip
def test_an_error_that_is_known_has_a_next_step(tmp_path: Path, text: str, words: str) -> None:
    hint, said = run(tmp_path, text)
    assert words in hint
    assert said.count("Traceback") >= 1


@pytest.mark.parametrize("text", [
    "import math\ntry:\n    math.squrt(2)\nexcept AttributeError as error:\n    raise ValueError('x') from error",
    "length = 2\nlenght",
    "import atexit\natexit.register(print, 'end')\nraise KeyboardInterrupt",
    "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
])  # fmt: skip
def test_the_script_ends_and_says_what_it_does_under_plain_python(tmp_path: Path, text: str) -> None:
    (tmp_path / "main.py").write_text(text)
    root = Path(launcher.__file__).parents[3]
    starts: tuple[list[str], ...] = ([], ["-P", "-c", "import sys; from hpcml.node.script.launcher import main; main()"])  # fmt: skip
    plain, here = (
        subprocess.run([sys.executable, *words, str(tmp_path / "main.py")], capture_output=True, text=True, check=False,
                       timeout=240, env={"PYTHONPATH": str(root)}) for words in starts)  # fmt: skip
    assert (here.returncode, here.stdout, here.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize(("end", "abort"), [("raise TypeError", "1"), ("sys.exit(7)", "7"), ("sys.exit(92)", "")])
def test_a_rank_of_mpi4py_that_fails_does_not_wait_for_the_others(tmp_path: Path, end: str, abort: str) -> None:
    text = "import os, sys, types\nos.environ['WORLD_SIZE'] = '2'\nmpi = types.ModuleType('mpi4py.MPI')\n"
    text += "mpi._set_abort_status = lambda status: print('abort', status, file=sys.stderr)\nsys.modules['mpi4py.MPI'] = mpi\n"
    said = run(tmp_path, text + end)[1]
    assert said.rpartition("abort ")[2].strip() == abort, said


@pytest.mark.parametrize("text", [
    "raise SystemExit(3)", "raise TypeError('x')", "import os.nowhere", "print(1)",
    "import os\nif not os.fork():\n    input()\nos.wait(); os._exit(1)",
])  # fmt: skip
def test_other_ends_have_none(tmp_path: Path, text: str) -> None:
    assert run(tmp_path, text)[0] == ""


def test_a_module_that_the_script_has_is_missing_elsewhere(tmp_path: Path) -> None:
    """In a task: pip would install another of its name."""
    (tmp_path / "mine.py").write_text("")
    hint, _ = run(tmp_path, "import mine\nraise ModuleNotFoundError(\"No module named 'mine'\", name='mine')")
    assert hint.startswith(f"The script found the module 'mine' ({tmp_path}/mine.py), but the workers did not. ")


def test_in_an_image_the_image_lacks_a_module(tmp_path: Path) -> None:
    assert (
        "The image /x/y.sif has no module 'nowhere_here'" in run(tmp_path, "import nowhere_here", image="/x/y.sif")[0]
    )


@pytest.mark.parametrize(("name", "text"), [
    ("json.py", "import json\njson.dumps(1)"), ("pytest.py", "import pytest.plugin"), ("textwrap.py", "import textwrap\n1 / 0"),
])  # fmt: skip
def test_a_file_that_hides_a_module_is_named(tmp_path: Path, name: str, text: str) -> None:
    """What it hides is needed to tell of the error too."""
    (tmp_path / name).write_text("")
    hint, said = run(tmp_path, text)
    if "1 / 0" in text:
        assert (hint, said.splitlines()[-1]) == ("", "ZeroDivisionError: division by zero")
    else:
        assert hint.startswith(f"{tmp_path / name} has the same name as a module that"), said
    assert said.count("Traceback") == 1, said


def test_a_script_with_the_name_of_a_module_that_it_imports(tmp_path: Path) -> None:
    hint = run(tmp_path, "from pytest.x import y", name="pytest.py")[0]
    assert hint.startswith(f"{tmp_path}/pytest.py has the same name")


def test_a_module_of_the_script_s_own_hides_none(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    assert run(tmp_path, "import helper\nhelper.nothing")[0] == ""
    assert run(tmp_path, "import os\nos.nothing")[0] == ""


def test_the_line_that_is_told_is_the_script_s_not_hpcml_s(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import hpcml\n\nhpcml.run.save('a', 1)\n")
    run(tmp_path, "import helper")
    facts = json.loads(AttemptPaths(tmp_path).script_error.read_text())
    assert (Path(facts["file"]).name, facts["line"]) == ("helper.py", 3), facts


def test_a_traceback_shows_the_lines_that_ran(tmp_path: Path) -> None:
    copy, original = tmp_path / "copy", tmp_path / "original"
    for folder, text in ((copy, "1 / 0  # ran\n"), (original, "edited = 'since'\n")):
        folder.mkdir()
        (folder / "a.py").write_text(text)
    try:
        runpy.run_path(str(copy / "a.py"))
    except ZeroDivisionError as error:
        described = TracebackException.from_exception(error, lookup_lines=False)
    launcher._name_originals(described, str(copy), str(original))
    assert f'  File "{original}/a.py", line 1, in <module>\n    1 / 0  # ran\n' in "".join(described.format())


NAMES_ITSELF = """
import sys, traceback, warnings
from joblib import Memory
warnings.warn("old")
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
@Memory(sys.argv[1], verbose=0).cache
def double(n):
    print("computed")
    return 2 * n
print(double(2))
"""


@pytest.mark.parametrize("early", ["", "import joblib, traceback, warnings; "])
def test_warnings_tracebacks_and_caches_of_joblib_name_the_original_in_each_run(tmp_path: Path, early: str) -> None:
    """A cache that was named after the copy would be another one in each run."""
    for run_directory, printed in (("a", "computed\n4\n"), ("b", "4\n")):
        copy = tmp_path / run_directory / "code"
        copy.mkdir(parents=True)
        (copy / "main.py").write_text(NAMES_ITSELF)
        done = subprocess.run(
            [sys.executable, "-P", "-c", early + START, str(copy / "main.py"), str(tmp_path / "cache")],
            env={"HPCML_RUN_DIR": str(copy.parent), "HPCML_CODE_OF": "/own", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True, timeout=240, stdin=subprocess.DEVNULL)  # fmt: skip
        assert done.stdout == printed
        assert "/own/main.py:4: UserWarning: old\n" in done.stderr
        assert 'File "/own/main.py", line 6' in done.stderr
        assert str(copy) not in done.stderr
