"""Of what a worker died: its own limit, the kernel's, or a signal that nobody explains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from absences import absence_of
from hpcml.errors import WORKERS_NEVER_CAME
from hpcml.failures.rules import BY_NAME
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node import lost_workers
from hpcml.node import agent, process_helpers
from hpcml.node.context import Context
from hpcml.paths import RunPaths
from node_settings import settings as settings_of
from tests.said import in_order

MIB = 1024**2


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> agent.Node:
    run = RunPaths(tmp_path)
    for folder in (run.attempt(0).nodes, run.attempt(0).exits, run.logs):
        folder.mkdir(parents=True)
    settings = settings_of(job__one_machine=False, job__nodes=1, workers__restarts=1)
    context = Context(run, run.attempt(0), 0, settings, "n1", ("n1",))
    monkeypatch.setattr(agent, "oom_kills", lambda: 3)
    members = agent.Members("worker", settings.workers.restarts, WORKERS_NEVER_CAME, writes_notes=True)
    return agent.Node(context, members, [agent.Slot("n1", pid=7)], oom_kills=3)


def die(node: agent.Node, code: int = -signal.SIGKILL) -> str:
    """Let the node's worker end so, and return what is then said of the node."""
    agent._judge(node, node.slots[0], code)
    (missing,) = lost_workers.missing_nodes(absence_of(node.context, KIND, lost_workers.WORDS), set())
    return missing.why


def test_its_own_limit(node: agent.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "resident", lambda _: 130 * MIB)
    monkeypatch.setattr(agent, "end", lambda *_, **__: None)
    agent._check_memory(node, 128 * MIB)
    said = die(node)
    assert "over its memory limit: 130 MiB of 128 MiB" in said
    assert "SIGKILL" not in said
    facts = json.loads(node.context.attempt.mark_of("n1").read_text())
    assert re.search(in_order("n1, which was over its memory limit: 130", "MiB of 128 MiB"), facts["memory"])
    assert not node.slots[0].failed
    assert "killed by SIGKILL" in die(node)  # the next death has a cause of its own
    assert node.slots[0].failed  # after as many restarts as are allowed


def test_a_worker_that_is_stopped_is_continued(node: agent.Node, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "100"]) as worker:
        node.slots[0].pid = worker.pid
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        try:
            for look in range(agent.STOPPED):
                assert not capsys.readouterr().err, look
                agent._keep_going(node)
            assert "worker n1 was stopped (SIGSTOP). hpcml" in capsys.readouterr().err
            assert os.waitid(os.P_PID, worker.pid, os.WCONTINUED | os.WNOHANG)
        finally:
            worker.kill()


def test_the_kernel(node: agent.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "oom_kills", lambda: 4)
    assert "the node's memory limit was reached" in die(node)
    assert "killed by SIGKILL" in die(node)  # the count has not grown since
    monkeypatch.setattr(node, "context", node.context._replace(settings=settings_of(job__one_machine=True)))
    node.oom_kills = 3
    assert re.search("memory was .* this machine", die(node)), "the local site has no limit for a node"
    monkeypatch.setattr(agent, "oom_kills", lambda: 5)
    assert "exit status 1" in die(node, 1)  # the kernel took something else


def test_at_the_run_s_end_the_others_finish_their_profiles(node: agent.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(agent, "end", lambda slot: ended.append(slot.name))
    node.context.attempt.ended.write_text("{}")
    for profile, since, those in ((("memray",), 0, []), (("memray",), 10, ["n1"]), ((), 0, ["n1"])):
        settings = settings_of(report__profilers=profile, deadlines__teardown=10.0)
        node.context, node.next_look = node.context._replace(settings=settings), 0.0
        node.last_end = time.monotonic() - since
        agent._stop_if_ended(node)
        assert ended == those, profile
        ended.clear()


def test_each_death_is_written_down_with_the_row_that_knows_it(
    node: agent.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.members = node.members._replace(restarts=9)
    monkeypatch.setattr(agent, "end", lambda *_, **__: None)
    monkeypatch.setattr(agent, "resident", lambda _: 130 * MIB)
    node.slots[0].pid = 7
    agent._check_memory(node, 128 * MIB)
    die(node)
    node.slots[0].memory_limit = ""  # as the next start does
    monkeypatch.setattr(agent, "oom_kills", lambda: 4)
    die(node)
    node.slots[0].memory_limit = ""
    for code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM, 5):
        die(node, code)
    node.slots[0].note.write(node.slots[0].note.NO_GPU)
    die(node, 0)
    ends = json.loads(node.context.attempt.mark_of("n1").read_text())["ends"]
    reasons = ["memory", "oom", "killed", "segfault", "", "exit", ""]
    assert [(end["name"], end["reason"]) for end in ends] == [("n1", f"worker-{reason}") for reason in reasons]
    assert [end["status"] for end in ends] == [137, 137, 137, 139, 143, 5, 0]
    assert {*map(str, (end["reason"] for end in ends))} - {"worker-"} <= {*BY_NAME}
    assert max(abs(end["time"] - time.time()) for end in ends) < 3600


def test_no_exit_status_of_the_user_s_code_replaces_or_retires_a_worker(
    node: agent.Node, subtests: pytest.Subtests
) -> None:
    for code in (0, 1, 3, 4, 92):
        with subtests.test(str(code)):
            node.slots[0] = agent.Slot("n1", pid=7)
            assert f"exit status {code}" in die(node, code)
            assert (node.slots[0].deaths, node.slots[0].done) == (1, False)


def test_a_worker_that_dask_has_closed_is_replaced_at_once_and_no_death(node: agent.Node) -> None:
    """It has no memory of its own then: the note of a process counts once."""
    (slot,) = node.slots

    def closed() -> int:
        slot.note.write(slot.note.AGAIN)
        return 0

    _, code = os.waitpid(agent.fork(closed), 0)  # not another test's child
    agent._judge(node, slot, code)
    assert (slot.deaths, slot.done, slot.start_at) == (0, False, 0.0)
    assert "exit status 0" in die(node, 0)


def test_a_worker_that_ended_for_want_of_its_gpu_counts_as_killed(node: agent.Node) -> None:
    (slot,) = node.slots
    for deaths in (1, 2):
        slot.note.write(slot.note.NO_GPU)
        assert "a CUDA error left it without its GPU" in die(node, 0)
        assert (slot.deaths, slot.failed) == (deaths, deaths > 1)
    assert json.loads(node.context.attempt.mark_of("n1").read_text())["deaths"] == {"n1": 2}


def test_a_rank_begins_once_whatever_its_exit_status(node: agent.Node, subtests: pytest.Subtests) -> None:
    node.members = agent.Members("rank", 0, WORKERS_NEVER_CAME)
    for code in (0, 3, 4, -signal.SIGKILL):
        with subtests.test(str(code)):
            slot = node.slots[0] = agent.Slot("0", pid=7)
            agent._judge(node, slot, code)
            assert (slot.done, slot.failed) == (True, code != 0)


def test_a_worker_that_closes_in_a_run_that_goes_on_was_retired(node: agent.Node) -> None:
    node.slots[0].note.write(process_helpers.EndNote.RETIRED)
    agent._judge(node, node.slots[0], 0)
    assert node.slots[0].done
    assert json.loads(node.context.attempt.mark_of("n1").read_text())["retired"] == ["n1"]
