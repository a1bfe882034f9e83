"""A supervisor or an agent of ranks that is silent or lost: who ends what, when, and which node is the suspect."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from absences import absence_of
from hpcml import errors
from hpcml.failures import job_log
from hpcml.kinds.ranks import KIND
from hpcml.kinds.ranks.node import lost_nodes
from hpcml.kinds.ranks.node import rank_agent as agents
from hpcml.kinds.ranks.node.supervised import EVENTS, Ranks
from hpcml.kinds.ranks.variables import World
from hpcml.node import agent
from hpcml.node.agents import Agents
from hpcml.node.context import Context
from hpcml.node.hardware import dask_protocol, sysfs
from hpcml.node.link import hub as hubs
from hpcml.node.link import line as line_of
from hpcml.node.link.hub import Hub
from hpcml.node.process_helpers import Process
from hpcml.paths import RunPaths
from node_settings import settings as settings_of
from tests.said import says

KEY = b"k" * 32
ANSWER = 20.0
PATIENCE = 60.0


def connected(hub: Hub, node: str) -> line_of.Line:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(line_of.connect, hub.places, KEY, node)
        while node not in hub.lines or not done.done():
            hub.receive(0.01)
        line = done.result()[0]
    assert line
    return line


class Far:
    """The agent of a node whose ranks run, in this process; the supervisor is a process that sleeps."""

    def __init__(self, folder: Path, hub: Hub, node: str) -> None:
        self.run = RunPaths(folder)
        attempt = self.run.attempt(0)
        for place in (attempt.secret, attempt.nodes, self.run.logs):
            place.mkdir(parents=True, exist_ok=True)
        attempt.link_key.write_bytes(KEY)
        self.supervisor = subprocess.Popen(["sleep", "600"])
        settings = settings_of(deadlines__answer=ANSWER)
        context = Context(self.run, attempt, 0, settings, node, ("n1", "n2"))
        members = agent.Members("rank", 0, errors.WORKERS_NEVER_CAME)
        self.ranks = agents.Ranks(context, agent.Node(context, members), time.monotonic() + 60)
        self.link = self.ranks.link  # without its thread: a line that is lost stays so
        self.link.line, self.link.key, self.link.places = connected(hub, node), KEY, hub.places
        if node == "n1":
            self.link.supervisor = Process.named(self.supervisor.pid)
        self.ranks.world = World(2, 1, 0, "127.0.0.1", 1, 2)

    def be_silent(self, seconds: float) -> bool:
        """Let so many seconds of the agent's own time pass, and return whether its ranks continue."""
        self.ranks.node.watch.clock.seconds += seconds
        return self.ranks.look()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(["127.0.0.1"], KEY, EVENTS) as made:
        yield made


@pytest.fixture(params=["n1", "n2"])
def far(request: pytest.FixtureRequest, tmp_path: Path, hub: Hub) -> Iterator[Far]:
    made = Far(tmp_path, hub, request.param)
    yield made
    made.supervisor.kill()
    made.supervisor.wait()
    made.link.close()


@pytest.mark.parametrize("far", ["n2"], indirect=True)
def test_an_agent_that_hears_nothing_ends_its_ranks_and_says_so(far: Far) -> None:
    rank = subprocess.Popen(["sleep", "600"], process_group=0)
    far.ranks.node.slots = [agent.Slot("1", pid=rank.pid)]
    assert far.be_silent(ANSWER - 1)
    assert rank.poll() is None
    assert not far.be_silent(2)
    assert rank.wait() == -signal.SIGKILL
    assert "was lost: it has not answered for 20 s" in far.ranks.late


