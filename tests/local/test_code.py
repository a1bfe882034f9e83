"""The run's copy of the code is the code: script, tasks and scheduler import the same files, as plain Python would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import alike
from hpcml.node import processes
from test_local import Here, here

pytestmark = pytest.mark.local
SURROUNDINGS = Path(alike.__file__).with_name("surroundings.py")
__all__ = ["here"]

# Each was seen to end a run when it lay in the working directory.
NAMES = ("random", "select", "array", "queue", "logging", "dask", "numpy", "socket", "hpcml", "distributed", "calendar")
FOREIGN = "raise SystemExit(f'{__name__} of the working directory was imported: {__file__}')\n"


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def submit(here: Here, folder: Path, script: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Submit a script from a folder, which is the run's working directory."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(Path(sys.executable).with_name("hpcml")), "submit", "--wait", *options, script]
    return subprocess.run(words, cwd=folder, env={**here.environment, **variables}, capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


WHOSE = """
import json
from distributed import Client
import utils
import pack.part

if __name__ == "__main__":
    client = Client()
    tasks = client.run(utils.whose) | {"scheduler": client.run_on_scheduler(utils.whose)}
    sums = client.gather(client.map(pack.part.h, [1, 2, 3]))
    print(json.dumps([utils.whose(), *tasks.values(), sum(map(pack.part.h, [1, 2, 3])), sum(sums)]))
"""


def test_workers_and_scheduler_import_the_copy_and_not_the_working_directory(here: Here) -> None:
    """Another `utils/` where the run was submitted gave driver 20 and worker 3000, with status 0."""
    put(here.folder / "sib", {"main.py": WHOSE, "utils.py": "def whose(): return 'own'\n", "pack/__init__.py": "",
                              "pack/part.py": "def h(x): return 10 * x\n"})  # fmt: skip
    foreign = {"utils.py": "def whose(): return 'foreign'\n", "pack/__init__.py": "",
               "pack/part.py": "def h(x): return 1000 * x\n"}  # fmt: skip
    put(here.folder / "other", foreign | {f"{name}.py": FOREIGN for name in NAMES})
    done = submit(here, here.folder / "other", "../sib/main.py", "--nodes", "2")
    assert said(done) == ["own"] * 4 + [60, 60]


@pytest.mark.parametrize("variable", [":", ".", "{cwd}", "{cwd}/../other/"])
def test_roles_import_nothing_of_the_working_directory_where_pythonpath_names_it(here: Here, variable: str) -> None:
    """An empty part, `.` or $PWD in PYTHONPATH is for the script and its tasks; it goes after the copy, as in Python."""
    put(here.folder / "sib", {"main.py": WHOSE, "utils.py": "import beside\ndef whose(): return beside.NAME\n",
                              "pack/__init__.py": "", "pack/part.py": "def h(x): return x\n"})  # fmt: skip
    other = here.folder / "other"
    put(other, {"beside.py": "NAME = 'beside'\n", "utils.py": FOREIGN})
    done = submit(here, other, "../sib/main.py", PYTHONPATH=variable.format(cwd=other))
    assert said(done) == ["beside"] * 3 + [6, 6]


PLAIN = """
import json, os, sys
print(json.dumps([[hasattr(__import__(name), "MINE") for name in {names}], os.path.dirname(__file__) == sys.path[0], os.getcwd(),
                  __name__, sys.flags.safe_path, sys.argv[1:]]))
"""


def test_names_of_modules_that_lie_beside_the_script(here: Here) -> None:
    """The script gets its own, as under plain Python; scheduler and workers start and end as if they were not there."""
    files = {f"{name}.py": "MINE = True\n" for name in NAMES}
    put(here.folder / "sib", {"main.py": PLAIN.format(names=NAMES), **files})
    plain = subprocess.run([sys.executable, "main.py"], cwd=here.folder / "sib", capture_output=True, text=True,
                           env=here.environment, check=True)  # fmt: skip
    done = submit(here, here.folder / "sib", "main.py")
    assert said(done) == json.loads(plain.stdout)


@pytest.mark.parametrize("name", ["array", "random", "hpcml"])
def test_a_script_with_the_name_of_a_module(here: Here, name: str) -> None:
    """What it writes beside itself is in the copy, which is told."""
    put(here.folder, {f"{name}.py": "open(f'{__file__}.out', 'w').close()\nprint(6 * 7)\n"})
    done = submit(here, here.folder, f"{name}.py")
    assert said(done) == 42
    assert f"copy of its folder, not beside the original: {name}.py.out (in /" in " ".join(done.stderr.split())


def test_a_checkout_as_the_working_directory(here: Here) -> None:
    """Its package `hpcml` is not what the roles are, whatever it holds."""
    put(here.folder / "sib", {"main.py": WHOSE, "utils.py": "def whose(): return 'own'\n", "pack/__init__.py": "",
                              "pack/part.py": "def h(x): return x\n"})  # fmt: skip
    put(here.folder / "checkout", {"hpcml/__init__.py": FOREIGN, "hpcml/node/__init__.py": FOREIGN})
    assert said(submit(here, here.folder / "checkout", "../sib/main.py")) == ["own"] * 3 + [6, 6]


CHILDREN = """
import json, os, subprocess, sys

