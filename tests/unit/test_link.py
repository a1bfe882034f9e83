"""The link of agents and supervisor in runs of every kind: it opens, comes back, gives way to files, and survives forks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcml import listeners
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node import workers
from hpcml.node import agent, stacks
from hpcml.node.agents import Agents
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog
from hpcml.node.link import line as lines
from hpcml.node.link import uplink as uplinks
from hpcml.node.link.hub import Hub
from hpcml.node.link.mailbox import Mailbox
from hpcml.node.link.uplink import Uplink
from hpcml.node.run_state import RunState
from hpcml.node.versions_and_clocks import Comparison
from hpcml.paths import RunPaths
from node_settings import settings as settings_of

PATIENCE = 60.0


class Run:
    """A supervisor with its agents' ends, all in this process."""

    def __init__(self, folder: Path, folders: contextlib.ExitStack) -> None:
        self.run = RunPaths(folder)
        for place in (self.run.attempt(0).nodes, self.run.logs):
            place.mkdir(parents=True)
        self.folders = folders
        state = RunState(self.context("n1"), KIND, EventLog(self.run.events, 0), folder)
        self.agents = Agents(state, folders, ["127.0.0.1"], Comparison(state.context, KIND.roles), {})
        self.said: list[tuple[str, dict[str, Any]]] = []

    def context(self, node: str) -> Context:
        settings = settings_of(job__one_machine=False, job__nodes=2)
        return Context(self.run, self.run.attempt(0), 0, settings, node, ("n1", "n2"))

    def open(self, node: str, role: str = "") -> Uplink:
        link = Uplink(self.context(node), role)
        self.folders.callback(link.close)
        link.open()
        return link

    def look(self) -> None:
        self.said += self.agents.receive(0.01)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.look()

    def events(self, node: str) -> list[str]:
        return [message["event"] for one, message in self.said if one == node and message["event"] != "alive"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with contextlib.ExitStack() as folders:
        yield Run(tmp_path, folders)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplinks, "AGAIN", 0.02)
    monkeypatch.setattr(uplinks, "_LOOK", 0.0)
    monkeypatch.setattr("hpcml.node.agents.SLOW_TICK", 0.0)


def test_what_is_said_before_the_supervisor_is_there_arrives_in_its_order(run: Run) -> None:
    link = run.open("n2")
    for number in range(3):
        link.send(event="note", text=f"{number}.")
    assert not link.is_known
    run.agents.begin()
    run.until(lambda: run.events("n2") == ["connected", "hello", "note", "note", "note"])
    assert [message["text"] for _, message in run.said if message["event"] == "note"] == ["0.", "1.", "2."]
    assert (run.agents.is_connected("n2"), run.agents.is_connected("n1")) == (True, False)
    assert "worker@n2" not in run.agents.versions.waiting
    run.agents.hub.send(do="start")
    run.until(lambda: {"do": "start"} in link.receive())
    assert list((run.run.attempt(0).nodes).iterdir()) == []


def test_the_key_is_the_user_s_alone(run: Run) -> None:
    run.agents.begin()
    attempt = run.run.attempt(0)
    assert (attempt.link_key.stat().st_mode & 0o777, attempt.secret.stat().st_mode & 0o077) == (0o600, 0)
    assert attempt.link_key.read_bytes() == run.agents.key
    assert run.agents.key.hex() not in attempt.link.read_text()


