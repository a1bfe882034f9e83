"""Whether a cluster is in use."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distributed import Status

from hpcml.kinds.dask.node.activity import POLLS, Activity
from hpcml.paths import RunPaths
from node_settings import settings as settings_of


class Cluster:
    """A scheduler with two workers; the test sets what they do, and looks once a second."""

    def __init__(self, run: Path) -> None:
        paths = RunPaths(run)
        paths.logs.mkdir()
        paths.attempt(0).directory.mkdir(parents=True)
        settings = settings_of(deadlines__answer=100.0)
        context: Any = SimpleNamespace(
            node="n1", node_names=(), number=0, run=paths, attempt=paths.attempt(0), settings=settings
        )
        never_late = {"last_seen": float("inf"), "metrics": {"cpu": 2.0}}
        self.one, self.other = (
            SimpleNamespace(address=name, name=name, status=Status.running, processing={}, **never_late)
            for name in ("one", "other")
        )
        self.scheduler: Any = SimpleNamespace(clients={"fire-and-forget": None}, polls=0, transition_counter=0, worker_ttl=300.0, queued=(),
                                              unrunnable=("stuck",), workers={"one": self.one, "other": self.other})  # fmt: skip
        self.activity = Activity(context, [self.scheduler], lambda **_: None)
        self.now = 0.0

    def look(self, polls: int = 0) -> tuple[float, float]:
        """Look for five seconds; return for how long it was not used, and for how long somebody waits for workers."""
        for _ in range(5):
            self.now += 1
            self.scheduler.polls = polls
            self.activity._look(self.now, 1.0)
        return self.now - self.activity.used, self.activity.waited


def test_what_computes_is_used(tmp_path: Path) -> None:
    """A task longer than any deadline, and a function of client.run, for which no task stands."""
    cluster = Cluster(tmp_path)
    for thing, name, value in (
        (cluster.one, "processing", {"a long task": 1.0}),
        (cluster.one, "metrics", {"cpu": 99.0}),
        (cluster.other, "last_seen", time.time() - 60),  # a function that holds its loop
        (cluster.scheduler, "queued", ("a task",)),
    ):
        before = getattr(thing, name)
        setattr(thing, name, value)
        assert cluster.look() == (0, 0), name
        assert cluster.activity.stuck == 0
        setattr(thing, name, before)
        assert cluster.look() == (5, 0), name
        assert cluster.activity.stuck == 1
    cluster.scheduler.transition_counter += 1
    assert cluster.look() == (4, 0)


def test_who_asks_for_workers_again_and_again_waits_for_them(tmp_path: Path) -> None:
    """Unless he only looks, or looks while the cluster computes or has no memory."""
    cluster = Cluster(tmp_path)
    assert cluster.look(POLLS) == (5, 5)
    assert cluster.look(POLLS) == (10, 10)
    assert cluster.look(POLLS - 1) == (15, 0)
    cluster.one.processing = {"a task": 1.0}
    assert cluster.look(10) == (0, 0)
    cluster.one.processing, cluster.one.status = {}, Status.paused
    assert cluster.look(10) == (5, 0)


def test_a_client_that_came_has_connected(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for clients, connected in ((["fire-and-forget"], False), (["Client-1", "fire-and-forget"], True), ([], True)):
        cluster.scheduler.clients = dict.fromkeys(clients)
        cluster.look()
        assert cluster.activity.connected is connected
