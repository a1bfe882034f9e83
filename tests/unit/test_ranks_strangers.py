"""Strangers at the ports of a run of ranks, and peers that break: the run's own connections go on, whatever they send."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors, listeners
from hpcml.failures import judgement
from hpcml.failures.cause import Case
from hpcml.kinds.ranks import KIND
from hpcml.kinds.ranks.node import rank_agent as agents
from hpcml.kinds.ranks.node import rapidsmpf_server, reserved_ports
from hpcml.kinds.ranks.node.supervised import EVENTS, Processes, Ranks
from hpcml.kinds.ranks.variables import World
from hpcml.node import agent
from hpcml.node.events_and_end import end_of_hindrance
from hpcml.node.link import connections
from hpcml.node.link import line as line_of
from hpcml.node.link.hub import Hub
from hpcml.paths import AttemptPaths
from node_settings import settings as settings_of

KEY = b"k" * 32
PATIENCE = 60.0
TOKEN = rapidsmpf_server.token_of(KEY)
# What a stranger can say; {nonce} is what the listener has said first.
JUNK = [
    "é b n1\n".encode(), b"\xff\xfe\xfd\n", "ключ b n1\n".encode("utf-16"), b"\x00" * 400 + b"\n", b"\n", b" \n", b"  \n", b"a\n",
    b"a b\n", b"a b c\n", b"a b c d\n", b"{nonce}\n", b"{nonce} {nonce} n1\n", b"{nonce}", b"x" * 511 + b"\n", b"x" * 512,
    b"x" * 100_000, b"x" * 100_000 + b"\n", b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"[" * 400 + b"\n",
    b"AUTH rank=0 nranks=4 token=\n", b"AUTH rank=0 nranks=4 token=" + "é".encode() * 64 + b"\n",
    "AUTH rank=٣ nranks=٤ token=x\n".encode(), b"AUTH rank=-1 nranks=4 token=x\n", b"AUTH rank=" + b"9" * 400 + b" nranks=4 token=x\n",
    b"AUTH rank=1 nranks=4 token=" + b"f" * 64 + b"\n", b"PUT key=a valuelen=999999999\n", b"BARRIER\n", b"SYNC\n",
    *(bytes([byte]) * 3 + b" b n1\n" for byte in range(128, 256, 8)), *(os.urandom(size) for size in range(1, 500, 17)),
    *(os.urandom(size) + b"\n" for size in range(1, 500, 17)),
]  # fmt: skip


def until(condition: Callable[[], object], step: Callable[[], object] = lambda: time.sleep(0.005)) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        step()


class Agents:
    """A hub with agents, which all live in this process, and what they have said."""

    def __init__(self, hub: Hub, *nodes: str) -> None:
        self.hub, self.news = hub, list[tuple[str, dict[str, Any]]]()
        self.lines = {node: self.connect(node) for node in nodes}

    def connect(self, node: str) -> line_of.Line:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(line_of.connect, self.hub.places, KEY, node)
            until(done.done, self.look)
            line = done.result()[0]
        assert line
        until(lambda: node in self.hub.lines, self.look)
        return line

    def look(self) -> None:
        self.news += self.hub.receive(0.01)

    def lost(self) -> dict[str, str]:
        return {node: message["why"] for node, message in self.news if message["event"] == "lost"}

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


@pytest.fixture
def run() -> Iterator[Agents]:
    with Hub(["127.0.0.1"], KEY, EVENTS) as hub, contextlib.closing(Agents(hub, "n1", "n2")) as made:
        yield made


def call(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection, without waiting."""
    connection.setblocking(False)
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_nothing_that_a_stranger_says_ends_the_hub_or_is_a_message(run: Agents) -> None:
    port = run.hub.places[0][1]
    run.news.clear()
    assert len(JUNK) > 100
    with contextlib.ExitStack() as opened:
        for words in JUNK:
            stranger = opened.enter_context(call(port))
            nonce = b""
            if b"{nonce}" in words:
                with ThreadPoolExecutor(1) as pool:
                    said = pool.submit(stranger.recv, 64)
                    until(said.done, run.look)
                    nonce = said.result().strip()
            with contextlib.suppress(OSError):  # it was turned away at the first bytes
                stranger.settimeout(0.5)
                stranger.sendall(words.replace(b"{nonce}", nonce))
                stranger.shutdown(socket.SHUT_WR)
            run.look()
            until(lambda: is_closed(stranger), run.look)  # noqa: B023 - it is called at once
    assert run.news == []
    assert not run.hub.entrance.strangers
    run.hub.send(do="start")
    for line in run.lines.values():
        until(lambda: line.receive() == [{"do": "start"}], run.look)  # noqa: B023


