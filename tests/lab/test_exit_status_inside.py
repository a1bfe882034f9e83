"""The exit statuses inside an image are those outside: the very tests of test_exit_status, each run with an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import beside
from conftest import Cluster, left_of_containers
from lab_state import wait_for
from test_exit_status import (  # noqa: F401 - pytest runs what is imported here
    test_a_worker_is_killed_and_the_work_goes_on,
    test_the_job_is_cancelled,
    test_the_scheduler_is_killed,
    test_the_script_is_killed,
    test_the_script_raises,
    test_the_script_runs_out_of_memory,
    test_the_supervisor_is_killed,
    test_workers_that_die_for_good_end_the_run_where_the_policy_says_so,
)

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


def test_it_is_inside(cluster: Cluster) -> None:
    ended = cluster.submit("import sys; print(sys.prefix)", "--nodes", "1")
    assert ended.out.splitlines()[-1] == "/opt/hpcml"
