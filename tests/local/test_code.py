"""The run's copy of the code is the code: script, tasks and scheduler import the same files, as plain Python would."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import alike
from homes import HPCML, Here, here, home
from hpcml.node import process_helpers
from tests.said import in_order

pytestmark = pytest.mark.local
SURROUNDINGS = Path(alike.__file__).with_name("surroundings.py")
__all__ = ["here"]

# Each was seen to end a run when it lay in the working directory.
NAMES = ("random", "select", "array", "queue", "logging", "dask", "numpy", "socket", "hpcml", "distributed", "calendar")
UMASK = 0o727
FOREIGN = "raise SystemExit(f'{__name__} of the working directory was imported: {__file__}')\n"


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def submit(here: Here, folder: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Submit a script from a folder, which is the run's working directory."""
    return subprocess.run([HPCML, "submit", "--wait", *words], cwd=folder, **{"env": here.environment, **more},
                          capture_output=True, text=True, timeout=240, check=False)  # fmt: skip


def plain(here: Here, folder: Path, script: str, **more: Any) -> Any:
    """Return what a script prints under plain Python."""
    done = subprocess.run([sys.executable, script], cwd=folder, **{"env": here.environment, **more}, capture_output=True,
                          text=True, check=True, stdin=subprocess.DEVNULL)  # fmt: skip
    return json.loads(done.stdout)


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


ALL = """
import json, os, subprocess, sys
from distributed import Client
import hpcml
import utils, pack.part, surroundings

def ends():
    import multiprocessing
    child = subprocess.Popen(["sleep", "600"])
    child.terminate()
    pool = multiprocessing.get_context("fork").Pool(1)
    pool.terminate()
    pool.join()
    return child.wait(60)

def write(name):
    with open(name, "w") as file:
        file.write("x")
    os.mkdir(name + ".folder")
    subprocess.run(["touch", name + ".child"], check=True)

if __name__ == "__main__":
    client = Client()
    everywhere = lambda function: [function(), client.run_on_scheduler(function), *client.run(function).values()]
    found = {}
    found["around"] = {"script": surroundings.collect(), "scheduler": client.run_on_scheduler(surroundings.collect),
                       **client.run(surroundings.collect)}
    found["whose"] = everywhere(utils.whose)
    found["sums"] = [sum(map(pack.part.h, [1, 2, 3])), sum(client.gather(client.map(pack.part.h, [1, 2, 3])))]
    found["ends"] = everywhere(ends)
    found["variables"] = [os.environ.get(name) for name in
                          ("PYTHONFAULTHANDLER", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL")]
    write("script")
    client.submit(write, os.path.abspath("task")).result()
    client.run_on_scheduler(write, os.path.abspath("scheduler"))
    write(str(hpcml.run.out / "result"))
    print(json.dumps(found))
"""


class Code(NamedTuple):
    """A run of a script that lies beside its modules, submitted from a folder full of others of their names."""

    done: subprocess.CompletedProcess[str]
    found: Any
    python: Any  # the surroundings of plain Python
    folder: Path
    run: Path


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Code]:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, plain Python would ignore it, and a run's script not
    with home(tmp_path_factory.mktemp("code")) as here:
        put(here.folder / "sib", {"main.py": ALL, "utils.py": "def whose(): return 'own'\n", "pack/__init__.py": "",
                                  "pack/part.py": "def h(x): return 10 * x\n", "surroundings.py": SURROUNDINGS.read_text(),
                                  "hpcml/data.txt": "no code: this folder hides nothing"})  # fmt: skip
        other = put(here.folder / "other", {f"{name}.py": FOREIGN for name in (*NAMES, "utils", "pack/part")})
        put(other, {"hpcml/__init__.py": FOREIGN, "hpcml/node/__init__.py": FOREIGN, "pack/__init__.py": FOREIGN})
        around = {**here.environment, "PWD": str(other)}
        python = plain(here, other, "../sib/surroundings.py", env=around, umask=UMASK & 0o077)
        done = submit(here, other, "--nodes", "2", "../sib/main.py", umask=UMASK)
        yield Code(done, said(done), python, other, next((here.folder / ".hpcml/runs").glob("main-*")))