def children(folder):
    import multiprocessing, beside
    with open(folder + "/task.py", "w") as file:
        file.write("import sys; print(sys.path[0], sys.flags.safe_path)")
    lines = [subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder).stdout.split()
             for words in (["task.py"], ["-m", "task"], ["-c", "import sys; print(repr(sys.path[0]), sys.flags.safe_path)"])]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        lines.append(pool.map(beside.NAME.__add__, ["!"]) + pool.map(beside.double, [21]))
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if not entry.endswith("/lib.zip")]
    return lines, path, os.getcwd()

if __name__ == "__main__":
    os.makedirs("made", exist_ok=True)
    found = [children(os.path.abspath("made"))]
    if len(sys.argv) > 1:
        from distributed import Client
        client = Client()
        found += client.run(children, os.path.abspath("made")).values()
        with open("sent.py", "w") as file:
            file.write("def word(): return 'sent'")
        client.upload_file("sent.py")
        found.append(client.submit(lambda: __import__("sent").word()).result())
    print(json.dumps(found))
"""


def test_processes_that_script_and_tasks_start_find_what_plain_python_gives_them(here: Here) -> None:
    put(here.folder / "sib", {"main.py": CHILDREN, "beside.py": "NAME = 'beside'\ndef double(x): return 2 * x\n"})
    put(here.folder / "other/mine", {"mine.py": ""})
    other = here.folder / "other"
    variables = {**here.environment, "PYTHONPATH": f"mine::{other}/mine"}
    plain = subprocess.run([sys.executable, "../sib/main.py"], cwd=other, capture_output=True, text=True,
                           env=variables, check=True)  # fmt: skip
    words = [str(Path(sys.executable).with_name("hpcml")), "submit", "--wait", "../sib/main.py", "run"]
    done = subprocess.run(words, cwd=other, env=variables, capture_output=True, text=True, timeout=120, check=False)
    (expected,) = json.loads(plain.stdout)
    assert expected[0][3] == ["beside!", 42]
    assert said(done) == [expected, expected, "sent"]


KINDS = """
import json, sys
from pathlib import Path
from distributed import Client
import big.part, extension

def kinds():
    import big.part, extension
    here = Path(extension.__file__).parent
    return [big.part.word(), extension.WORD, (here / "table.csv").stat().st_size, (here / ".settings").read_text(),
            (here / "large/9.txt").exists(), extension.ROOT]

if __name__ == "__main__":
    print(json.dumps([kinds(), *(Client().run(kinds).values() if len(sys.argv) > 1 else ())]))
"""


@pytest.mark.parametrize("snapshot", ["folder", "script", "none"])
def test_what_the_copy_leaves_out_is_found_by_script_and_tasks(here: Here, snapshot: str) -> None:
    sib = put(here.folder / "sib", {
        "main.py": KINDS, ".settings": "mine", "table.csv": "x" * 3000, "big/__init__.py": "",
        "big/part.py": "import big.huge as huge\nword = huge.word\n",
        "big/huge.py": "#" * 3000 + "\ndef word(): return 'whole'\n",
        "extension.py": "from pathlib import Path\nWORD = 'near'\n"
                        "ROOT = (Path(__file__).parent.parent / 'beside.txt').exists()\n"})  # fmt: skip
    put(here.folder, {"beside.txt": ""})
    put(sib, {f"large/{number}.txt": "" for number in range(30)})
    (sib / "loop").symlink_to("loop")
    plain = subprocess.run([sys.executable, str(sib / "main.py")], cwd=here.folder, capture_output=True, text=True,
                           env=here.environment, check=True)  # fmt: skip
    (expected,) = json.loads(plain.stdout)
    options = ["--set", f"code.snapshot={snapshot}", "--set", "code.max_file=2K", "--set", "code.max_files=10"]
    words = [str(Path(sys.executable).with_name("hpcml")), "submit", "--wait", *options, "sib/main.py", "run"]
    done = subprocess.run(words, cwd=here.folder, env=here.environment, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    if snapshot != "none":
        expected[-1] = False  # above the copy is the run's directory, and the note says so
    if snapshot == "folder":
        assert "big/huge.py (larger than code.max_file = 2K), table.csv (larger than code.max_file = 2K)" in done.stderr
        assert "large/ (more than code.max_files = 10)" in done.stderr
        assert "extension.py:3 leads above the script's folder" in done.stderr
    assert said(done) == [expected, expected]


UMASK = """
import os, subprocess, sys
from distributed import Client
import hpcml

