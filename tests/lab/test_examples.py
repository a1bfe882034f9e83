"""All short examples on four nodes of a real Slurm, against the same on the local site: the same figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster, directory_of
from section_gallery import difference
from tests.jobs.all_examples import CANNOT
from tests.jobs.example_list import EXAMPLES

pytestmark = pytest.mark.lab

# One allocation for all of them: what takes long is to start, not to compute.
ALL_EXAMPLES = Path(__file__).resolve().parent.parent / "jobs/all_examples.py"
EACH = 400  # seconds of one example on two busy cores: boosted trees took 122 there


@pytest.fixture(scope="module")
def outs(cluster: Cluster) -> tuple[Path, Path]:
    """Return the results' folders of the run on four nodes and of that on the local site."""
    jobs = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    folder = cluster.work / "examples"
    cluster.run("bash", "-c", f"mkdir -p '{folder}' && cp '{jobs}'/*.py '{folder}'")
    script = cluster.write("examples/all_examples.py", ALL_EXAMPLES.read_text())
    places = (["--nodes", "4"], ["--site", "local"])
    commands = [["hpcml", "submit", *where, "--wait", str(script), str(EACH)] for where in places]
    found = []
    for done in cluster.run_together(commands, timeout=1150):
        assert done.returncode in (0, 1), done.stderr + done.stdout[-4000:]  # 1: one failed, and its test says which
        found.append(directory_of(done) / "out")
    return found[0], found[1]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", EXAMPLES)
def test_four_nodes_give_the_local_site_s_figures(outs: tuple[Path, Path], name: str) -> None:
    errors = [read(out / "statuses.json")[name]["error"] for out in outs]
    if lacking := {*errors} & {*CANNOT}:
        pytest.skip(lacking.pop())
    assert errors == ["", ""], (outs[0].parent / "logs/driver.log").read_text()[-4000:]
    if EXAMPLES[name]:
        slurm, local = (read(out / name / "result.json") for out in outs)
        for figure, tolerance in EXAMPLES[name].items():
            assert difference(slurm[figure], local[figure]) <= tolerance, figure
        assert (outs[0] / name / f"{name}.png").exists()