def test_a_line_that_is_lost_comes_back_with_what_was_said_meanwhile(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run.agents.begin()
    link = run.open("n2")
    run.until(lambda: "hello" in run.events("n2"))
    run.agents.hub.drop(run.agents.hub.lines["n2"])
    run.until(lambda: link.receive() or link.lost)  # as the agent's loop sees it
    link.send(event="note", text="meanwhile.")
    run.until(lambda: run.events("n2")[-1] == "note")
    assert run.events("n2") == ["connected", "hello", "lost", "connected", "hello", "note"]
    assert (run.agents.lost, run.agents.ends) == ({}, 1)
    assert "the connection to hpcml's supervisor" in capfd.readouterr().out


def test_an_agent_that_is_not_to_come_back_does_not(run: Run) -> None:
    run.agents.begin()
    link = run.open("n2")
    run.until(lambda: "hello" in run.events("n2"))
    link.reconnects = False
    run.agents.hub.drop(run.agents.hub.lines["n2"])
    assert link.thread
    thread = link.thread
    run.until(lambda: link.receive() or not thread.is_alive())
    assert run.agents.lost == {"n2": "this end was closed"}


@pytest.mark.parametrize("way", ["refused", "swallowed"])
def test_without_a_way_to_the_supervisor_messages_go_by_files(
    run: Run, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """And by the line, as soon as there is one."""
    reach, is_open = lines.reach, threading.Event()
    monkeypatch.setattr(lines, "CONNECT", 0.05)
    monkeypatch.setattr(uplinks, "FALLBACK", 0.1 if way == "swallowed" else 1000.0)

    def filtered(places: list[tuple[str, int]]) -> dict[str, socket.socket]:
        return reach(places) if is_open.is_set() else {}

    def mute(places: list[tuple[str, int]], key: bytes, node: str) -> tuple[lines.Line | None, dict[str, str]]:
        return connect(places, key, node) if is_open.is_set() else (None, {"127.0.0.1": "127.0.0.1"})

    connect = lines.connect
    if way == "refused":
        monkeypatch.setattr(lines, "reach", filtered)
    else:
        monkeypatch.setattr(uplinks, "connect", mute)
    monkeypatch.setattr(uplinks, "RARELY", 0.02)
    run.agents.begin()
    link = run.open("n2")
    link.send(event="note", text="by file.")
    run.until(lambda: run.events("n2") == ["hello", "note"])
    assert not run.agents.hub.lines
    assert "worker@n2" not in run.agents.versions.waiting
    assert (run.agents.heard, link.is_up) == ({}, True)  # no signs, so no silence
    box = run.run.attempt(0).nodes / "n2.events"
    assert box.stat().st_mode & 0o777 == 0o600
    run.agents.hub.send(do="start")
    run.until(lambda: {"do": "start"} in link.receive())
    is_open.set()
    run.until(lambda: run.events("n2")[2:4] == ["connected", "hello"])
    link.send(event="note", text="by line.")
    run.until(lambda: run.said[-1] == ("n2", {"event": "note", "text": "by line."}))
    assert b"by line" not in box.read_bytes()


def test_last_words_without_a_line_go_into_the_file_unless_the_run_is_over(run: Run) -> None:
    for node in ("n1", "n2"):
        link = Uplink(run.context(node))
        link.send(event="note", text="the end.")
        link.close()
        run.run.attempt(0).ended.touch()
    assert [path.name for path in run.run.attempt(0).nodes.iterdir()] == ["n1.events"]
    run.until(lambda: run.events("n1") == ["hello", "note"])


def test_messages_in_a_file_are_whole_and_each_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n2.events"
    out, into = Mailbox(path), Mailbox(path)
    assert into.receive() == []
    out.append({"event": "alive"}, {"event": "note", "text": "é"})
    with path.open("a") as file:
        file.write('[1]\nno message\n{"event": "al')
    assert into.receive() == [{"event": "alive"}, {"event": "note", "text": "é"}]
    with path.open("a") as file:
        file.write('ive"}\n')
    assert into.receive() == [{"event": "alive"}]
    write, room = os.write, [5, 0]
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: room.pop()] if room else data))
    for _ in range(3):  # a disk that is full, then almost
        out.append()
        out.append({"event": "late"}) if len(room) == 2 else None
    out.append({"event": "last"})
    assert into.receive()[-1] == {"event": "last"}
    assert into.receive() == []


def test_a_file_that_is_another_file_s_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "treasure").write_text("gold")
    (tmp_path / "n2.events").symlink_to(tmp_path / "treasure")
    Mailbox(tmp_path / "n2.events").append({"event": "alive"})
    assert (tmp_path / "treasure").read_text() == "gold"


def test_a_fork_of_the_agent_has_no_part_in_the_line_and_forks_itself(run: Run) -> None:
    """The supervisor sees the agent's end although its forks go on; threads of a fork may fork too."""
    run.agents.begin()
    ready, told = os.pipe()
    os.set_blocking(ready, False)
    if not (pid := os.fork()):
        signal.alarm(120)
        link = Uplink(run.context("n2"))
        link.open()
        while not link.is_up:
            time.sleep(0.01)

        def worker() -> int:
            def fork() -> None:
                if not (child := os.fork()):
                    os._exit(0)
                os.waitpid(child, 0)

            thread = threading.Thread(target=fork)
            thread.start()
            thread.join(60)
            os.write(told, b"forked" if not thread.is_alive() else b"hangs")
            time.sleep(120)
            return 0

        agent.fork(worker)
        time.sleep(120)
        os._exit(0)
    try:
        heard: list[bytes] = []

        def hear() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.append(os.read(ready, 10))
            return bool(heard)

        run.until(hear)
        assert heard == [b"forked"]
        run.until(lambda: "n2" in run.agents.hub.lines)
        os.kill(pid, signal.SIGKILL)
        run.until(lambda: run.agents.lost)
        assert "n2" in run.agents.lost
    finally:
        os.waitpid(pid, 0)