def write(name):
    with open(name, "w") as file:
        file.write("x")
    os.mkdir(name + ".folder")
    subprocess.run(["touch", name + ".child"], check=True)

if __name__ == "__main__":
    client = Client()
    write("script")
    client.submit(write, os.path.abspath("task")).result()
    client.run_on_scheduler(write, os.path.abspath("scheduler"))
    write(str(hpcml.run.out / "result"))
"""


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o777])
def test_the_user_s_umask_is_for_script_tasks_and_results(here: Here, umask: int) -> None:
    """And hpcml's own files are the user's alone, whatever it is."""
    put(here.folder, {"main.py": UMASK})
    words = [str(Path(sys.executable).with_name("hpcml")), "submit", "--wait", "main.py"]
    done = subprocess.run(words, cwd=here.folder, env=here.environment, capture_output=True, text=True, timeout=120,
                          check=False, umask=umask)  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = next((here.folder / ".hpcml/runs").glob("main-*"))
    own = umask & 0o077  # a umask that shuts its owner out is not kept so far
    places = [here.folder / "script", here.folder / "task", here.folder / "scheduler", run / "out/result"]
    for place in places:
        for path in (place, place.with_name(f"{place.name}.child")):
            assert oct(path.stat().st_mode & 0o777) == oct(0o666 & ~own), path
        assert oct(place.with_name(f"{place.name}.folder").stat().st_mode & 0o777) == oct(0o777 & ~own)
    assert oct((run / "out").stat().st_mode & 0o777) == oct(0o777 & ~own)
    assert oct(run.stat().st_mode & 0o777) == "0o700"
    theirs = [path for path in run.rglob("*") if path.relative_to(run).parts[0] not in ("out", "code")]
    assert not [path for path in theirs if path.stat().st_mode & 0o077]


def test_script_tasks_and_scheduler_find_the_same_around_them(here: Here) -> None:
    """What may differ is in tests/alike.py and docs/surroundings.md."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, plain Python would ignore it, and a run's script not
    put(here.folder, {"around.py": SURROUNDINGS.read_text()})
    plain = subprocess.run([sys.executable, "around.py"], cwd=here.folder, capture_output=True, text=True, check=True,
                           env={**here.environment, "PWD": str(here.folder)}, stdin=subprocess.DEVNULL)  # fmt: skip
    words = [str(Path(sys.executable).with_name("hpcml")), "submit", "--wait", "--nodes", "2", "around.py", "run"]
    done = subprocess.run(words, cwd=here.folder, env=here.environment, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    found = json.loads(plain.stdout) | said(done)
    assert len(found) == 5
    assert not alike.differences(found)
    scores = {role: facts["oom_score_adj"] for role, facts in found.items() if role not in ("python", "script")}
    kept = scores.pop("scheduler")
    assert set(scores.values()) == {min(kept + processes.KILLED_FIRST, 1000)}  # Linux leaves the scheduler alone


ENDS = """
import json
from distributed import Client

def ends():
    import multiprocessing, subprocess
    child = subprocess.Popen(["sleep", "600"])
    child.terminate()
    pool = multiprocessing.get_context("fork").Pool(1)
    pool.terminate()
    pool.join()
    return child.wait(60)

if __name__ == "__main__":
    client = Client()
    print(json.dumps([*client.run(ends).values(), client.run_on_scheduler(ends)]))
"""


def test_what_a_task_starts_can_be_terminated(here: Here) -> None:
    """Workers ignored SIGTERM, and so did all that their tasks started: terminate() did nothing, and join() hung."""
    put(here.folder, {"ends.py": ENDS})
    assert said(submit(here, here.folder, "ends.py")) == [-15, -15]
