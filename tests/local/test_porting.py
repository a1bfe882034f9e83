"""The pairs of docs/porting.md: both scripts of each give the same in a run, and so does the second in plain Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_idioms import CUDA
from test_local import Here, here

pytestmark = pytest.mark.local
__all__ = ["here"]

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
PORTS = PAGE.read_text().partition("## Seven ports")[2].partition("\n## ")[0]
PAIRS = {
    part.partition("\n")[0]: tuple(re.findall(r"```python\n(.*?)```", part, re.DOTALL))
    for part in PORTS.split("\n### ")[1:]
}
# Runs scripts one after another in one process, as each would run alone; the cluster that one opens is closed behind it.
ALL = """
import runpy, sys
from pathlib import Path
for path in sorted(Path(__file__).parent.glob("port-*.py")):
    sys.argv = [str(path), "of-last-week.json"]
    print("script", path.stem, flush=True)
    names = runpy.run_path(str(path), run_name="__main__")
    for one in (names.get("client"), names.get("cluster")):
        if one:
            one.close()
"""
NOTED = {"LocalCluster": 1, "LocalCUDACluster": 1, "SLURMCluster": 2, "SLURMRunner": 1, "dask_mpi": 1,
         "A scheduler started by hand": 1, "joblib": 1}  # fmt: skip


def outputs(text: str) -> dict[str, list[str]]:
    """Return the lines that each script wrote, by its name."""
    parts = re.split(r"^script (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], [part.splitlines() for part in parts[1::2]], strict=True))


def test_there_are_seven_pairs() -> None:
    assert set(PAIRS) == set(NOTED)
    assert {len(scripts) for scripts in PAIRS.values()} == {2}


def test_both_of_each_pair_give_the_same(here: Here) -> None:
    (here.folder / "dask_cuda").mkdir()
    for name, text in CUDA.items():
        (here.folder / "dask_cuda" / f"{name}.py").write_text(text)
    for number, (before, after) in enumerate(PAIRS.values()):
        (here.folder / f"port-{number}-before.py").write_text(before.replace("cupy", "numpy"))  # there is no CuPy here
        (here.folder / f"port-{number}-after.py").write_text(after)
    done = here.run("submit", "--nodes", "2", "--wait", here.script(ALL))
    assert done.returncode == 0, done.stdout + done.stderr
    in_run = outputs(done.stdout)
    for path in here.folder.glob("port-*-before.py"):
        path.unlink()
    alone = subprocess.run([sys.executable, here.script(ALL)], cwd=here.folder, env=here.environment,
                           capture_output=True, text=True, timeout=240, check=True)  # fmt: skip
    for number, name in enumerate(PAIRS):
        after = in_run[f"port-{number}-after"]
        before = in_run[f"port-{number}-before"]
        said = [line for line in before if line.startswith("hpcml: ")]
        assert [line for line in before if line not in said] == after != [], name
        assert outputs(alone.stdout)[f"port-{number}-after"] == after, name
        assert len(said) == NOTED[name], said
        assert all(line.endswith(": this run's 2 workers on 2 nodes are used.") for line in said)
