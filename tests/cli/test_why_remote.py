"""`hpcml --host HOST why`: of a run on the login node, from the laptop."""

from __future__ import annotations

import json

from failure_texts import TEXTS
from remote_world import Laptop
from test_why_command import lost_workers


def test_the_cause_of_a_run_there_is_told_here(laptop: Laptop) -> None:
    submitted = laptop.run("submit", "--nodes", "2", "--name", "job", "--detach", "--json", str(laptop.world.script))
    assert submitted.returncode == 0, submitted.stderr
    run = json.loads(submitted.stdout)["run"]
    assert json.loads(laptop.run("why", "--json").stdout)["state"] == "PENDING"
    directory = laptop.far / ".hpcml/runs" / run
    (directory / "logs").mkdir(exist_ok=True)
    lost_workers(directory)
    (directory / "logs/worker-n3.log").write_text(f"{TEXTS['ecc'][0]}\n")
    said = laptop.run("why").stdout
    assert "A GPU's memory is faulty (ECC) (on n3)." in said
    assert f"again      hpcml --host cluster rerun {run} --exclude n3\n" in said
    (directory / "attempts/0").mkdir(parents=True, exist_ok=True)
    assert f"report     hpcml --host cluster report {run}\n" in laptop.run("status", run).stdout
    found = json.loads(laptop.run("why", run, "--json").stdout)
    assert (found["rule"], found["options"]) == ("ecc", ["--exclude", "n3"])
    packed = laptop.run("why", "--bundle")
    assert packed.returncode == 0, packed.stderr
    assert packed.stdout.startswith(f"cluster:{laptop.far}/{run}.tar.gz: ")
    assert (laptop.far / f"{run}.tar.gz").exists()
