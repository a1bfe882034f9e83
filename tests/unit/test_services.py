"""Services of a run: their names, the requests for them, and the bridge that reaches nobody but the user's program."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import script_api, services, socket_relay
from hpcml.errors import NotFoundError, ServiceGoneError, UsageError
from hpcml.node import agent, shared_files
from hpcml.node import services as node_side
from hpcml.paths import RunPaths
from hpcml.remote import routes, tunnel_server, tunnel_target
from hpcml.remote.answers import Service
from hpcml.request.option import services as given_services
from hpcml.runs import directories, status
from hpcml.services import Condition, Found, Target, Wanted
from tests.looks import free_port
from tests.said import Says, in_order

ANOTHER = 65534  # uid of another account


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "target"), [
    ("6006", Target(6006)), ("22@n2", Target(22, "n2")), ("80@a.b-c", Target(80, "a.b-c")), ("6006@rank:3", Target(6006, rank=3)),
])  # fmt: skip
def test_a_port_is_the_name_of_its_service(text: str, target: Target) -> None:
    assert Target.of(text) == target == Target.named(text)
    assert Target.named("board") is None


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "06006", "6006@", "6006@rank:", "6006@-x", "6006@a b", "6006@a;b", "６００６", "6006\n"])  # fmt: skip
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        Target.of(text)
    assert (raised.value.place, raised.value.exit_status) == ("--to", 64)


@pytest.mark.parametrize("text", ["x", "=1", "a=0", "a=65536", "a=b", "1a=1", "dashboard=80", "a.b=1", "a/b=1", "../x=1", f"{'a' * 41}=1"])  # fmt: skip
def test_what_is_no_service_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        given_services([text], "--service")


def test_each_service_of_a_submission_has_a_name_of_its_own() -> None:
    assert given_services(["a=1", "b=1"], "--service") == ("a=1", "b=1")
    with pytest.raises(UsageError, match="Two services have the name a"):
        given_services(["a=1", "a=2"], "--service")


# -- the script ------------------------------------------------------------------------------------------------------


def test_a_script_names_a_service_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_api.run.service("outside", port=1)  # nothing happens
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCML_NODE", "n7")
    script_api.run.service("board", port=6006, ready="/health")
    path = RunPaths(tmp_path).attempt(0).wanted / "board.json"
    assert services.Wanted(**json.loads(path.read_text())) == Wanted("board", "n7", 6006, "", "/health")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("wrong", [
    {"name": "a/b", "port": 1}, {"name": "a"}, {"name": "a", "port": 1, "socket": "/s"}, {"name": "a", "port": 70000},
    {"name": "a", "port": True}, {"name": "a", "port": "80"}, {"name": "a", "socket": "s"}, {"name": "a", "port": 1, "ready": "health"},
    {"name": "a", "port": 1, "ready": "/a\r\nHost: b"}, {"name": "a", "socket": f"/{'s' * 107}"},
])  # fmt: skip
def test_a_script_s_wrong_service_is_an_error_also_outside_a_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hpcml\.run\.service\(\)"):
        script_api.run.service(**wrong)


# -- the supervisor --------------------------------------------------------------------------------------------------


def test_the_supervisor_reads_each_request_once_and_survives_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_side, "EVERY", 0.0)
    attempt = RunPaths(tmp_path).attempt(0)
    attempt.directory.mkdir(parents=True)
    context: Any = SimpleNamespace(
        attempt=attempt, node_names=("n1", "n2"), settings=SimpleNamespace(services=("a=1",))
    )
    requests = node_side.Requests(context)
    assert requests.look() == [Wanted("a", "n1", 1)]
    assert requests.look() == []
    services.ask(attempt.wanted, Wanted("b", "n2", 2))
    (attempt.wanted / "c.json").write_text("{")
    (attempt.wanted / "d.json").write_text("[" * 100_000)
    (attempt.wanted / "e.json").mkdir()
    os.mkfifo(attempt.wanted / "f.json")  # to read one would wait without end
    assert requests.look() == [Wanted("b", "n2", 2)]
    assert requests.look() == []
    services.ask(attempt.wanted, Wanted("b", "n1", 2))
    assert requests.look() == [Wanted("b", "n1", 2)]
    assert capsys.readouterr().err.count("cannot be read") == 4
    (attempt.wanted / "b.json").unlink()
    (attempt.wanted / "b.json").mkdir()
    assert [requests.look() for _ in range(3)] == [[]] * 3
    assert capsys.readouterr().err.count("cannot be read") == 1


def test_a_run_has_so_many_services_and_its_log_says_that_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a process, which looks at its port again and again."""
    monkeypatch.setattr(node_side, "EVERY", 0.0)
    attempt = RunPaths(tmp_path).attempt(0)
    attempt.directory.mkdir(parents=True)
    context: Any = SimpleNamespace(attempt=attempt, node_names=("n1",), settings=SimpleNamespace(services=()))
    requests = node_side.Requests(context)
    services.ask(attempt.wanted, Wanted("z", "n1", 1))
    assert requests.look() == [Wanted("z", "n1", 1)]
    for number in range(node_side.MOST + 20):
        services.ask(attempt.wanted, Wanted(f"s{number}", "n1", 1))
    assert len(requests.look()) == node_side.MOST - 1
    services.ask(attempt.wanted, Wanted("z", "n1", 2))
    assert requests.look() == [Wanted("z", "n1", 2)]
    assert capsys.readouterr().err.count(f"serves {node_side.MOST} of them") == 1


