"""What README and docs mark to be run is run as written, in a new home on the local site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_blocks import RUNNABLE, of_page, session

DEADLINE = 600  # seconds for the blocks of one page


@pytest.mark.local
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_runnable_blocks_run(page: Path, tmp_path: Path) -> None:
    foreign = ("HPCML_", "DASK_", "SLURM_", "SBATCH_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    binaries = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"HOME": str(tmp_path), "HPCML_SITE": "local", "HPCML_SYSTEM_CONFIG": "/nowhere", "PATH": binaries}
    script = session(of_page(page))
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    finally:
        listed = subprocess.run(
            ["hpcml", "ls", "--json"], env=environment, cwd=tmp_path, capture_output=True, check=False
        )
        for run in json.loads(listed.stdout or "[]"):
            if run["phase"] not in ("ended", "refused"):
                subprocess.run(["hpcml", "cancel", run["run"]], env=environment, cwd=tmp_path, check=False)
