"""What README and docs mark to be run is run as written, in a new home on the local site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_blocks import OWN_BLOCKS, RUNNABLE, is_named, of_page, session

pytestmark = pytest.mark.local

DEADLINE = 600  # seconds for the blocks of one page
# Python that no line of its page runs, nor plain Python: one script runs it all, in one run.
SUBMITTED = [block for block in OWN_BLOCKS if block.language == "python" and block.run is not None
             and "with" not in block.run and not is_named(block, of_page(block.page))]  # fmt: skip
ALL = """
import runpy, sys
names, sys.argv[1:] = sys.argv[1:], []
for name in names:
    print("file", name, flush=True)
    runpy.run_path(name, run_name="__main__")
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    foreign = ("HPCML_", "DASK_", "SLURM_", "SBATCH_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    environment |= {"HOME": str(folder), "HPCML_SITE": "local", "HPCML_SYSTEM_CONFIG": "/nowhere",
                    "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}  # fmt: skip
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)  # fmt: skip


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_runnable_blocks_run(page: Path, tmp_path: Path) -> None:
    try:
        done = run(tmp_path, "bash", "-c", session(of_page(page)))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    finally:
        for one in json.loads(run(tmp_path, "hpcml", "ls", "--json").stdout or "[]"):
            if one["phase"] not in ("ended", "refused"):
                run(tmp_path, "hpcml", "cancel", one["run"])


def test_python_that_no_line_runs(tmp_path: Path) -> None:
    files = {str((block.run or {})["file"]): block.text for block in SUBMITTED}
    for name, text in {**files, "all.py": ALL}.items():
        (tmp_path / name).write_text(text)
    done = run(tmp_path, "hpcml", "submit", "--wait", "all.py", *files)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert [line for line in done.stdout.splitlines() if line.startswith("file ")] == [f"file {name}" for name in files]