def test_the_supervisor_looks_for_requests_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks in each tick: the folder may be on a file system that all users share."""
    looks = list[Path]()

    def listed(folder: Path) -> set[str]:
        looks.append(folder)
        return set()

    monkeypatch.setattr(shared_files, "listed", listed)
    context: Any = SimpleNamespace(
        attempt=RunPaths(tmp_path).attempt(0), node_names=("n1",), settings=SimpleNamespace(services=())
    )
    requests = node_side.Requests(context)
    monkeypatch.setattr(node_side, "EVERY", 600.0)
    assert [requests.look() for _ in range(5)] == [[]] * 5
    assert len(looks) == 1


# -- the agent -------------------------------------------------------------------------------------------------------


def test_only_the_agent_of_the_node_has_a_bridge_and_the_newest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, forked = list[int](), iter((7, 8))
    monkeypatch.setattr(agent, "fork", lambda _: next(forked))
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    context = SimpleNamespace(node="n1", socket_room=70, scratch=lambda **_: str(tmp_path))
    node: Any = SimpleNamespace(context=context, bridges={}, folder=None)
    for wanted, bridges_now in (
        (Wanted("a", "n2", 80), {}),
        (Wanted("a", "n1", 80), {7: Wanted("a", "n1", 80)}),
        (Wanted("a", "n1", 80), {7: Wanted("a", "n1", 80)}),
        (Wanted("a", "n1", 81), {8: Wanted("a", "n1", 81)}),
        (Wanted("a", "n2", 81), {}),
    ):
        agent._bridge(node, wanted)
        assert node.bridges == bridges_now
    assert killed == [7, 8]
    folder = node.folder.path
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    node.folder.remove()


# -- who listens -----------------------------------------------------------------------------------------------------

REST = "00000000:0000 {} 00000000:00000000 00:00000000 00000000 {} 0 {} 1 0\n"
TABLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_who_listens_at_a_port_on_any_address(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TABLE + "".join(f"   0: {where} " + REST.format(*more) for where, more in (
        ("0100007F:1776", ("0A", 1000, 11)), ("00000000:1776", ("0A", 7, 12)), ("0200020A:1776", ("0A", 8, 13)),
        ("0100007F:1776", ("01", 9, 14)), ("0100007F:1777", ("0A", 9, 15)))))  # fmt: skip
    assert socket_relay.listeners(6006, tmp_path) == [
        ("127.0.0.1", 1000, "11", False), ("127.0.0.1", 7, "12", True), ("10.2.0.2", 8, "13", True)]  # fmt: skip
    wide = (
        "0000000000000000FFFF00000100007F:1776",
        "00000000000000000000000000000000:1776",
        "00000000000000000000000001000000:1776",
    )
    (tmp_path / "tcp6").write_text(TABLE + "".join(f"   0: {where} " + REST.format("0A", 5, 20) for where in wide))
    assert [one.address for one in socket_relay.listeners(6006, tmp_path)][3:] == ["::ffff:127.0.0.1", "::1", "::1"]
    assert [one.is_open for one in socket_relay.listeners(6006, tmp_path)][3:] == [False, True, False]


class Page(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        self.end_headers()
        self.wfile.write(b"mine")

    def log_message(self, *words: object) -> None:
        pass


@contextlib.contextmanager
def serving(port: int) -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def bridge_to(wanted: Wanted, tmp_path: Path) -> node_side.Bridge:
    bridge = node_side.Bridge(wanted, tmp_path / "s")
    threading.Thread(target=bridge.accept, daemon=True).start()
    return bridge


def asked(tmp_path: Path, page: str = "/") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tmp_path / "s"))
        client.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                answer += piece
        return answer


def test_a_bridge_leads_to_the_user_s_program_and_says_what_it_finds(tmp_path: Path) -> None:
    port = free_port()
    bridge = bridge_to(Wanted("board", "n1", port, "", "/health"), tmp_path)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert bridge.look() == Found(Condition.ABSENT)
    assert b"502" in asked(tmp_path)
    assert f"no program listens on port {port} on n1".encode() in asked(tmp_path)
    with serving(port):
        Page.status = 503
        assert bridge.look() == Found(Condition.SILENT, why="HTTP status 503")
        Page.status = 200
        assert bridge.look() == Found()
        assert asked(tmp_path).endswith(b"mine")
        identity = json.loads(asked(tmp_path, f"/{bridge.identity}").rpartition(b"\r\n")[2])
        assert identity == {"identity": bridge.identity, "wrong": ""}
    assert bridge.look() == Found(Condition.ABSENT)


def test_a_program_that_speaks_first_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_side, "FIRST", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))

    def speak() -> None:
        with listener.accept()[0] as client:
            client.sendall(b"220 ready\r\n")

    threading.Thread(target=speak, daemon=True).start()
    bridge_to(Wanted("mail", "n1", listener.getsockname()[1]), tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tmp_path / "s"))
        assert client.recv(64) == b"220 ready\r\n"
    listener.close()


@contextlib.contextmanager
def another_s_listener(port: int) -> Iterator[None]:
    """Another account listens, and answers "evil"."""
    child = os.fork()
    if child == 0:
        os.setuid(ANOTHER)
        while True:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as listener:
                while True:
                    listener.accept()[0].sendall(b"evil")
    try:
        until = time.monotonic() + 20
        while not any(one.uid == ANOTHER for one in socket_relay.listeners(port)) and time.monotonic() < until:
            time.sleep(0.001)
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_account_s_program_is_never_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    bridge = bridge_to(Wanted("board", "n1", port), tmp_path)
    with another_s_listener(port):
        found = bridge.look()
        assert (found.condition, found.account) == (Condition.FOREIGN, "nobody")
        assert bridge.connect() == (None, found)
        assert b"account nobody listens" in asked(tmp_path)
        monkeypatch.setattr(node_side, "unknown_users", lambda: {ANOTHER})
        assert b"a program of another account listens" in asked(tmp_path)
        assert b"another account" in asked(tmp_path, f"/{bridge.identity}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_account_s_program_that_takes_the_port_meanwhile_is_never_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's program ends after the look at it, and before the connection, which is then to the other's."""
    connect, own = socket.create_connection, socket.create_server(("127.0.0.1", 0))
    port, reached = own.getsockname()[1], list[bytes]()
    bridge = node_side.Bridge(Wanted("board", "n1", port), tmp_path / "s")
    with contextlib.ExitStack() as opened:

        def late(*words: Any) -> socket.socket:
            own.close()
            if not reached:
                opened.enter_context(another_s_listener(port))
            program = connect(*words)
            reached.append(program.recv(4))
            return program

        monkeypatch.setattr(socket, "create_connection", late)
        program, found = bridge.connect()
    bridge.listener.close()
    assert (program, found.condition, reached) == (None, Condition.FOREIGN, [b"evil"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_account_s_unix_socket_is_never_reached(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        with contextlib.suppress(OSError):
            folder.chmod(folder.stat().st_mode | 0o011)
    ready, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(ANOTHER)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            listener.listen()
            os.write(writer, b"x")
            while True:
                listener.accept()[0].close()
    try:
        assert os.read(ready, 1) == b"x"
        bridge = node_side.Bridge(Wanted("board", "n1", 0, str(place)), tmp_path / "s")
        assert bridge.look() == Found(Condition.FOREIGN, "nobody")
        assert bridge.connect()[0] is None
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert bridge.look().condition is Condition.ABSENT
    with socket.socket(socket.AF_UNIX) as own:
        place.unlink()
        own.bind(str(place))
        own.listen()
        assert bridge.look() == Found()
    bridge.listener.close()


# -- what a tunnel waits for -----------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> directories.Run:
    directory = tmp_path / "a-20260101-000000-0000"
    directory.mkdir()
    inside = {"job": {"nodes": 2}, "workers": {"per_node": 2}, "services": ["board=6006"]}
    (directory / "plan.json").write_text(json.dumps({"site": "lab", "inside": {"kind": "ranks", **inside}}))
    (directory / "submission.json").write_text(json.dumps({"job": ""}))
    return directories.load(directory)


def running(run: directories.Run) -> status.Status:
    return status.Status.of(run.id, phase="running", nodes=("n1", "n2"))


def record(run: directories.Run, name: str, found: Found, port: int = 6006) -> None:
    path = run.paths.attempt(0).service_of(name)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    page = {"path": "/", "probe": "/x", "wanted": Wanted(name, "n1", port)._asdict(), "found": found._asdict()}
    shared_files.write_service(path, "n1", Path("/tmp/s"), "me", **page)


def test_the_service_of_a_tunnel_for_which_nobody_names_one(run: directories.Run) -> None:
    assert tunnel_target.Sought(run, "", 0.0).name == "board"
    with pytest.raises(NotFoundError, match="A run of kind ranks has no dashboard"):
        tunnel_target.Sought(run, "dashboard", 0.0)
    for kind, form, name in (("dask", "jupyter", "jupyter"), ("dask", "script", "dashboard")):
        run.paths.plan.write_text(json.dumps({"inside": {"kind": kind, "code": {"form": form}}}))
        assert tunnel_target.Sought(run, "", 0.0).name == name
    run.paths.plan.write_text(json.dumps({"inside": {"kind": "batch"}}))
    with pytest.raises(UsageError, match=in_order("batch", "named no service")):
        tunnel_target.Sought(run, "", 0.0)
    record(run, "mine", Found())
    assert tunnel_target.Sought(run, "", 0.0).name == "mine"


def test_a_dashboard_that_waits_for_the_script_s_first_client_is_said(run: directories.Run) -> None:
    run.paths.plan.write_text(json.dumps({"inside": {"kind": "dask"}}))
    for late, has_cluster, phase, waits in (
        (True, False, "running", True), (True, True, "running", False), (False, False, "running", False), (True, False, "starting", False),
    ):  # fmt: skip
        now = status.Status.of(run.id, phase=phase, nodes=("n1",), has_cluster=has_cluster)
        now = now._replace(planned=now.planned._replace(late=late))
        assert bool(tunnel_target.Sought(run, "dashboard", 0.0).look(now)) == waits
        assert ("Dask client" in tunnel_server.facts(run, now, tunnel_target.Sought(run, "", 0.0)).message) == waits


def test_a_port_is_asked_for_on_the_node_of_its_rank(run: directories.Run) -> None:
    for name, node in (("80", "n1"), ("80@n2", "n2"), ("80@rank:1", "n1"), ("80@rank:2", "n2")):
        assert "checks the node" in tunnel_target.Sought(run, name, 9.0).look(running(run))
        wanted = json.loads((run.paths.attempt(0).wanted / f"{name}.json").read_text())
        assert (wanted["node"], wanted["port"]) == (node, 80)
    again = status.Status.of(run.id, phase="running", nodes=("n1", "n2"), attempt=1)
    sought = tunnel_target.Sought(run, "81", 9.0)
    for state in (running(run), again):
        sought.look(state)
    assert all((run.paths.attempt(number).wanted / "81.json").exists() for number in (0, 1))
    for name in ("80@n3", "80@rank:4"):
        with pytest.raises(UsageError, match="The run has no"):
            tunnel_target.Sought(run, name, 9.0).look(running(run))


def test_a_service_that_is_not_ready_is_said_and_given_up(run: directories.Run) -> None:
    sought = tunnel_target.Sought(run, "board", 0.05)
    assert not sought.look(status.Status.of(run.id, phase="queued"))
    record(run, "board", Found(Condition.ABSENT))
    clause = "no program listens on port 6006 on n1"
    assert sought.look(running(run)) == clause
    assert tunnel_server.services(run) == {}
    until = time.monotonic() + 20
    with pytest.raises(ServiceGoneError, match=f"not ready within 0.05 s: {clause}"):
        while time.monotonic() < until:
            sought.look(running(run))
    record(run, "board", Found(Condition.FOREIGN, "mallory"))
    with pytest.raises(ServiceGoneError, match=in_order("mallory", "port 6006 on n1")):
        tunnel_target.Sought(run, "board", 600.0).look(running(run))
    record(run, "board", Found())
    assert sought.look(running(run)) == ""
    ((name, service),) = tunnel_server.services(run).items()
    assert (name, service.note.split(" can ")[0]) == ("board", "Every account with processes on n1")
    record(run, "board", Found(is_open=True))
    said = Says("Everyone who reaches n1 over the network", "TensorBoard: --host localhost", "vLLM", "debugpy")
    assert tunnel_server.services(run)["board"].note == said


def test_a_tunnel_hears_through_the_bridge_that_the_program_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("n1", "/tmp/s", "/", "me", "/me")
    for wrong, said in (("", ""), ("no program listens", "no program listens"), (7, "")):
        answer = json.dumps({"identity": "me", "wrong": wrong}).encode()
        monkeypatch.setattr(routes, "get", lambda *_, answer=answer: (200, answer))
        assert routes.look(1, service) == said
