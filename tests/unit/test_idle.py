"""Whether a cluster is in use, and what its scheduler does about a supervisor that does not answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from hpcml import errors
from hpcml.kinds.dask.node.activity import POLLS, Activity
from hpcml.paths import RunPaths
from node_settings import settings as settings_of


class Cluster:
    """A scheduler with two workers; the test sets what they do, and looks once a second."""

    def __init__(self, run: Path, supervisor: int = 0) -> None:
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
        self.activity = Activity(context, [self.scheduler], lambda **_: None, supervisor)
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


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def silent(activity: Activity, *seconds: float) -> list[bool]:
    """Return whether the supervisor was ended after each time without an answer."""

    async def look() -> list[bool]:
        ended = [await activity._supervisor_is_gone(one) for one in seconds]
        if activity.telling:
            await activity.telling
        return ended

    return asyncio.run(look())


def test_a_supervisor_that_is_stopped_is_ended(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    activity = Cluster(tmp_path, supervisor.pid).activity
    supervisor.send_signal(signal.SIGSTOP)
    os.waitpid(supervisor.pid, os.WUNTRACED)
    assert silent(activity, 9, 11, 100, 101) == [False, False, False, True]
    assert supervisor.wait() == -signal.SIGKILL
    paths = activity.context.run
    stopped = "(the process is stopped: SIGSTOP)"
    warning = f"has not answered for 11 s {stopped}; the run ends after 100 s without an answer"
    assert paths.job_log.read_text().count(warning) == 1
    end = json.loads(paths.status.read_text())
    assert (end["exit_status"], end["over"]) == (errors.ROLE_LOST, False)
    assert end["message"] == f"hpcml's supervisor process on n1 did not answer for 101 s {stopped}"
    assert activity.context.attempt.lost.read_text() == f"{errors.ROLE_LOST}\n"


def test_a_supervisor_that_waits_is_not_ended(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    """It will answer when a file system does; that it does not yet, is said once each time."""
    activity = Cluster(tmp_path, supervisor.pid).activity
    assert silent(activity, 11, 101, 1000) == [False] * 3
    assert silent(activity, 1, 12) == [False] * 2
    assert supervisor.poll() is None
    said = activity.context.run.job_log.read_text().splitlines()
    assert [line.partition(" for ")[2].partition(" s")[0] for line in said] == ["11", "12"]
    assert "the run ends" not in "".join(said)
    assert not activity.context.run.status.exists()