@pytest.mark.parametrize("name", ["n3", "scheduler@n1"])
def test_a_hello_that_was_heard_before_opens_nothing(run: Agents, name: str) -> None:
    """As that of an agent, passed on or said again: each connection has its own number to sign."""
    port = run.hub.places[0][1]
    heard: list[bytes] = []
    with listeners.listen_tcp(listeners.AGENTS, "127.0.0.1") as between, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(line_of.connect, [between.getsockname()], KEY, name)
        with between.accept()[0] as caller:
            caller.sendall(b"0" * 32 + b"\n")
            heard.append(caller.recv(512))
        line = asked.result()[0]
        assert line
        line.close()
    run.news.clear()
    with call(port) as stranger:
        run.look()
        stranger.sendall(heard[0] + heard[0])
        until(lambda: is_closed(stranger), run.look)
    assert run.news == []
    assert set(run.hub.lines) == {"n1", "n2"}


@pytest.mark.parametrize("text", [
    b"", b"[]", b"5", b"null", b"{", b"[" * 60_000, b"\xff", b'"x"', b"[[1]]", b'{"event": 5}', b'{"event": []}', b"{}",
    b'{"event": "nothing"}', b'{"event": "hello"}', b'{"event": "use", "processors": "1"}', b'{"event": "note", "text": {}}',
    b'{"event": "rank-ended", "rank": "0", "status": 0, "memory": false}', b'{"event": "hello", "reached": "x", "versions": {}, "time": 0}',
])  # fmt: skip
def test_an_agent_that_breaks_is_lost_by_name_and_no_other(run: Agents, text: bytes) -> None:
    line = run.lines["n1"]
    line.connection.send(line._code(line.mine, line.sent, text) + b" " + text + b"\n")
    until(run.lost, run.look)
    assert set(run.lost()) == {"n1"}
    assert run.lost()["n1"].startswith("it sent a ")
    assert set(run.hub.lines) == {"n2"}
    run.lines["n2"].send(event="alive", processors=1)
    until(lambda: ("n2", {"event": "alive", "processors": 1}) in run.news, run.look)


