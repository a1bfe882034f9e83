"""Jobs whose workers talk to each other or write beside each other, on two nodes: the figures are those of one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Cluster, directory_of
from tests.jobs.job_list import JOBS, figure

pytestmark = pytest.mark.lab

# A shuffle, XGBoost's own connections, and tables and models that both nodes write: figures as `python all_jobs.py`
# gives them. The data are functions of their seeds; the score is also one of scikit-learn's version.
FIGURES: dict[str, dict[str, float]] = {
    "join": {"rows_joined": 80172, "sums.products": 20598305377, "sums.keys": 8143735},
    "xgboost_train": {"rows_train": 1280, "rows_test": 400},
    "etl": {"rows_read": 20000, "rows": 19004, "means.0": 2.9279473684210524, "means.6": 166.44340153452686},
    "pipeline": {"rows": 3000, "metrics.r2": 0.93169},
}
ALL_JOBS = Path(__file__).resolve().parent.parent / "jobs/all_jobs.py"


def test_two_nodes_give_one_machine_s_figures(cluster: Cluster, subtests: pytest.Subtests) -> None:
    jobs = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    # A copy, so that workers find the jobs' functions by name.
    cluster.run("cp", "-r", f"{jobs}/workloads", str(cluster.work / "gallery"))
    script = cluster.write("gallery/all_jobs.py", ALL_JOBS.read_text())
    options = json.dumps({name: JOBS[name].small for name in FIGURES})
    done = cluster.run("hpcml", "submit", "--nodes", "2", "--wait", str(script), options, timeout=900)
    assert done.returncode in (0, 1), done.stderr + done.stdout[-4000:]  # 1: a job failed, and its status says which
    out = directory_of(done) / "out"
    statuses = json.loads((out / "statuses.json").read_text())
    for name, figures in FIGURES.items():
        with subtests.test(name):
            assert statuses[name] == 0, (out.parent / "logs/driver.log").read_text()[-4000:]
            result = json.loads((out / name / "result.json").read_text())
            assert (result["complete"], result["workers"]) == (True, 2)
            for dotted, value in figures.items():
                tolerance = 1e-2 if dotted.startswith("metrics") else 1e-6
                assert figure(result, dotted) == pytest.approx(value, rel=tolerance), dotted
            assert [path for kind in ("*.png", "*.html") for path in (out / name).rglob(kind)]
