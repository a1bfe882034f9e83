"""The states of a tunnel: what the cluster says, the end of a route and the clock lead from one to the next."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.cli import tunnel as command
from hpcml.errors import NO_ACCESS, UNAVAILABLE, HpcmlError, LinkError, ServiceGoneError, TunnelError
from hpcml.remote import routes, tunnel, tunnel_server
from hpcml.remote.answers import RunFacts, Service
from hpcml.remote.ssh import Connection
from hpcml.remote.tunnel import State, Tunnel, TunnelRequest
from hpcml.runs import directories
from hpcml.sites.schema import Login
from tests.said import says

N1 = Service("n1", "/tmp/a/s", "/status", "Scheduler-1")
N2 = N1._replace(node="n2")
RUN = "a-20260101-000000-0000"


def facts(
    service: Service | None = None,
    *,
    state: str = "RUNNING",
    message: str = "the script runs",
    ends: float | None = None,
    exit_status: int | None = None,
) -> RunFacts:
    services = {"dashboard": service} if service else {}
    return RunFacts(RUN, "7", state, message, "", services, ends, exit_status, "", ())


class FakeRoute:
    """A route that opens, and carries the right answer unless the world says otherwise."""

    name = "direct"

    def __init__(self, world: World) -> None:
        self.world, self.lost, self.closed = world, False, False
        world.routes.append(self)

    def take(self, port: int) -> bool:
        return port not in self.world.taken

    def failure(self, wrong: str) -> HpcmlError:
        return TunnelError(wrong, place=self.name)

    def close(self) -> None:
        self.closed = True


class World:
    """A cluster and a clock for one tunnel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.opened: list[tuple[int, str, str]] = []  # port, node, route
        self.routes: list[FakeRoute] = []
        self.taken: set[int] = set()
        self.refuse: type[HpcmlError] | None = None  # what a route that is tried ends with
        self.wrong = ""  # what is wrong with the answer through an open route
        self.alive = True
        self.login_fails = 0  # so many times
        self.connection = Connection.__new__(Connection)
        self.connection.host, self.connection.settings, self.connection.login = "cluster", {}, Login(host="cluster")
        monkeypatch.setattr(Connection, "alive", lambda _: self.alive)
        monkeypatch.setattr(Connection, "open", lambda _, **__: self.log_in())
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.pass_time)
        monkeypatch.setattr(routes, "start", self.start)
        monkeypatch.setattr(routes, "in_order", lambda *_: ["direct", "srun"])
        monkeypatch.setattr(routes, "remember", lambda *_: None)
        monkeypatch.setattr(routes, "look", lambda *_: self.wrong)
        self.tunnel = self.make()

    def make(self, **request: int) -> Tunnel:
        return Tunnel(self.connection, TunnelRequest(RUN, **request), self.said.append, self.note)  # type: ignore[arg-type]

    def start(self, *_: object) -> FakeRoute:
        if self.refuse is not None:
            raise self.refuse("refused", place="direct")
        return FakeRoute(self)

    def note(self, port: int, service: Service, _: str, route: str) -> None:
        self.opened.append((port, service.node, route))

    def log_in(self) -> bool:
        if self.login_fails:
            self.login_fails -= 1
            raise LinkError("cluster cannot be reached", place="cluster")
        self.alive = True
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def step(self, after: float, current: RunFacts) -> State:
        self.now += after
        self.tunnel.step(current)
        return self.tunnel.phase.state

    @property
    def are_open(self) -> int:
        return sum(not route.closed for route in self.routes)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_run_is_waited_for_followed_to_its_next_node_and_ends_it(world: World) -> None:
    assert world.tunnel.phase.state is State.CONNECTING
    assert world.step(0, facts(state="PENDING", message="waiting for free nodes")) is State.WAITING
    assert world.step(1, facts(state="PENDING", message="waiting for free nodes")) is State.WAITING
    assert len(world.said) == 1, "once for each change"
    assert world.step(1, facts(N1)) is State.OPEN
    (first,) = world.opened
    assert world.step(1, facts(state="PENDING", message="Slurm requeued the job")) is State.WAITING
    assert (world.are_open, world.said[-1]) == (0, says("The dashboard on n1"))
    assert world.step(1, facts(N2)) is State.OPEN
    assert world.step(1, facts(N1)) is State.OPEN
    assert world.said[-1] == "The run is now on n1."
    assert [(port, node) for port, node, _ in world.opened] == [(first[0], node) for node in ("n1", "n2", "n1")]
    assert world.are_open == 1
    assert world.step(1, facts(state="COMPLETED", message="it succeeded")) is State.ENDED
    assert (world.are_open, world.said[-1]) == (0, f"{RUN} has ended: it succeeded.")