def test_who_is_slow_or_silent_gets_no_more_time_for_each_byte(run: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELLO", 0.3)
    with (
        contextlib.closing(call(run.hub.places[0][1])) as slow,
        contextlib.closing(call(run.hub.places[0][1])) as silent,
    ):
        until(lambda: len(run.hub.entrance.strangers) == 2, run.look)

        def drip() -> None:
            with contextlib.suppress(OSError):
                slow.send(b"a")
            run.look()

        until(lambda: is_closed(slow), drip)
        until(lambda: is_closed(silent), run.look)
    assert set(run.hub.lines) == {"n1", "n2"}


def test_the_oldest_stranger_goes_unless_its_hello_is_there(run: Agents) -> None:
    hub, port = run.hub, run.hub.places[0][1]
    hub.entrance.room = 3
    with contextlib.ExitStack() as opened, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(line_of.connect, hub.places, KEY, "n3")
        until(asked.done, run.look)  # its hello has arrived, or the hub has it
        line = asked.result()[0]
        assert line
        strangers = [opened.enter_context(call(port)) for _ in range(8)]
        until(lambda: "n3" in hub.lines and sum(map(is_closed, strangers)) == 5, run.look)
        assert [is_closed(one) for one in strangers] == [True] * 5 + [False] * 3
        line.close()


def test_a_hello_is_read_before_its_connection_is_turned_away(run: Agents) -> None:
    hub = run.hub
    with call(hub.places[0][1]) as caller:
        until(lambda: hub.entrance.strangers, run.look)
        (stranger,) = hub.entrance.strangers
        line = line_of.introduce(caller, KEY, "n3")
        ready: dict[line_of.Line, None] = {}
        hub.entrance._turn_away(stranger, ready)
        assert [one.node for one in ready] == ["n3"]
        assert not line.why


def test_an_agent_that_does_not_read_blocks_nobody() -> None:
    clock = SimpleNamespace(now=0.0)
    with contextlib.ExitStack() as opened:
        hub = opened.enter_context(Hub(["127.0.0.1"], KEY, EVENTS, lambda: clock.now))
        run = opened.enter_context(contextlib.closing(Agents(hub, "reads", "full", "slow")))
        for _ in range(1000):  # 60 MB
            if "full" in run.lost():
                break
            hub.lines["full"].send(text="x" * 60_000)
            hub.lines["reads"].send(text="x" * 60_000)
            run.look()
            run.lines["reads"].receive()
        assert run.lost() == {"full": "it does not read what is sent to it"}

        def much_later() -> None:
            if not hub.lines["slow"].connection.unsent:  # the kernel still takes more
                hub.lines["slow"].send(text="x" * 60_000)
            clock.now += connections.UNREAD + 1
            run.look()

        until(lambda: "slow" in run.lost(), much_later)
        assert run.lost()["slow"] == f"it has read nothing for {connections.UNREAD:g} s"
        hub.send(do="start")
        orders: list[dict[str, Any]] = []

        def hear() -> None:
            run.look()
            orders.extend(run.lines["reads"].receive())

        until(lambda: {"do": "start"} in orders, hear)
        assert run.lines["reads"].why == ""


CROWD = """
import contextlib, json, os, resource, signal, socket, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from hpcml.kinds.ranks.node.supervised import EVENTS
from hpcml.node.link import connections, line as line_of
from hpcml.node.link.hub import Hub
KEY, AGENTS, STRANGERS = b"k" * 32, int(sys.argv[1]), int(sys.argv[2])
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with Hub(["127.0.0.1"], KEY, EVENTS) as hub:
    place, children = hub.places[0], []
    if not os.fork():  # strangers, of whom each says something, and comes again when it is turned away
        signal.alarm(300)
        open_ones = []
        while os.getppid() != 1:
            while len(open_ones) < STRANGERS:
                one = socket.create_connection(place)
                one.send(b"x" * (len(open_ones) % 500))
                one.setblocking(False)
                open_ones.append(one)
            time.sleep(0.01)
            for one in list(open_ones):
                with contextlib.suppress(BlockingIOError):
                    try: gone = not one.recv(100)
                    except ConnectionError: gone = True
                    if gone: open_ones.remove(one); one.close()
        os._exit(0)
    told, tell = os.pipe()
    if not os.fork():
        signal.alarm(300)
        def connected(number):
            while True:
                line = line_of.connect([place], KEY, f"n{number}")[0]
                if line: return line
        with ThreadPoolExecutor(4) as pool: lines = list(pool.map(connected, range(AGENTS)))
        for line in lines: line.send(event="alive", processors=1)
        waiting = set(lines)
        while waiting:
            waiting -= {line for line in waiting if {"do": "start"} in line.receive()}
            assert not any(line.why for line in lines), [line.why for line in lines if line.why][:3]
            time.sleep(0.01)
        os.write(tell, b"all")
        signal.pause()
    os.close(tell)
    os.set_blocking(told, False)
    before, alive, most, lost, answer, is_told = resident(), set(), 0, [], None, False
    deadline = time.monotonic() + 250
    while answer is None and time.monotonic() < deadline:
        for node, message in hub.receive(0.05):
            if message["event"] == "alive": alive.add(node)
            if message["event"] == "lost": lost.append((node, message["why"]))
        most = max(most, len(hub.entrance.strangers))
        if len(alive) == AGENTS and most >= STRANGERS * 9 // 10 and not is_told:
            hub.send(do="start"); is_told = True
        with contextlib.suppress(BlockingIOError): answer = os.read(told, 3)
    print(json.dumps({"alive": len(alive), "answer": (answer or b"").decode(), "most": most, "lost": lost, "grown": resident() - before,
                      "files": len(os.listdir("/proc/self/fd"))}))
os.killpg(0, signal.SIGKILL)
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192, reason="the machine's hard limit is lower")
def test_a_thousand_agents_and_a_thousand_strangers_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWD, "1100", "1000"],
        capture_output=True, text=True, timeout=400, check=False, start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192)),
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr
    assert isinstance(found, dict), found
    assert (found["alive"], found["answer"], found["lost"]) == (1100, "all", []), (found, done.stderr)
    assert found["files"] > 1024
    assert found["grown"] < 64 << 20, found


FEW_FILES = """
import contextlib, os, resource, socket, sys
from concurrent.futures import ThreadPoolExecutor
from hpcml.kinds.ranks.node.supervised import EVENTS
from hpcml.node.link import line as line_of
from hpcml.node.link.hub import Hub
KEY = b"k" * 32
with Hub(["127.0.0.1"], KEY, EVENTS) as hub:
    others = []
    with contextlib.suppress(OSError):
        while True: others.append(os.open("/dev/null", os.O_RDONLY))
    for one in others[:6]: os.close(one)  # room for six connections
    place = hub.places[0]
    if not (pid := os.fork()):
        for one in others[6:]: os.close(one)
        strangers = [socket.create_connection(place) for _ in range(12)]
        line = None
        while line is None: line = line_of.connect([place], KEY, "n1")[0]
        line.send(event="alive", processors=1)
        while {"do": "start"} not in line.receive() and not line.why: pass
        os._exit(7 if not line.why else 8)
    while "n1" not in hub.lines: hub.receive(0.05)
    hub.send(do="start")
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]: hub.receive(0.05)
    print(os.waitstatus_to_exitcode(ended[1]))
