"""Scripts that read Slurm's own variables to open a Dask cluster, unchanged in an allocation: they get the run's workers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

IDIOMS = Path(__file__).parents[1] / "local" / "idioms"  # each tells itself whether it is right
SALLOC = ("salloc", "--quiet", "--partition=boost", "--nodes=2", "--time=10", "--mem=3000M")
# What is noted of each: what was called, in which line.
NOTES = {"slurm_runner": "SLURMRunner in line 6", "mpi": "dask_mpi.initialize in line 6"}


def test_scripts_that_read_slurm_s_variables(cluster: Cluster, image: Path, subtests: pytest.Subtests) -> None:
    """One after another in one allocation, the second in an image."""
    lines = []
    for name, options in (("slurm_runner", ""), ("mpi", f"--image {shlex.quote(str(image))}")):
        path = cluster.write(f"idioms/{name}.py", (IDIOMS / f"{name}.py").read_text())
        lines.append(f"hpcml run {options} {name}.py >{name}.out 2>&1; echo $? >{name}.status")
    done = cluster.run(*SALLOC, "bash", "-c", "\n".join(lines), cwd=path.parent, timeout=240)
    assert done.returncode == 0, done.stderr
    for name, call in NOTES.items():
        with subtests.test(name):
            status, *said = cluster.run("cat", f"{name}.status", f"{name}.out", cwd=path.parent).stdout.splitlines()
            text = "\n".join(said)
            assert status == "0", text
            assert "result True" in said, text
            assert not re.search("WARNING|Traceback|Exception", text), text
            [note] = [line.removeprefix("hpcml: ") for line in said if line.startswith("hpcml: ")]
            assert re.sub(r"\(.*\) in line", " in line", note).startswith(call), note
            assert note.endswith(": this run's 2 workers on 2 nodes are used."), note
