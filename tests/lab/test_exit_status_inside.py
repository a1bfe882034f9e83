"""Processes that are killed inside an image: the work goes on or the run ends, and nothing of a container is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from beside import SMALL
from conftest import Cluster, left_of_containers
from lab_state import wait_for
from test_exit_status import CONNECT, WAIT, log
from test_losses import roles

pytestmark = pytest.mark.lab


def test_a_worker_and_then_a_supervisor_are_killed(cluster: Cluster, image: Path) -> None:
    script = CONNECT + (
        "futures = client.map(lambda i: (time.sleep(0.3), i)[1], range(40))\n"
        "murder = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=['n2'])\n"
        "print('sum', sum(client.gather(futures)))\n"
        "deadline = time.time() + 120\n"
        "while len(client.scheduler_info(n_workers=-1)['workers']) < 2 and time.time() < deadline: time.sleep(0.1)\n"
        "print('workers', len(client.scheduler_info(n_workers=-1)['workers']))\n")  # fmt: skip
    job, directory = cluster.detach(script + WAIT, *SMALL, "--image", str(image))
    said = "\n".join((f"sum {sum(range(40))}", "workers 2", "waiting"))
    assert wait_for(lambda: said in log(directory), 150), log(directory)
    assert "killed by SIGKILL" in (directory / "logs/worker-n2.log").read_text()
    assert cluster.wait_event(directory, "worker-removed")["worker"] == "n2"
    supervisor, *_ = roles(cluster, directory, "supervisor", "n1")  # beside it a child that has not become its program
    os.kill(supervisor, signal.SIGKILL)
    cluster.wait_gone(directory)
    facts = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (facts["phase"], facts["exit_status"]) == ("ended", 137), "nobody was left to write the end: Slurm's word"
    assert cluster.job(job)["ExitCode"] == "137:0"
    assert wait_for(lambda: not left_of_containers(cluster), 10), left_of_containers(cluster)
