"""Which stacks of a process are shown, which are equal, and which nodes have not answered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml.failures import stack_groups as kept
from hpcml.node import stacks as node_stacks
from hpcml.node.stacks import parsed
from hpcml.paths import RunPaths
from hpcml.runs import directories, stacks
from hpcml.runs.status import Status
from tests.said import says

DUMP = """Thread 0x00007f1c2a7fc6c0 [Dask-Default-Thr] (most recent call first):
  File "{copy}/data.py", line 2 in read
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f1c34f0e040 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line ??? in select
  File "lib.zip/hpcml/kinds/__main__.py", line 36 in main
"""


def answer(copy: Path, request: str, node: str, names: list[str], waits: str = "") -> str:
    threads = [] if waits else parsed(DUMP.format(copy=copy))
    facts = {"child": False, "command": "a", "state": "S", "wait": waits, "by": "faulthandler", "threads": threads}
    processes = [{**facts, "pid": number, "name": name} for number, name in enumerate(names)]
    return json.dumps({"id": request, "node": node, "processes": processes})


def test_equal_stacks_are_one_group_in_the_order_of_nodes_and_a_silent_node_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    attempt, nodes = paths.attempt(0), tuple(f"n{number}" for number in range(1, 8))
    attempt.stacks.mkdir(parents=True)
    paths.code.mkdir()
    (paths.code / "data.py").write_text("def read(file):\n    return file.read()\n")
    (attempt.stacks / "n7.json").write_text(answer(paths.code, "of an earlier request", "n7", ["rank 9"]))

    def nodes_answer(_: float) -> None:
        request = json.loads(attempt.stacks_request.read_text())["id"]
        for node in nodes[:5]:
            (attempt.stacks / f"{node}.json").write_text(answer(paths.code, request, node, ["worker 0", "worker 1"]))
        (attempt.stacks / "n6.json").write_text(answer(paths.code, request, "n6", ["rank 2"], waits="pipe_read"))

    monkeypatch.setattr(stacks, "WAIT", 0.0)
    monkeypatch.setattr("time.sleep", nodes_answer)
    status = Status.of("a", phase="running", nodes=nodes)
    answered = stacks.ask(directories.Run("a", paths, None), status)
    assert answered.missing == ("n7",)
    assert [(group.place, [one.title for one in group.processes]) for group in answered.groups] == [
        ("at data.py:2 read", [f"worker {number} ({node})" for node in nodes[:5] for number in (0, 1)]),
        (says("a Python stack: state S, in pipe_read"), ["rank 2 (n6)"]),
    ]
    (stack,) = answered.groups[0].processes[0].stacks
    assert stack == (kept.Frame("data.py", 2, "read", "return file.read()"),)


def test_where_no_thread_runs_the_user_s_code_the_main_thread_counts() -> None:
    main = [
        kept.Frame("lib.zip/hpcml/node/agent.py", 1, "keep", ""),
        kept.Frame("/usr/lib/python3.11/a.py", 2, "b", ""),
    ]
    pool = [kept.Frame("/x/lib/python3.11/site-packages/dask/c.py", 3, "d", "")]
    assert kept.told([pool, main]) == (tuple(main),)
    process = kept.Process("n1", 1, "worker n1-0", False, "", "faulthandler", "", kept.told([pool, main]))
    assert kept.Group((process,)).place == "outside your code, at a.py:2 b"


CHILDREN = Path(node_stacks.__file__).parent.parent / "kinds/dask/node/script/sitecustomize_of_run.py"
WAITS = """
import os, sys
own = os.open("/dev/shm", 0o20000000 | os.O_DIRECTORY | os.O_RDWR)  # a file without a name of the script's own
def wait():
    os.write(1, b"%d\\n" % os.getpid())
    sys.stdin.read(1)
os.fork()
wait()
"""
# The Pythons of conda and uv are built for an old glibc.
OLD = "import os\nfor name in ('memfd_create', 'O_TMPFILE'):\n    vars(os).pop(name, None)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm and /proc are Linux's")
@pytest.mark.parametrize("before", ["", OLD], ids=["new", "old"])
@pytest.mark.parametrize("plant", [": > {}", "mkfifo {}", "ln -s /etc/passwd {}", "mkdir {}"])
def test_no_planted_name_keeps_a_process_and_its_fork_from_writing_their_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str, before: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(before + CHILDREN.read_text())
    monkeypatch.setattr(node_stacks, "YOUNGEST", -1.0)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HPCML_RUN_DIR": str(tmp_path)}
    # another account planted a name; the shell's pid is that of the Python which it becomes
    line = f'{plant.format("/dev/shm/hpcml-stacks.$$")}; exec "$0" -c "$1"'
    process = subprocess.Popen(["sh", "-c", line, sys.executable, WAITS], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip
    planted = Path(f"/dev/shm/hpcml-stacks.{process.pid}")
    try:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert process.pid in pids
        for _ in range(2):  # an answer replaces the one before
            dumps = dict(node_stacks.of_signal(pids, time.monotonic() + 60))
            named = {pid: [[function for _, _, function in thread] for thread in dumps[pid]] for pid in pids}
            assert named == {pid: [["wait", "<module>"]] for pid in pids}
        names = re.compile(rf".*stacks(.*\D)?{process.pid}(\D.*)?")  # not of a process whose number is longer
        assert [path for path in Path("/dev/shm").iterdir() if names.fullmatch(path.name)] == [planted]
    finally:
        process.communicate(b"12")
        if planted.is_dir():
            planted.rmdir()
        else:
            planted.unlink(missing_ok=True)