def test_neither_suspension_nor_clock_nor_hung_files_count_as_silence(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that could not look for an hour, for whatever reason, looks again before it judges."""
    for _ in range(5):
        far.ranks.node.watch.clock.last -= 3600
        assert far.ranks.look()
    now = time.time()
    for days in (-9, 9):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * 86400)
        assert far.ranks.look()


def test_signs_of_life_come_while_a_file_system_blocks_the_supervisor(far: Far, hub: Hub) -> None:
    hub.give_signs(0.01)  # and nobody calls hub.receive(), as in a supervisor that is blocked
    assert far.be_silent(ANSWER - 1)
    deadline = time.monotonic() + PATIENCE
    while far.ranks.node.watch.heard < ANSWER - 1:
        assert far.ranks.look()
        assert time.monotonic() < deadline
    assert far.be_silent(ANSWER - 1)


@pytest.mark.parametrize("far", ["n1"], indirect=True)
def test_a_supervisor_that_a_file_system_blocks_is_told_on_its_node_and_not_ended(far: Far, hub: Hub) -> None:
    """Its thread gives signs, and says for how long its loop has not looked."""
    for busy, count in ((4.0, 0), (11.0, 1), (12.0, 1), (0.0, 1), (13.0, 2)):
        hub.send(do="hear", busy=busy)
        deadline = time.monotonic() + PATIENCE
        while far.ranks.node.watch.busy != busy:
            assert far.ranks.look()
            assert time.monotonic() < deadline
        said = far.run.job_log.read_text() if far.run.job_log.exists() else ""
        assert said.count("hpcml's supervisor process on n1") == count
    assert far.be_silent(0)
    assert far.supervisor.poll() is None


def test_a_supervisor_says_for_how_long_its_loop_has_not_looked(
    far: Far, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "_TICK", 0.01)
    hub.give_signs(0.01)
    deadline = time.monotonic() + PATIENCE
    while far.ranks.node.watch.busy < 0.2:
        assert far.ranks.look()
        assert time.monotonic() < deadline
    while far.ranks.node.watch.busy > 0.1:
        hub.receive(0.0)
        assert far.ranks.look()
        assert time.monotonic() < deadline


def test_an_end_that_reads_nothing_gets_no_heap_of_signs(far: Far, hub: Hub) -> None:
    (line,) = hub.lines.values()
    line.connection.unsent = b"x"
    monitored = line.sent
    line.connection.flush = lambda: None  # type: ignore[method-assign]
    for _ in range(10_000):
        line.give_sign(do="hear", busy=0.0)
    assert (line.sent, line.connection.unsent, line.why) == (monitored, b"x", "")


@pytest.mark.parametrize("far", ["n1"], indirect=True)
def test_a_supervisor_that_is_stopped_is_told_and_ended_by_the_agent_of_its_node(far: Far) -> None:
    assert far.be_silent(ANSWER + 1)  # it runs, and waits for something: it will answer
    assert far.be_silent(1000)
    assert far.supervisor.poll() is None
    warnings = far.run.job_log.read_text()
    assert warnings.count("process on n1 has not answered for 21 s") == 1
    far.supervisor.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, far.supervisor.pid, os.WSTOPPED)
    assert far.ranks.look()  # now the connection to it ends
    assert far.supervisor.wait() == -signal.SIGKILL
    end = json.loads(far.run.status.read_text())
    assert end["exit_status"] == errors.ROLE_LOST
    assert end["message"].endswith("1021 s (the process is stopped: SIGSTOP)")
    assert far.run.attempt(0).lost.read_text() == f"{errors.ROLE_LOST}\n"


@pytest.mark.parametrize("far", ["n1"], indirect=True)
def test_a_supervisor_that_is_stopped_before_the_start_is_ended_too(far: Far) -> None:
    far.ranks.world, far.ranks.deadline = None, 0.0
    assert far.link.line
    far.link.line.close()
    far.supervisor.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, far.supervisor.pid, os.WSTOPPED)
    assert far.ranks.serve() == errors.WORKERS_NEVER_CAME
    assert far.supervisor.wait() == -signal.SIGKILL


# -- the supervisor's side -------------------------------------------------------------------------------------------------


def state_of(nodes: tuple[str, ...] = ("n1", "n2", "n3"), seconds: float = 100.0) -> Any:
    context = SimpleNamespace(
        run=None, node=nodes[0], node_names=nodes, settings=settings_of(deadlines__answer=ANSWER, workers__per_node=2,
        job__one_machine=False), worker_names=lambda _: ("a", "b"))  # fmt: skip
    clock = SimpleNamespace(seconds=seconds)
    return SimpleNamespace(context=context, clock=clock, phase="script", script_began=True, time_to_look=lambda: True)


@pytest.fixture(autouse=True)
def _no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "of_role", lambda *_: ())


@pytest.mark.parametrize(("nodes", "silent", "down", "suspect", "words"), [
    (("n1", "n2", "n3"), {"n2"}, "", "n2", "n2 has not answered for 20 s"),
    (("n1", "n2", "n3"), {"n2"}, "eth0", "n2", "n2 has not answered for 20 s"),
    (("n1", "n2", "n3"), {"n2", "n3"}, "", "n1", says("answered n1 for 20 s: the network of n1")),
    (("n1", "n2"), {"n2"}, "", "n2", "n2 has not answered for 20 s"),
    (("n1", "n2"), {"n2"}, "eth0", "n1", says("the network interface eth0 of n1", "down: no other node has answered for 20")),
])  # fmt: skip
def test_the_node_that_is_silent_is_named_or_the_first_whose_network_has_failed(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...], silent: set[str], down: str, suspect: str, words: str
) -> None:
    monkeypatch.setattr(dask_protocol, "interface_down", lambda _: down)
    end = lost_nodes.by_silence(state_of(nodes), silent, "n2", "10.0.0.1")
    assert (end.exit_status, end.message, end.at_fault) == (errors.ROLE_LOST, words, (suspect,))
    assert (end.lost_nodes, end.role) == ((suspect,), "rank")
    assert f"--exclude {suspect}." in end.hint


def test_one_sign_that_is_missing_is_no_silence() -> None:
    made: Any = object.__new__(Agents)
    made.state, made.context = state_of(seconds=100.0), state_of().context
    made.heard = {"n1": 100.0, "n2": 79.0, "n3": 94.0}
    assert made.recently_silent() == {"n2"}
    assert [made.is_silent(node) for node in ("n1", "n2", "n3", "n4")] == [False, True, False, False]


def test_an_interface_that_is_down_is_named_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "addresses", lambda: {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1"]})
    assert dask_protocol.interface_down("127.0.0.1") == ""
    assert dask_protocol.interface_down("10.0.0.1") == ("" if sysfs.is_up("eth0") else "eth0")
    assert not sysfs.is_up("no-such")
    for flags, name in ((0x1, "eth0"), (0x0, "eth0"), (0x41, ""), (0x1043, "")):
        answer = struct.pack("16sH14x", b"eth0", flags)
        monkeypatch.setattr("fcntl.ioctl", lambda *_, answer=answer: answer)
        assert dask_protocol.interface_down("10.0.0.1") == name
    assert dask_protocol.interface_down("10.0.0.9") == ""


def test_a_lost_agent_is_told_with_what_killed_it_and_not_waited_for() -> None:
    lost, task = (
        {"n2": "it closed the connection"},
        says("was killed (srun: error: n2: task 1"),
    )

    def after(since: float, **facts: Any) -> tuple[str, tuple[str, ...]] | None:
        context = state_of().context
        context.run = RunPaths(Path("/nowhere"))
        context.attempt = context.run.attempt(0)
        absence = absence_of(
            context, KIND, lost_nodes.WORDS, lost=lost, seconds=100.0, **{"script_began": True, "events": None, **facts}
        )
        end = lost_nodes.after_loss(absence, "n2", since)
        return (end.message, end.at_fault) if end else None

    assert after(100.0 - lost_nodes.LAST_WORDS) is None  # its last words may still arrive
    assert after(99.0 - lost_nodes.LAST_WORDS) == (says("the connection to n2"), ("n2",))
    assert after(100.0, tasks=lambda: {"n2": task}) == (f"the ranks on n2 were lost: {task}", ("n2",))
    assert after(100.0, gone={"rank"}) == ("the job step 'rank' ended", ())
    lost |= dict.fromkeys(("n1", "n3"), "it closed the connection")  # what one did is no cause where all are lost
    assert after(100.0, tasks=lambda: {"n2": task}) is None
    assert after(100.0, tasks=lambda: {"n2": task}, gone={"rank"}) == ("the job step 'rank' ended", ())


def test_ranks_of_lost_nodes_are_not_waited_for() -> None:
    state = state_of(("n1", "n2"))
    hub = SimpleNamespace(send=lambda **_: None)
    processes: Any = SimpleNamespace(state=state, world=World(2, 2, 0, "10.0.0.1", 1, 2), hub=hub)
    script = Ranks(processes)
    script.lose({"n2"})
    assert script.poll() is None
    for rank in (0, 1):
        script.take("n1", {"rank": rank, "status": errors.STOPPED, "memory": False})
    assert script.poll() is not None
    assert not script.over_on("n2")  # so that the loss stays one


def test_a_full_disk_does_not_hide_the_status_of_a_rank(tmp_path: Path) -> None:
    state = state_of(("n1", "n2"))
    run = RunPaths(tmp_path)
    run.attempt(0).directory.mkdir(parents=True)
    run.logs.mkdir()
    run.script_log.symlink_to("/dev/full")
    state.context.run, state.context.attempt = run, run.attempt(0)
    state.events = SimpleNamespace(write=lambda *_, **__: None)
    processes: Any = SimpleNamespace(
        state=state, world=World(2, 1, 0, "10.0.0.1", 1, 2), hub=SimpleNamespace(send=lambda **_: None)
    )
    script = Ranks(processes)
    script._keep_stacks = lambda: None  # type: ignore[method-assign]
    script.take("n2", {"rank": 1, "status": 7, "memory": False})
    script.take("n1", {"rank": 0, "status": 143, "memory": False})
    assert script.poll() == 7