def test_workers_and_scheduler_import_the_copy_and_not_the_working_directory(code: Code) -> None:
    """Another `utils/` where the run was submitted gave driver 20 and worker 3000, with status 0."""
    assert (code.found["whose"], code.found["sums"]) == (["own"] * 4, [60, 60])
    assert code.found["ends"] == [-signal.SIGTERM] * 4, "what a task starts can be terminated"
    *others, last = code.found["variables"]
    assert [*others[:2], last] == ["1", "WARN", "warn"]
    assert others[2].endswith("/logs/nccl-%h.%p.log")


def test_script_tasks_and_scheduler_find_the_same_around_them(code: Code) -> None:
    """What may differ is in tests/alike.py and docs/surroundings.md."""
    found = code.python | code.found["around"]
    assert len(found) == 5
    assert not alike.differences(found)
    scores = {role: facts["oom_score_adj"] for role, facts in found.items() if role not in ("python", "script")}
    kept = scores.pop("scheduler")
    assert set(scores.values()) == {min(kept + process_helpers.KILLED_FIRST, 1000)}  # Linux leaves the scheduler alone


def test_the_user_s_umask_is_for_script_tasks_and_results(code: Code) -> None:
    """And hpcml's own files are the user's alone; a umask that shuts its owner out is not kept so far."""
    own = UMASK & 0o077
    for place in (code.folder / "script", code.folder / "task", code.folder / "scheduler", code.run / "out/result"):
        for path in (place, place.with_name(f"{place.name}.child")):
            assert oct(path.stat().st_mode & 0o777) == oct(0o666 & ~own), path
        assert oct(place.with_name(f"{place.name}.folder").stat().st_mode & 0o777) == oct(0o777 & ~own)
    assert oct((code.run / "out").stat().st_mode & 0o777) == oct(0o777 & ~own)
    assert oct(code.run.stat().st_mode & 0o777) == "0o700"
    theirs = [path for path in code.run.rglob("*") if path.relative_to(code.run).parts[0] not in ("out", "code")]
    assert not [path for path in theirs if path.stat().st_mode & 0o077]


MODULES = """
import json, os, sys
MINE = True
if __name__ == "__main__":
    open(f"{{__file__}}.out", "w").close()
    print(json.dumps([[hasattr(__import__(name), "MINE") for name in {names}], os.path.dirname(__file__) == sys.path[0],
                      os.getcwd(), __name__, sys.flags.safe_path, sys.argv[1:]]))
"""


def test_names_of_modules_that_lie_beside_the_script(here: Here) -> None:
    """The script gets its own, as under plain Python; scheduler and workers start and end as if they were not there.

    The script has such a name too. What it writes beside itself is brought to it.
    """
    files = {f"{name}.py": "MINE = True\n" for name in NAMES[1:]}
    sib = put(here.folder / "sib", {"random.py": MODULES.format(names=NAMES), **files})
    expected = plain(here, sib, "random.py")
    (sib / "random.py.out").unlink()
    done = submit(here, sib, "random.py")
    assert said(done) == expected
    assert "next to the script hides hpcml" in done.stdout
    assert (sib / "random.py.out").exists(), "what a script writes beside itself is brought there at the end"


CHILDREN = """
import json, os, subprocess, sys
from pathlib import Path
import utils, big.part, extension

def kinds():
    here = Path(extension.__file__).parent
    return [big.part.word(), extension.WORD, (here / "table.csv").stat().st_size, (here / ".settings").read_text(),
            (here / "large/9.txt").exists(), extension.ROOT]

def never():
    import dask.dataframe  # no graph of this script needs it: what is there, came early

def early():
    return hasattr(sys.modules.get("dask.dataframe"), "from_delayed")

def children(folder):
    import multiprocessing, beside
    with open(folder + "/task.py", "w") as file:
        file.write("import sys; print(sys.path[0], sys.flags.safe_path)")
    lines = [subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder).stdout.split()
             for words in (["task.py"], ["-m", "task"], ["-c", "import sys; print(repr(sys.path[0]), sys.flags.safe_path)"])]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        lines.append(pool.map(beside.NAME.__add__, ["!"]) + pool.map(beside.double, [21]))
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if not entry.endswith("/lib.zip")]
    return lines, path, os.getcwd(), utils.whose()

if __name__ == "__main__":
    os.makedirs("made", exist_ok=True)
    found, others = [children(os.path.abspath("made"))], [kinds()]
    if len(sys.argv) > 1:
        from distributed import Client
        client = Client()
        found += client.run(children, os.path.abspath("made")).values()
        others += client.run(kinds).values()
        with open("sent.py", "w") as file:
            file.write("def word(): return 'sent'")
        client.upload_file("sent.py")
        print(client.run_on_scheduler(utils.whose), early(), client.run_on_scheduler(early), *client.run(early).values(), flush=True)
        found.append(client.submit(lambda: __import__("sent").word()).result())
    print(json.dumps([found, others]))
"""