"""


def test_a_process_without_room_for_connections_lets_the_newest_in() -> None:
    limits = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=120, check=False, preexec_fn=limits
    )
    assert done.stdout == "7\n", done.stderr


# -- rapidsmpf's server ---------------------------------------------------------------------------------------------------


def join(server: rapidsmpf_server.Server, rank: int = 1) -> socket.socket:
    connection = call(server.port)
    connection.sendall(f"AUTH rank={rank} nranks=4 token={TOKEN}\n".encode())
    assert connection.recv(9) == b"OK\n"
    return connection


def test_nothing_that_a_stranger_says_ends_rapidsmpf_s_server() -> None:
    with rapidsmpf_server.Server("127.0.0.1", 4, TOKEN) as server, contextlib.closing(join(server)) as rank:
        for words in JUNK:
            with call(server.port) as stranger, contextlib.suppress(OSError):
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(9) == b"", words
        for command in ("é key=a timeout=1\n".encode(), b"\xff\n", b"x" * 600):  # of a rank that breaks
            with join(server, 2) as broken, contextlib.suppress(ConnectionError):
                broken.sendall(command)
                assert broken.recv(9) == b"", command
        rank.sendall(b"GET key=a timeout=1\n")
        assert rank.recv(9) == b"TIMEOUT\n"
        assert server.thread.is_alive()


def test_strangers_do_not_keep_a_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say nothing, more than there is room for, and those that say a byte now and then."""
    with rapidsmpf_server.Server("127.0.0.1", 4, TOKEN) as server, contextlib.ExitStack() as opened:
        server.entrance.room = 16
        strangers = [opened.enter_context(call(server.port)) for _ in range(68)]
        join(server).close()
        until(lambda: sum(map(is_closed, strangers)) >= 68 - 16)
        monkeypatch.setattr(connections, "HELLO", 0.2)
        slow = opened.enter_context(call(server.port))

        def drip() -> None:
            with contextlib.suppress(OSError):
                slow.send(b"A")
            time.sleep(0.01)

        until(lambda: is_closed(slow), drip)
        join(server).close()


# -- the agent --------------------------------------------------------------------------------------------------------------


