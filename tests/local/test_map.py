"""``hpcml.map`` on this machine: values, errors, ends, limits and places of points, in programs as a user writes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.local

VALUES = """
import os
import hpcml, mine
def f(x):
    print("point", x)
    return x * mine.TWO if x else (lambda: 42)
jobs = hpcml.map(f, range(4), site="local", env=["COLOUR=a b"])
assert jobs[0].result()() == 42
print([one.result() for one in jobs[1:]])
assert all(one.done() for one in jobs) and "point 2" in jobs[2].stdout()
print(hpcml.map(mine.three, [1], site="local")[0].result())
def where(x): return os.environ["SUBMITIT_LOCAL_GLOBALID"], os.environ["COLOUR"], os.getcwd(), os.environ.get("PYTHONSAFEPATH")
print(hpcml.map(where, [1], site="local", nodes=2, env={"COLOUR": "a b"})[0].results())
print(hpcml.map(f, [], site="local"))
"""

ERRORS = """
import os, signal, sys
import hpcml
class Again:
    def __call__(self, x):
        with open("calls", "a") as file: file.write(f"{x}\\n")
        if x == "signal": os.kill(os.getpid(), signal.SIGUSR2)
        if x == "killed": os._exit(9)
        if x == "value": return sys._getframe()
        raise KeyError(x)
    def checkpoint(self, x): raise AssertionError("submitit begins it again")
import submitit
submitit.Job._results_timeout_s = 1  # what did not write its result here will not: no file system is late
points = ["key", "signal", "killed", "value"]
jobs = hpcml.map(Again(), points, site="local", time="10m", at_once=5)
for point, job in zip(points, jobs):
    try: job.result()
    except Exception as error: print(point, "|", type(error).__name__, "|", str(error).replace("\\n", " "))
assert sorted(open("calls").read().split()) == sorted(points)
"""

LIMITS = """
import os, time
import hpcml
def f(x):
    open(f"began{x}", "w").write(str(os.getpid()))
    time.sleep(x)
    return x
late, after = hpcml.map(f, [600, 0], site="local", time="12s", at_once=1)  # Python and its packages start within that
assert late.done()
print("timed-out" in str(late.exception()), after.result())
(first,) = hpcml.map(f, [601], site="local")
while not os.path.exists("began601"): time.sleep(0.05)
first.cancel()
slots = hpcml.map(lambda x: os.environ["CUDA_VISIBLE_DEVICES"], range(2), site="local", gpus_per_node=2, at_once=2)
print(sorted(one.result() for one in slots))
alone, _ = hpcml.map(lambda x: time.sleep(1), range(2), site="local", gpus_per_node=1)
assert alone.done(), "two points at once on one GPU"
hpcml.map(f, [603], site="local")
while not os.path.exists("began603"): time.sleep(0.05)
"""


def run(folder: Path, program: str, cwd: Path | None = None, **variables: str) -> list[str]:
    (folder / "program.py").write_text(program)
    (folder / "mine.py").write_text("TWO = 2\ndef three(x): return 3 * x\n")
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}
    done = subprocess.run([sys.executable, folder / "program.py"], cwd=cwd or folder, env=environment, capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_values_come_back_in_order(tmp_path: Path) -> None:
    cwd = tmp_path / "shared"  # in which somebody else put modules: none of them is imported
    cwd.mkdir()
    for name in ("submitit", "cloudpickle", "mine"):
        (cwd / f"{name}.py").write_text("open('owned', 'w').close()")
    lines = run(tmp_path, VALUES, cwd)
    here = f"'a b', '{cwd}', None"
    assert lines == ["[2, 4, 6]", "3", f"[('0', {here}), ('1', {here})]", "[]"]
    assert not (cwd / "owned").exists()
    left = tmp_path / ".hpcml/runs"
    assert [path.name for path in left.iterdir()] == [".maps"]
    assert (left / ".maps").stat().st_mode & 0o777 == 0o700


def test_errors_have_the_function_s_traceback_and_nothing_is_done_twice(tmp_path: Path) -> None:
    text = "\n".join(run(tmp_path, ERRORS))
    for said in (
        "key | FailedJobError | ",
        "program.py\", line 10, in __call__     raise KeyError(x) KeyError: 'key'",
        "signal | FailedJobError | ",
        "killed | UncompletedJobError | ",
        "value | UncompletedJobError | ",
        "cannot pickle 'frame' object",
    ):
        assert said in text, text


def test_a_limit_a_cancellation_and_the_end_of_the_program_end_points(tmp_path: Path) -> None:
    lines = run(tmp_path, LIMITS)
    assert lines == ["True 0", "['0,1', '2,3']"]
    for number in (601, 603):
        pid = (tmp_path / f"began{number}").read_text()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, f"the process of {number} is there still"
            time.sleep(0.05)