def test_a_mark_is_known_by_the_line(run: Run) -> None:
    run.agents.begin()
    node = agent.begin(run.context("n2"), agent.Members("worker", 3, 81))
    run.folders.callback(node.link.close)
    node.refuse("there is no room")
    run.until(lambda: run.agents.marks.get("n2", {}).get("refused") == "there is no room")
    assert json.loads(run.run.attempt(0).mark_of("n2").read_text())["refused"] == "there is no room"


def test_the_first_address_that_answers_is_not_kept_waiting_by_one_that_swallows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a filter: 5 s for each would be as many for all."""
    monkeypatch.setattr(lines, "OTHERS", 0.05)
    with listeners.listen_tcp(listeners.AGENTS, "127.0.0.1") as there, socket.socket() as full:
        full.bind(("127.0.0.2", 0))
        full.listen(0)
        with contextlib.ExitStack() as callers:
            for _ in range(8):  # nobody accepts: the kernel answers the next no more
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(full.getsockname())
            began = time.monotonic()
            monkeypatch.setattr(lines, "CONNECT", PATIENCE)
            reached = lines.reach([full.getsockname(), there.getsockname()])
            for connection in reached.values():
                connection.close()
    assert time.monotonic() - began < PATIENCE / 2
    assert [*reached] == ["127.0.0.1"]


def test_a_listener_that_cannot_open_leaves_none_open() -> None:
    with pytest.raises(OSError, match="assign"):
        Hub(["127.0.0.1", "203.0.113.1"], b"k", {})


def test_stacks_are_asked_for_and_answered_by_the_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor alone looks for the request of `hpcml stacks`, while it gives signs of life."""
    monkeypatch.setattr(stacks, "EVERY", 0.01)
    run.agents.requests.every = 0.01
    run.agents.begin()
    node = agent.begin(run.context("n2"), agent.Members("worker", 3, 81))
    run.folders.callback(node.link.close)
    run.until(lambda: "n2" in run.agents.hub.lines and node.link.is_up)
    listed: list[Path] = []
    monkeypatch.setattr(node.requests, "look", lambda: listed.append(run.run.directory))

    def step() -> dict[str, str]:
        node.hear()
        agent._reap(node, lambda *_: None)
        return run.agents.state.stacks_written

    context = run.context("n1")
    for _ in range(2):
        request = stacks.ask(context, 0)
        run.until(lambda: step().get("n2") == request)  # noqa: B023 - it is called at once
        assert json.loads((run.run.attempt(0).stacks / "n2.json").read_text())["id"] == request
    assert not stacks.are_all_written(context, request, {"n2": request})  # n1 has not
    assert stacks.are_all_written(context, request, dict.fromkeys(("n1", "n2"), request))
    assert listed == []
    node.watch.clock.seconds += 100.0  # a supervisor that waits passes nothing on
    node.hear()
    assert listed


def test_messages_that_come_in_pieces_are_whole(run: Run) -> None:
    """The kernel passes a long one on in parts."""
    run.agents.begin()
    link = run.open("n2")
    run.until(lambda: "hello" in run.events("n2"))
    texts = [letter * 50_000 for letter in "abcdef"]
    for text in texts:
        link.send(event="note", text=text)

    def arrived() -> bool:
        if link.line:
            link.line.connection.flush()  # what the kernel did not take at once
        return run.events("n2").count("note") == len(texts) or bool(run.agents.lost)

    run.until(arrived)
    assert [message["text"] for _, message in run.said if message["event"] == "note"] == texts


def test_a_role_has_a_line_of_its_own_beside_its_node_s_agent(run: Run) -> None:
    """Its end is not the node's, and an order to it alone reaches nobody else."""
    run.agents.begin()
    agents_, scheduler = run.open("n1"), run.open("n1", "scheduler")
    run.until(lambda: "hello" in run.events("n1") and "hello" in run.events("scheduler@n1"))
    assert run.agents.versions.waiting == {"worker@n2"}
    run.agents.hub.send("scheduler@n1", do="check-fabric")
    run.until(lambda: {"do": "check-fabric"} in scheduler.receive())
    run.agents.hub.send("n1", do="start")
    run.until(lambda: (orders := agents_.receive()) and orders == [{"do": "start"}])
    Mailbox(run.run.attempt(0).nodes / "n2.events").append({"event": "note", "text": "by file."})
    run.until(lambda: run.events("n2") == ["note"])  # as many lines as nodes are not a line of each node
    scheduler.close()
    run.until(lambda: run.agents.lost)
    assert run.agents.lost.keys() == {"scheduler@n1"}
    assert (run.agents.is_connected("n1"), agents_.lost) == (True, "")


