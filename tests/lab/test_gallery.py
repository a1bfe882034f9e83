"""Jobs whose workers talk to each other or write beside each other, on two nodes and on the local site: the same figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import Cluster, directory_of
from tests.jobs.job_list import JOBS, figure

pytestmark = pytest.mark.lab

# A shuffle, XGBoost's own connections, and tables and models that both nodes write.
FEW = ("join", "xgboost_train", "etl", "pipeline")
ALL_JOBS = Path(__file__).resolve().parent.parent / "jobs/all_jobs.py"


class Both(NamedTuple):
    """The results' folders of the run on two nodes and of that on the local site."""

    slurm: Path
    local: Path


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Both:
    jobs = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    # A copy, so that workers find the jobs' functions by name.
    cluster.run("cp", "-r", f"{jobs}/workloads", str(cluster.work / "gallery"))
    script = cluster.write("gallery/all_jobs.py", ALL_JOBS.read_text())
    options = json.dumps({name: JOBS[name].small for name in FEW})
    places = (["--nodes", "2"], ["--site", "local"])
    commands = [["hpcml", "submit", *where, "--wait", str(script), options] for where in places]
    found = []
    for done in cluster.run_together(commands, timeout=900):
        assert done.returncode in (0, 1), done.stderr + done.stdout[-4000:]  # 1: a job failed, and its test says which
        found.append(directory_of(done) / "out")
    return Both(*found)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", FEW)
def test_two_nodes_give_the_local_site_s_figures(both: Both, name: str) -> None:
    listed = JOBS[name]
    for out in both:
        assert read(out / "statuses.json")[name] == 0, (out.parent / "logs/driver.log").read_text()[-4000:]
    slurm, local = (read(out / name / "result.json") for out in both)
    assert slurm["complete"] is local["complete"] is True
    assert slurm["workers"] == 2
    for dotted in listed.same:
        assert figure(slurm, dotted) == pytest.approx(figure(local, dotted), rel=listed.tolerance, nan_ok=True), dotted
    pictures = [path for kind in ("*.png", "*.html") for path in (both.slurm / name).rglob(kind)]
    assert pictures
