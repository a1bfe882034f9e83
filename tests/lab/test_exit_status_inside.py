"""Processes that are killed inside an image: the work goes on or the run ends, and nothing of a container is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from beside import SMALL
from conftest import Cluster, left_of_containers
from lab_state import wait_for
from test_exit_status import CONNECT, kill_the_supervisor

pytestmark = pytest.mark.lab


def test_a_worker_and_then_a_supervisor_are_killed(cluster: Cluster, image: Path) -> None:
    script = CONNECT + (
        "futures = client.map(lambda i: (time.sleep(0.3), i)[1], range(40))\n"
        "murder = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=['n2'])\n"
        "print('sum', sum(client.gather(futures)))\n"
        "deadline = time.time() + 120\n"
        "while len(client.scheduler_info(n_workers=-1)['workers']) < 2 and time.time() < deadline: time.sleep(0.1)\n"
        "print('workers', len(client.scheduler_info(n_workers=-1)['workers']))\n")  # fmt: skip
    ended = cluster.submit(script, *SMALL, "--image", str(image))
    assert ended.code == 0, ended.err + ended.log("worker-n2.log")
    assert f"sum {sum(range(40))}" in ended.out
    assert "workers 2" in ended.out
    assert "killed by SIGKILL" in ended.log("worker-n2.log")
    assert [event["worker"] for event in ended.events if event["event"] == "worker-removed"][:1] == ["n2"]
    kill_the_supervisor(cluster, "--image", str(image))
    assert wait_for(lambda: not left_of_containers(cluster), 10), left_of_containers(cluster)