def test_the_cluster_says_which_service_it_is_if_nobody_names_one(world: World) -> None:
    both = {name: N1._replace(path=f"/{name}") for name in ("dashboard", "jupyter")}
    session = facts()._replace(services=both, service="jupyter")
    for service, path in (("", "/jupyter"), ("dashboard", "/dashboard")):
        tunnel = Tunnel(world.connection, TunnelRequest(RUN, service), world.said.append, world.note)
        tunnel.step(session)
        assert tunnel.open is not None
        assert tunnel.open.service.path == path


def test_a_bad_end_is_an_error_and_closes_too(world: World) -> None:
    world.step(0, facts(N1))
    with pytest.raises(HpcmlError, match="ended with status 86") as error:
        world.step(1, facts(state="CANCELLED", message="cancelled", exit_status=86))
    assert error.value.exit_status == UNAVAILABLE
    assert (world.tunnel.phase.state, world.are_open) == (State.ENDED, 0)


def test_a_run_that_is_held_ends_it(world: World) -> None:
    """By the fact alone: a message may say anything."""
    waiting = facts(state="PENDING", message="held by the user; the job will never start")
    world.step(0, waiting)
    with pytest.raises(HpcmlError, match="will not start: held by the user"):
        world.step(0, waiting._replace(stuck=True))


def test_a_first_refusal_ends_it(world: World) -> None:
    for refusal, message in ((TunnelError, "The site does not allow a tunnel to n1"), (ServiceGoneError, "socket file does not exist on n1")):  # fmt: skip
        world.refuse = refusal
        with pytest.raises(refusal, match=message) as caught:
            world.step(0, facts(N1))
        assert caught.value.exit_status == (NO_ACCESS if refusal is TunnelError else UNAVAILABLE)
    world.refuse, world.wrong = None, "it responds with HTTP status 500"
    with pytest.raises(TunnelError, match="The site does not allow a tunnel"):
        world.step(0, facts(N1))
    assert (len(world.routes), world.are_open) == (2, 0), "each route that was tried is closed"


def test_a_lost_route_is_opened_again_for_a_while(world: World) -> None:
    world.step(0, facts(N1))
    world.routes[-1].lost = True
    world.refuse = TunnelError
    assert world.step(1, facts(N1)) is State.OPENING
    begin = world.now
    assert world.said[-2:] == [
        says("The connection to the node was lost"),
        says("The site does not allow a tunnel to n1"),
    ]
    assert world.tunnel.phase.due == begin + tunnel.RETRY
    world.refuse = None
    assert world.step(1, facts(N1)) is State.OPENING, "not before it is due"
    assert world.step(tunnel.RETRY, facts(N1)) is State.OPEN
    world.routes[-1].lost, world.refuse = True, TunnelError
    world.step(1, facts(N1))
    with pytest.raises(TunnelError):
        for _ in range(100):
            world.step(1, facts(N1))
    assert world.now - begin > tunnel.SETTLE
    assert world.are_open == 0


def test_a_service_that_stays_silent_is_gone(world: World) -> None:
    world.step(0, facts(N1))
    world.wrong = "another service responds"
    world.step(tunnel.PROBE - 1, facts(N1))
    assert world.tunnel.open is not None
    assert world.tunnel.open.misses == 0, "not before it is due"
    world.step(1, facts(N1))
    world.wrong = ""
    world.step(tunnel.PROBE, facts(N1))
    world.wrong = "another service responds"
    world.step(tunnel.PROBE, facts(N1))
    world.step(tunnel.PROBE, facts(N1))
    with pytest.raises(ServiceGoneError, match="dashboard does not respond: another service"):
        world.step(tunnel.PROBE, facts(N1))


def test_the_port_stays_and_a_taken_one_is_told(world: World) -> None:
    world.step(0, facts(N1))
    port = world.opened[0][0]
    world.taken = {port}
    world.routes[-1].lost = True
    world.step(1, facts(N1))
    assert world.opened[1][0] == port + 1
    assert f"Another program is using port {port}. The tunnel now uses port {port + 1}." in world.said
    world.tunnel = world.make(port=port)
    with pytest.raises(HpcmlError, match=f"Port {port} of this laptop is in use"):
        world.step(0, facts(N1))


