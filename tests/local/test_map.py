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
import concurrent.futures, os, signal
import hpcml, mine
def f(x):
    print("point", x)
    return x * mine.TWO if x else (lambda: 42)
futures = hpcml.map(f, range(4), site="local", env=["COLOUR=a b"])
done, rest = concurrent.futures.wait(futures, 100)
assert not rest and all(one.done() for one in futures)
assert futures[0].result()() == 42
print([one.result() for one in futures[1:]], [one.point for one in futures])
assert "point 2" in futures[2].log.read_text()
print(hpcml.map(mine.three, [1], site="local")[0].result(100))
def where(x): return os.environ["SUBMITIT_LOCAL_GLOBALID"], os.environ["COLOUR"], os.getcwd(), os.environ.get("PYTHONSAFEPATH")
print(hpcml.map(where, [1], site="local", nodes=2, env=["COLOUR=a b"])[0].result(100))
print(hpcml.map(f, [], site="local"))
def default(x): return signal.getsignal(x) is signal.SIG_DFL
print(hpcml.map(default, [signal.SIGTERM], site="local")[0].result(100))
"""

ERRORS = """
import os, signal, sys, traceback
import hpcml
class Odd(Exception):
    def __init__(self, one, two): super().__init__("odd")
class Again:
    def __call__(self, x):
        with open("calls", "a") as file: file.write(f"{x}\\n")
        if x == "exit": sys.exit(144)
        if x == "signal": os.kill(os.getpid(), signal.SIGUSR2)
        if x == "killed": os._exit(9)
        if x == "odd": raise Odd(1, 2)
        if x == "value": return sys._getframe()
        raise KeyError(x)
    def checkpoint(self, x): raise AssertionError("submitit begins it again")
points = ["key", "exit", "signal", "killed", "odd", "value"]
futures = hpcml.map(Again(), points, site="local", time="10m")
errors = [one.exception(200) for one in futures]
for point, error in zip(points, errors): print(point, "|", type(error).__name__, "|", str(error).replace("\\n", " "))
try: futures[0].result()
except KeyError: print(traceback.format_exc())
assert sorted(open("calls").read().split()) == sorted(points)
"""

LIMITS = """
import os, time
import hpcml
def f(x):
    open(f"began{x}", "w").write(str(os.getpid()))
    time.sleep(x)
    return x
late = hpcml.map(f, [600], site="local", time="3s")[0]
print(repr(late.exception(100)))
first, second, third = hpcml.map(f, [601, 602, 0], site="local", at_once=1)
while not os.path.exists("began601"): time.sleep(0.05)
assert second.cancel() and first.cancel() and first.cancelled() and second.job == ""
print(third.result(100), third.cancel(), os.path.exists("began602"))
slots = hpcml.map(lambda x: os.environ["CUDA_VISIBLE_DEVICES"], range(2), site="local", gpus_per_node=2, at_once=2)
print(sorted(one.result(100) for one in slots))
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
    assert lines == ["[2, 4, 6] [0, 1, 2, 3]", "3", f"[('0', {here}), ('1', {here})]", "[]", "True"]
    assert not (cwd / "owned").exists()
    left = tmp_path / ".hpcml/runs"
    assert [path.name for path in left.iterdir()] == [".maps"]
    assert (left / ".maps").stat().st_mode & 0o777 == 0o700


def test_errors_are_the_function_s_own_and_nothing_is_done_twice(tmp_path: Path) -> None:
    text = "\n".join(run(tmp_path, ERRORS))
    for said in (
        "key | KeyError | 'key'",
        "exit | PointError | Point 1 raised an error",
        "SystemExit: 144",
        "signal | TimeoutError | the time limit of the point is reached",
        "killed | PointError | Point 3 ended without a result",
        "odd | PointError | Point 4 raised an error",
        "Odd: odd",
        "value | TypeError | cannot pickle 'frame' object",
        "program.py",
        "raise KeyError(x)",
    ):
        assert said in text, text


def test_a_limit_a_cancellation_and_the_end_of_the_program_end_points(tmp_path: Path) -> None:
    lines = run(tmp_path, LIMITS)
    assert lines == ["TimeoutError('the time limit of the point is reached')", "0 False False", "['0,1', '2,3']"]
    for number in (601, 603):
        pid = (tmp_path / f"began{number}").read_text()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, f"the process of {number} is there still"
            time.sleep(0.05)
