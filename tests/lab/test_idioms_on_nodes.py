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
NOTES = {
    "slurm_cluster": ["SLURMCluster 30", "scale 40"],
    "slurm_runner": ["SLURMRunner 6"],
    "mpi": ["dask_mpi.initialize 6"],
}
IN_THE_IMAGE = ("slurm_runner", "mpi")


def check_all(cluster: Cluster, subtests: pytest.Subtests, names: tuple[str, ...], *options: str) -> None:
    """Run scripts one after another in one allocation, and look at the status, result and notes of each."""
    lines = []
    for name in names:
        path = cluster.write(f"idioms{len(options)}/{name}.py", (IDIOMS / f"{name}.py").read_text())
        lines.append(f"hpcml run {shlex.join(options)} {name}.py >{name}.out 2>&1; echo $? >{name}.status")
    done = cluster.run(*SALLOC, "bash", "-c", "\n".join(lines), cwd=path.parent, timeout=240)
    assert done.returncode == 0, done.stderr
    for name in names:
        with subtests.test(name):
            status, *said = cluster.run("cat", f"{name}.status", f"{name}.out", cwd=path.parent).stdout.splitlines()
            text = "\n".join(said)
            assert status == "0", text
            assert "result True" in said, text
            assert not re.search("WARNING|Traceback|Exception", text), text
            notes = [line.removeprefix("hpcml: ") for line in said if line.startswith("hpcml: ")]
            other = ": the workers do not get|: clusters opened before have the same"
            used = [note.rpartition(": this") for note in notes if not re.search(other, note)]
            assert {given for *_, given in used} == {" run's 2 workers on 2 nodes are used."}, notes
            assert [re.sub(r"\(.*\) in line", "", call) for call, *_ in used] == NOTES[name]


def test_scripts_that_read_slurm_s_variables(cluster: Cluster, subtests: pytest.Subtests) -> None:
    check_all(cluster, subtests, tuple(NOTES))


def test_scripts_that_read_slurm_s_variables_in_the_image(
    cluster: Cluster, image: Path, subtests: pytest.Subtests
) -> None:
    check_all(cluster, subtests, IN_THE_IMAGE, "--image", str(image))