def test_the_time_limit_is_told_once_for_each_step(world: World) -> None:
    world.step(0, facts(N1))
    for left in (890.0, 880.0, 290.0, 50.0, 40.0):
        world.step(1, facts(N1, ends=time.time() + left))
    said = [f"The run reaches its time limit in {minutes} min." for minutes in (15, 5, 1)]
    assert [text for text in world.said if "time limit" in text] == said


def test_a_lost_link_is_made_again_at_growing_distances(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[State] = []

    def follow(connection: Connection) -> None:
        states.append(world.tunnel.phase.state)
        if len(states) == 1:
            world.tunnel.step(facts(N1))
            world.alive, world.login_fails = False, 4
            world.tunnel._lose(connection)
            assert (world.tunnel.phase.state, world.are_open) == (State.LOST, 0)
            assert world.tunnel.phase.deadline == world.now + 600
        elif len(states) == 2:
            world.tunnel._lose(connection)
        else:
            world.tunnel.step(facts(state="COMPLETED"))

    begin = world.now
    monkeypatch.setattr(world.tunnel, "_follow", follow)
    world.tunnel.run()
    assert 0.8 * 30 <= world.now - begin <= 1.2 * 30, "2 + 4 + 8 + 16 s"
    assert states == [State.WAITING] * 3
    links = [text for text in world.said if "connection" in text.lower()]
    assert links == [says("The connection to cluster was lost"), "The connection to the cluster is open again.",
                     says("The connection to cluster was lost")]  # fmt: skip


def test_a_lost_cluster_is_given_up_at_the_deadline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(connection: Connection) -> None:
        world.alive, world.login_fails = False, 10**6
        world.tunnel._lose(connection)

    monkeypatch.setattr(world.tunnel, "_follow", follow)
    begin = world.now
    with pytest.raises(LinkError, match=r"could not reach .* for 600 s"):
        world.tunnel.run()
    assert 600 <= world.now - begin <= 600 + 1.2 * tunnel.LONGEST_DELAY


def test_a_run_of_this_machine_takes_the_route_without_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / RUN
    directory.mkdir()
    said: list[str] = []
    opened: list[str] = []
    wrong = [""]
    bridges: list[int] = []

    class Bridge:
        def __init__(self, port: int, _: str) -> None:
            bridges.append(port)

        def close(self) -> None:
            bridges.pop()

    def feed(run: directories.Run, step: Callable[[RunFacts], None], service: str, patience: float) -> None:
        assert (run.id, service, patience) == (RUN, "", 600.0)
        step(facts(N1))
        assert len(bridges) == 1
        step(facts())
        assert not bridges
        step(facts(state="COMPLETED", message="it succeeded"))

    monkeypatch.setattr(routes, "Bridge", Bridge)
    monkeypatch.setattr(routes, "look", lambda *_: wrong[0])
    monkeypatch.setattr(tunnel_server, "feed", feed)
    run = directories.load(directory)
    Tunnel(run, TunnelRequest(RUN), said.append, lambda *words: opened.append(words[3])).run()
    assert (opened, said) == (["local"], [f"{RUN} has ended: it succeeded."])
    wrong[0] = "another service responds"
    with pytest.raises(ServiceGoneError, match="The dashboard does not respond: another"):
        Tunnel(run, TunnelRequest(RUN), said.append, lambda *_: None).run()
    assert not bridges


def test_a_page_with_the_token_goes_with_the_tunnel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(Path(address.removeprefix("file://")).read_text())
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    shown = command._Shown(Namespace(json=False, open=True, service="dashboard"), tmp_path)

    class Kept:
        def run(self) -> None:
            shown.show(8787, N1, "s3cret", "local")
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    assert command._until_its_end(Kept(), shown, str) == 130  # type: ignore[arg-type]
    assert "token=s3cret" in opened[0]
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr()
    assert printed.out == "http://127.0.0.1:8787/status\n", "others may read a file"
    assert "s3cret" not in printed.err


def test_the_line_that_opens_it_again_has_the_same_options() -> None:
    typed = Namespace(service="jupyter", port="9000", route="", open=True)
    words = f": hpcml --host login tunnel --service jupyter --port 9000 --open {RUN}"
    assert command._again(typed, RUN, "login").endswith(words)