def test_a_role_that_is_on_the_supervisor_s_node_uses_no_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplinks, "FALLBACK", 0.0)
    tried = threading.Event()

    def nowhere(*_: object) -> tuple[None, dict[str, str]]:
        tried.set()
        return None, {}

    monkeypatch.setattr(uplinks, "connect", nowhere)
    run.agents.begin()
    link = run.open("n1", "scheduler")
    link.send(event="note", text="unheard.")
    for _ in range(2):
        tried.clear()
        assert tried.wait(PATIENCE)
    link.close()
    assert (link.is_up, list(run.run.attempt(0).nodes.iterdir())) == (False, [])


def test_an_order_holds_for_who_connects_later(run: Run) -> None:
    run.agents.begin()
    run.agents.order(do="start")
    link = run.open("n1", "scheduler")
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(link.wait_for("start")))
    waiter.start()
    run.until(lambda: not waiter.is_alive())
    assert waited == [True]


@pytest.mark.parametrize("end", ["close", "lost", "late"])
def test_a_wait_for_an_order_ends_with_the_run(run: Run, end: str) -> None:
    run.agents.begin()
    link = run.open("n1", "scheduler")
    run.until(lambda: "hello" in run.events("scheduler@n1"))
    waited: list[bool] = []
    until = time.monotonic() if end == "late" else time.monotonic() + 2 * PATIENCE
    waiter = threading.Thread(target=lambda: waited.append(link.wait_for("start", until)))
    waiter.start()
    if end == "close":
        run.agents.order(do="close")
    elif end == "lost":
        run.agents.hub.drop(run.agents.hub.lines["scheduler@n1"])
    run.until(lambda: not waiter.is_alive())
    assert waited == [False]


@pytest.mark.parametrize(("way", "order"), [("line", "start"), ("line", "close"), ("file", "start"), ("none", "close")])
def test_an_agent_waits_until_its_processes_are_wanted_or_the_run_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch, way: str, order: str
) -> None:
    """It answers requests meanwhile; without any way to it, the file that ends a run is seen."""
    monkeypatch.setattr(agent, "TICK", 0.01)
    monkeypatch.setattr(agent.Bystander, "LOOK", 0.0)
    if way != "none":
        run.agents.begin()
    if way == "file":
        monkeypatch.setattr(uplinks, "connect", lambda *_: (None, {}))
    node = agent.begin(run.context("n2"), agent.Members("worker", 3, 81))
    run.folders.callback(node.link.close)
    bystander = agent.Bystander.__new__(agent.Bystander)  # signals are the main thread's
    bystander.node = node
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(bystander.wait_for("start")))
    waiter.start()
    if way == "none":
        run.run.attempt(0).ended.touch()
    else:
        run.until(lambda: "hello" in run.events("n2"))
        assert not waited
        run.agents.order(do=order)
    run.until(lambda: not waiter.is_alive())
    assert waited == [order == "start"]


@pytest.mark.parametrize("way", ["line", "file"])
def test_workers_learn_from_the_supervisor_where_the_scheduler_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """Also on a node that connects when the cluster has started already: all orders come at once there."""
    if way == "file":
        monkeypatch.setattr(uplinks, "connect", lambda *_: (None, {}))
    run.agents.begin()
    run.agents.order(do="start")
    run.agents.order(do="register", addresses=["tls://n1:1", "tls://n1:2"], protocol="tls")
    node = agent.begin(run.context("n2"), agent.Members("worker", 3, 81))
    run.folders.callback(node.link.close)
    run.until(lambda: "hello" in run.events("n2"))
    bystander = agent.Bystander.__new__(agent.Bystander)
    bystander.node = node
    assert bystander.wait_for("start")
    place = tmp_path / "addresses"
    address = workers.Address(node, place)
    run.until(lambda: address.look() and place.exists())
    assert place.read_text() == "tls://n1:1 tls\ntls://n1:2 tls\n"
    run.agents.order(do="close")
    for _ in range(3):  # its workers are closed by the scheduler
        run.look()
        assert address.look()


def test_workers_do_not_wait_for_the_scheduler_of_a_run_that_has_ended(run: Run, tmp_path: Path) -> None:
    run.agents.begin()
    node = agent.begin(run.context("n2"), agent.Members("worker", 3, 81))
    run.folders.callback(node.link.close)
    address = workers.Address(node, tmp_path / "addresses")
    run.until(lambda: "hello" in run.events("n2"))
    assert address.look()
    run.agents.order(do="close")
    run.until(lambda: not address.look())
    late = workers.Address(node, tmp_path / "addresses")
    late.deadline = 0.0
    assert not late.look()
