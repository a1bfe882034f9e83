"""hpcml as one file, with Dask in the environment of the profile only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.cli import pack

SCRIPT = "import hpcml\nprint(hpcml.connect().submit(sum, [1, 2]).result())\n"


@pytest.mark.local
def test_a_run_by_the_python_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "hpcml.pyz").write_bytes(pack.make())
    (tmp_path / "three.py").write_text(SCRIPT)
    bare = [str(Path(sys.executable).resolve()), "-I", "-S", "hpcml.pyz"]
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "HPCML_SYSTEM_CONFIG": "/nowhere"}
    command = [*bare, "submit", "--site", "local", "--wait", "--set", f"runtime.python={sys.executable}", "three.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