def agent_of(folder: Path, hub: Hub, seconds: float = PATIENCE, *, is_told: bool = True) -> agents.Ranks:
    attempt = AttemptPaths(folder)
    for place in (attempt.secret, attempt.nodes):
        place.mkdir(exist_ok=True)
    attempt.link_key.write_bytes(KEY)
    if is_told:
        attempt.link.write_text(json.dumps({"places": hub.places, "node": "n1", "supervisor": [os.getpid(), ""]}))
    context: Any = SimpleNamespace(attempt=attempt, node="n1", node_names=("n1", "n2"), settings=settings_of())
    node = agent.Node(context, agent.Members("rank", 0, errors.WORKERS_NEVER_CAME))
    node.link.open()
    return agents.Ranks(context, node, time.monotonic() + seconds)


def test_an_agent_whose_line_closes_before_the_start_connects_again(tmp_path: Path) -> None:
    with Hub(["127.0.0.1"], KEY, EVENTS) as hub, ThreadPoolExecutor(1) as pool:
        run = Agents(hub)
        begun = agent_of(tmp_path, hub)
        ended = pool.submit(begun.serve)

        def ready() -> int:
            return sum(message["event"] == "ready" for _, message in run.news)

        until(lambda: ready() == 1, run.look)
        hub.drop(hub.lines["n1"])  # as of a stranger who was turned away
        until(lambda: ready() == 2, run.look)
        hub.send(do="connect")
        until(lambda: ready() == 3, run.look)
        assert not ended.done()
        hub.send(do="close")
        until(ended.done, run.look)
        assert (ended.result(), begun.node.refused) == (0, "")
        begun.link.close()


def test_an_agent_that_learns_no_address_in_time_says_so(tmp_path: Path) -> None:
    with Hub(["127.0.0.1"], KEY, EVENTS) as hub:
        begun = agent_of(tmp_path, hub, 0.0, is_told=False)
    assert begun.serve() == errors.WORKERS_NEVER_CAME
    mark = json.loads((tmp_path / "nodes/n1.json").read_text())
    assert "did not write its address (link.json)" in mark["refused"]
    AttemptPaths(tmp_path).ended.touch()
    assert begun.serve() == 0  # nobody waits for it
    begun.link.close()


# -- the supervisor -----------------------------------------------------------------------------------------------------------


def test_a_line_that_closes_before_the_start_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[dict[str, Any]] = []
    processes: Any = object.__new__(Processes)
    state = SimpleNamespace(clock=SimpleNamespace(seconds=1.0), time_to_look=lambda: False)
    processes.state, processes.settings, processes.script = state, settings_of(), None
    processes.hub = SimpleNamespace(send=lambda **order: orders.append(order), places=[("a", 1), ("b", 1)])
    processes.context = SimpleNamespace(node_names=("n1", "n2"))
    processes.agents = SimpleNamespace(is_silent=lambda _: False)
    processes.lost, processes.tries, processes.heard = {}, 1, {"n1": 1.0}
    processes.ready, processes.reached = {"n1", "n2"}, {"n1": ["a"], "n2": ["b"]}
    assert not processes._are_ready()  # no address leads to all: once more
    assert orders == [{"do": "connect"}]
    processes.ready = {"n1", "n2"}
    assert processes._are_ready()  # then _world() says which reach which
    processes._take("n1", {"event": "lost", "why": "it closed the connection"})
    processes.check()
    assert processes.ready == {"n2"}
    processes._take("n1", {"event": "hello", "reached": ["b"]})
    assert processes._common() == ["b"]
    assert len(orders) == 1


# -- the ports of rank 0 --------------------------------------------------------------------------------------------------


def listen_beside(port: int) -> socket.socket:
    """Listen at a port that another program has bound, as every account can."""
    return listeners.listen_tcp(listeners.MASTER_PORT, "127.0.0.1", port)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[reserved_ports.Ports]:
    """Reserved ports; this process counts as another account."""
    for name in reserved_ports.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with contextlib.ExitStack() as folders:
        made = reserved_ports.Ports(folders, "n1")
        for row in reserved_ports.VARIABLES:
            made.reserve(row)
        yield made