def test_what_pythonpath_names_is_for_script_and_tasks(here: Here) -> None:
    """An empty part, `.` or $PWD in PYTHONPATH goes after the copy, as in plain Python; roles import nothing of it.

    Processes that script and tasks start find what plain Python gives them. Workers have imported what the script will,
    before its first graph; script and scheduler, whose cores the script may need, import for themselves. What the copy
    leaves out is found where it lies.
    """
    sib = put(here.folder / "sib", {
        "main.py": CHILDREN, "beside.py": "NAME = 'beside'\ndef double(x): return 2 * x\n",
        "utils.py": "import near\ndef whose(): return near.NAME\n",
        ".settings": "mine", "table.csv": "x" * 5000, "big/__init__.py": "",
        "big/part.py": "import big.huge as huge\nword = huge.word\n",
        "big/huge.py": "#" * 5000 + "\ndef word(): return 'whole'\n",
        "extension.py": "from pathlib import Path\nWORD = 'near'\n"
                        "ROOT = (Path(__file__).parent / 'table.csv').exists()\n"})  # fmt: skip
    put(sib, {f"large/{number}.txt": "" for number in range(30)})
    (sib / "loop").symlink_to("loop")
    other = put(here.folder / "other", {"near.py": "NAME = 'near'\n", "utils.py": FOREIGN, "mine/mine.py": ""})
    around = {**here.environment, "PYTHONPATH": f":mine::.:{other}:{other}/../other/:{other}/mine"}
    (alone,), (kinds,) = plain(here, other, "../sib/main.py", env=around)
    options = ("--set", "code.max_file=4K", "--set", "code.max_files=20")
    done = submit(here, other, *options, "../sib/main.py", "run", env=around)
    of_the_run, kinds_of_the_run = said(done)
    assert alone[0][3] == ["beside!", 42]
    assert alone[3] == "near"
    assert of_the_run == [alone, alone, "sent"]
    assert "near False False True" in done.stdout.splitlines()
    assert "  tasks  " not in done.stderr  # Dask and hpcml alone wrote into the workers' logs
    assert kinds_of_the_run == [kinds, kinds]
    assert re.search(
        in_order("big/huge.py (larger than code.max_file =", "4K), table.csv", "code.max_file = 4K)"), done.stderr
    )
    assert "large/ (exceeds code.max_files = 20)" in done.stderr


def test_workers_inherit_what_a_local_cluster_s_would(here: Here) -> None:
    """What may differ is in tests/alike.py, and in docs/porting.md and docs/surroundings.md: some 200 probes."""
    inherited = SURROUNDINGS.with_name("inherited.py").read_text()
    put(here.folder, {"inherited.py": inherited, "surroundings.py": SURROUNDINGS.read_text()})
    around = {**here.environment, "GONE": "1", "PWD": str(here.folder)}
    alone = plain(here, here.folder, "inherited.py", env=around)
    done = submit(here, here.folder, "--nodes", "2", "inherited.py", env=around)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    run = json.loads(next(line for line in lines if line.startswith("{")))
    tasks, of_run = alone.pop("tasks"), run.pop("tasks")
    assert alone == run == {"random": True, "functions": [10, 20], "modules": [2, 4], "pickled": [3, 6]}
    assert len(tasks) + len(tasks["environment"]) + len(tasks["dask"]) > 200
    assert not alike.of_a_local_cluster(tasks, of_run)
    path = [entry for entry in tasks["path"] if "dask-scratch-space" not in entry]
    assert of_run["path"][1] == path[0] == str(here.folder / "work/lib")
    assert of_run["path"][4:] == path[2:]  # between them the copy of the script's folder, and hpcml
    assert [line.partition("get ")[2] for line in lines if "the workers do not get" in line] == [
        "LC_TIME for libraries that are already loaded (set the variable before you submit)."
    ]
