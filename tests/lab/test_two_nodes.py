"""Examples whose workers exchange data or write side by side, on two nodes: the figures are those of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster, directory_of

pytestmark = pytest.mark.lab

# A shuffle, XGBoost's own connections, and tables that both nodes write: figures as `python NAME.py` gives them.
FIGURES: dict[str, dict[str, Any]] = {
    "join": {"sums": {"east": 527435192, "north": 521847739, "south": 529907873, "west": 527891697}},
    "xgboost_train": {"rows": 50_000, "r2": pytest.approx(0.9508, abs=0.005)},
    "etl": {"read": 200_000, "kept": 196_030},
    "pipeline": {"used": 96_069, "error": pytest.approx(1.0036123199923659, rel=1e-6)},
}
EACH = 1200  # seconds of one example
ALL_EXAMPLES = Path(__file__).resolve().parent.parent / "jobs/all_examples.py"


def test_two_nodes_give_one_machine_s_figures(cluster: Cluster, subtests: pytest.Subtests) -> None:
    jobs = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    cluster.run("cp", "-r", jobs, str(cluster.work / "examples"))
    script = cluster.write("examples/all_examples.py", ALL_EXAMPLES.read_text())
    done = cluster.run("hpcml", "submit", "--nodes", "2", "--wait", str(script), str(EACH), *FIGURES, timeout=6000)
    assert done.returncode in (0, 1), done.stderr + done.stdout[-4000:]  # 1: an example failed; its status says which
    out = directory_of(done) / "out"
    statuses = json.loads((out / "statuses.json").read_text())
    for name, figures in FIGURES.items():
        with subtests.test(name):
            assert statuses[name]["error"] == "", (out.parent / "logs/script.log").read_text()[-4000:]
            result = json.loads((out / name / "result.json").read_text())
            assert {figure: result[figure] for figure in figures} == figures
            assert (out / name / f"{name}.png").exists()