def test_a_port_on_which_another_account_listens_is_not_given_to_the_ranks(
    held: reserved_ports.Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(held.numbers)
    assert held.reserve_again() is None
    assert held.numbers == before
    with contextlib.ExitStack() as thief:
        for port in before.values():
            thief.enter_context(listen_beside(port))
        assert held.reserve_again() is None
        assert not {*held.numbers.values()} & {*before.values()}
        monkeypatch.setattr(held, "reserve", lambda *_: 0)  # one who is quicker each time
        thief.enter_context(listen_beside(held.numbers[listeners.JAX_PORT]))
        taken = held.reserve_again()
        assert taken
        assert (taken.variable, taken.node) == ("JAX_COORDINATOR_ADDRESS", "n1")
        monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:9")  # the user's own, which the ranks then use
        assert held.reserve_again() is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_another_program_holds_and_does_not_listen_on_is_not_given_either(
    held: reserved_ports.Ports, address: str
) -> None:
    """It lets nobody share the port once it has it, and the kernel lists it nowhere."""
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    before = held.numbers[listeners.MASTER_PORT]
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as thief:
        with pytest.raises(OSError, match="in use"):
            thief.bind((address, before))  # hpcml has it at all addresses
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((address, before))
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        taken = held.taken()
        assert taken
        assert taken.clause.startswith(f"another program holds port {before} of n1, the run's MASTER_PORT")
        assert held.reserve_again() is None
        assert held.numbers[listeners.MASTER_PORT] != before


def test_an_address_without_a_way_is_not_reached() -> None:
    """The kernel says so at once, as of the address of all machines, to which TCP connects nobody."""
    with listeners.listen_tcp(listeners.AGENTS, "127.0.0.1") as listener:
        place = listener.getsockname()
        reached = line_of.reach([("255.255.255.255", 9), place])
        for connection in reached.values():
            connection.close()
    assert [*reached] == ["127.0.0.1"]


def test_the_user_s_own_program_is_no_other_account(
    held: reserved_ports.Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", os.getuid)
    with listen_beside(held.numbers[listeners.MASTER_PORT]):
        assert held.taken() is None


@pytest.mark.parametrize(("said", "rank", "is_named"), [
    ("DistNetworkError: … code: -98, name: EADDRINUSE, message: address already in use", 0, True),
    ("OSError: [Errno 98] Address already in use", 0, True),
    ("ValueError: bad", 0, False),  # who only listens there is no cause
    ("OSError: [Errno 98] Address already in use", 1, False),
])  # fmt: skip
def test_the_account_that_listens_on_rank_0_s_port_is_named(
    held: reserved_ports.Ports, tmp_path: Path, said: str, rank: int, is_named: bool
) -> None:
    log = tmp_path / "script.log"
    log.write_text(f"Traceback:\n{said}\n")
    context = SimpleNamespace(run=SimpleNamespace(script_log=log), attempt=AttemptPaths(tmp_path))
    events = SimpleNamespace(write=lambda *_, **__: None)
    state = SimpleNamespace(context=context, clock=SimpleNamespace(seconds=1.0), events=events)
    processes: Any = SimpleNamespace(state=state, world=World(nodes=1, each=2), ports=held)
    script = Ranks(processes)
    script.left = {rank}
    port = held.numbers[listeners.MASTER_PORT]
    with listen_beside(port):
        script.take("n1", {"rank": rank, "status": 1, "memory": False})
    hindrance = script.hindrance()
    end = hindrance and end_of_hindrance(hindrance)
    assert bool(end) is is_named
    if end:
        assert (end.exit_status, end.by) == (errors.PORT_TAKEN, "hpcml")
        account = reserved_ports.name_of(os.getuid())
        first = f"account {account} listens on port {port} of n1, the run's MASTER_PORT"
        assert end.message == f"{first}; rank 0 on n1 exited with status 1"
        assert "--exclusive" in end.hint
        cause = judgement.judge(Case(end, KIND), [])
        assert cause
        assert (cause.what, cause.short, cause.known) == (end.message, "port taken by another program", True)
