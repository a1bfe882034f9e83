"""Processes that are killed inside an image: the work goes on or the run ends, and nothing of a container is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import beside
from beside import SMALL
from conftest import Cluster, left_of_containers
from lab_state import wait_for
from test_exit_status import CONNECT, test_the_supervisor_is_killed

__all__ = ["test_the_supervisor_is_killed"]  # it runs here with an image

pytestmark = pytest.mark.lab


class Inside(Cluster):
    """The cluster whose every submission asks for an image."""

    def __init__(self, cluster: Cluster, image: Path) -> None:
        self.__dict__ = cluster.__dict__
        self.image = image

    def command(self, text: str, *options: str, arguments: tuple[str, ...] = (), name: str = "") -> list[str]:
        return super().command(text, *options, "--image", str(self.image), arguments=arguments, name=name)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster, image: Path) -> Cluster:
    """Return the cluster of this file."""
    return Inside(cluster, image)


@pytest.fixture(autouse=True)
def _nothing_stays(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, or the last of those beside each other, nothing of a container is left."""
    yield
    if (group := beside.of(request.node)) and not group.over:
        return
    cluster.wait_idle(60)
    assert wait_for(lambda: not left_of_containers(cluster), 10), left_of_containers(cluster)


@pytest.mark.beside
def test_a_worker_is_killed_and_the_work_goes_on(cluster: Cluster) -> None:
    script = CONNECT + (
        "futures = client.map(lambda i: (time.sleep(0.3), i)[1], range(40))\n"
        "murder = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=['n2'])\n"
        "print('sum', sum(client.gather(futures)))\n"
        "deadline = time.time() + 120\n"
        "while len(client.scheduler_info(n_workers=-1)['workers']) < 2 and time.time() < deadline: time.sleep(0.1)\n"
        "print('workers', len(client.scheduler_info(n_workers=-1)['workers']))\n")  # fmt: skip
    ended = cluster.submit(script, *SMALL)
    assert ended.code == 0, ended.err + ended.log("worker-n2.log")
    assert f"sum {sum(range(40))}" in ended.out
    assert "workers 2" in ended.out
    assert "killed by SIGKILL" in ended.log("worker-n2.log")
    assert [event["worker"] for event in ended.events if event["event"] == "worker-removed"][:1] == ["n2"]
