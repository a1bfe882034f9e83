"""A cluster that starts at the script's first client: who asks for it, who waits, and what its start means for the run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dask.config
import pytest

from hpcml import errors
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node import late_cluster
from hpcml.kinds.dask.node.supervised import Processes
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog, RunEndedError
from hpcml.node.run_state import RunState
from hpcml.node.script import interpreter_state
from hpcml.paths import RunPaths
from node_settings import settings as settings_of


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    run = RunPaths(tmp_path)
    run.attempt(0).secret.mkdir(parents=True)
    run.logs.mkdir()
    monkeypatch.delenv("HPCML_STEPS", raising=False)
    settings = settings_of(
        workers__late=True, deadlines__scheduler=0.01, deadlines__workers=0.0, deadlines__interconnect=0.0
    )
    return Context(run, run.attempt(0), 0, settings, "n1", ("n1",))


@pytest.fixture
def cluster(context: Context) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, contextlib.ExitStack() as folders:
        yield Processes(RunState(context, KIND, EventLog(context.run.events, 0), Path(folder)), folders)


def asked_for(cluster: Processes) -> None:
    """Have the script ask for the cluster, and the supervisor see it."""
    shared_files.write_json(cluster.context.attempt.cluster_wanted, {})
    cluster.state.end_requests.look_again()


def test_the_script_begins_without_keys_or_roles(cluster: Processes) -> None:
    environment = cluster.start()
    assert environment[late_cluster.VARIABLE] == late_cluster.ADDRESS
    assert not cluster.context.attempt.key.exists()
    cluster.agents.lost[cluster.scheduler] = "it ended"  # it is not needed yet
    cluster.check()
    assert "cluster-waits" in cluster.context.run.events.read_text()


def test_the_cluster_starts_when_it_is_asked_for(cluster: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.start()
    monkeypatch.setattr(cluster, "_start", lambda: {**os.environ, late_cluster.VARIABLE: "tls://n1:1"})
    asked_for(cluster)
    cluster.check()
    assert shared_files.read_json(cluster.context.attempt.cluster) == {
        "environment": {late_cluster.VARIABLE: "tls://n1:1"}
    }
    cluster.agents.lost[cluster.scheduler] = "it ended"
    with pytest.raises(RunEndedError) as ended:
        cluster.check()
    assert ended.value.end.exit_status == errors.ROLE_LOST


def test_a_start_that_fails_ends_the_run(cluster: Processes) -> None:
    cluster.start()
    cluster.script = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    asked_for(cluster)
    with pytest.raises(RunEndedError) as ended:
        cluster.check()
    assert ended.value.end.exit_status == errors.START_FAILED
    assert "did not start within" in ended.value.end.message


def test_a_script_that_ends_while_the_cluster_starts(cluster: Processes) -> None:
    """Its own status counts."""
    cluster.start()
    cluster.script = SimpleNamespace(poll=lambda: 3)  # type: ignore[assignment]
    asked_for(cluster)
    cluster.check()
    cluster.check()
    assert not cluster.context.attempt.cluster.exists()


def test_a_client_waits_for_the_cluster_and_finds_it(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_cluster, "load", lambda: context)
    monkeypatch.setattr(late_cluster, "MARGIN", 0.0)
    monkeypatch.setenv(late_cluster.VARIABLE, late_cluster.ADDRESS)
    monkeypatch.setenv("UCX_TLS", "the script's")
    monkeypatch.setitem(interpreter_state.BEFORE, "environment", {})
    with pytest.raises(TimeoutError, match="did not start within"):
        late_cluster.have_started()
    assert context.attempt.cluster_wanted.exists()
    given = {late_cluster.VARIABLE: "tls://n1:1", "UCX_TLS": "the run's", "UCX_X": "1"}
    shared_files.write_json(context.attempt.cluster, {"environment": given})
    with dask.config.set({"scheduler-address": late_cluster.ADDRESS}):
        late_cluster.have_started()
        assert dask.config.get("scheduler-address") == "tls://n1:1"
    monkeypatch.delenv("UCX_X")
    assert os.environ["UCX_TLS"] == "the script's"
    assert interpreter_state.BEFORE["environment"] == {late_cluster.VARIABLE: "tls://n1:1", "UCX_X": "1"}
    assert not late_cluster.is_late()
