"""What answers at the laptop's end of a tunnel is looked at, whatever it says."""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml.errors import HostKeyError, ServiceGoneError, TunnelError
from hpcml.remote import routes
from hpcml.remote.answers import Service
from hpcml.remote.login_call import Call
from hpcml.remote.ssh import Connection
from tests.said import says

SERVICE = Service("n1", "/tmp/s", "/status", "Scheduler-1")


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: bytes = self.server.said  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.mark.parametrize("said", [
    b"[" * 100_000, b"\xff\xfe", b"", b"5", b'["Scheduler-1"]', b'{"id": ["Scheduler-1"]}',
])  # fmt: skip
def test_what_is_no_identity_is_another_service(server: http.server.ThreadingHTTPServer, said: bytes) -> None:
    server.said = said  # type: ignore[attr-defined]
    assert routes.look(server.server_address[1], SERVICE) in ("another program responds", "another service responds")
    server.said = b'{"id": "Scheduler-1"}'  # type: ignore[attr-defined]
    assert routes.look(server.server_address[1], SERVICE) == ""


def test_folders_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """A key or a socket of a tunnel that was killed goes, also where another process has its pid by now."""
    mine = routes.process_folder(tmp_path, "session-")
    assert mine.stat().st_mode & 0o777 == 0o700
    for name, owner, age in (
        ("session-gone", "999999999 1", 0.0), ("session-reused", f"{os.getpid()} 1", 0.0), ("session-old", "", 7200.0),
        ("session-new", "", 0.0), ("session-odd", "x", 7200.0), ("other-gone", "999999999 1", 0.0),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        if owner:
            (folder / "owner").write_text(owner)
        os.utime(folder, (time.time() - age, time.time() - age))
    (tmp_path / "session-link").symlink_to(tmp_path / "session-new")
    second = routes.process_folder(tmp_path, "session-")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine.name, second.name, "session-new", "session-odd", "session-link", "other-gone"}


def route(tmp_path: Path, name: str, *, said: str = "", logged: str = "", code: int | None = 255) -> routes.SshRoute:
    """A route whose process has said something and ended, over a connection that has logged something meanwhile."""
    connection = Connection.__new__(Connection)
    connection.host, connection.log = "lab", tmp_path / "log"
    connection.alive = lambda: True  # type: ignore[method-assign]
    connection.log.write_text("channel 9: open failed: administratively prohibited: an hour ago\n")
    call = Call.__new__(Call)
    call.held, call._kept = b"", said
    call.child = SimpleNamespace(code=code, wait=lambda _: code, stop=lambda: None)  # type: ignore[assignment]
    made = routes.SshRoute(name, connection, SERVICE, call, tmp_path / "control")
    with connection.log.open("a") as log:
        log.write(logged)
    return made


STDIO = (
    "Stdio forwarding request failed: Session open refused by peer\nkex_exchange_identification: Connection closed by remote host\n"
    "Connection closed by UNKNOWN port 65535\n"
)
CLOSED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535\n"


@pytest.mark.parametrize(("name", "said", "logged", "message"), [
    ("direct", STDIO, "channel 2: open failed: administratively prohibited: open failed\n", says("lab forbids ssh forwarding")),
    ("direct", STDIO, "channel 2: open failed: connect failed: Connection refused\n", "lab does not reach n1: connect failed: Connection refused"),
    ("direct", STDIO, "", says("ssh forwarding, or does not reach n1")),
    ("direct", "me@n1: Permission denied (publickey).\n", "", "me@n1: Permission denied (publickey)."),
    ("twohop", "hpcml: note: options may differ.\nhpcml: The run's dashboard is not running now (x)\n  It has: jupyter.\n", "", "The run's dashboard is not running now (x)"),
    ("twohop", "mux_client_request_session: session request failed: Session open refused by peer\n", "", says("lab allows no further session on this")),
    ("srun", f"hpcml: there is no sshd on n1\n{CLOSED}", "", "there is no sshd on n1"),
    ("srun", "", "", "no answer in time"),
])  # fmt: skip
def test_a_route_that_does_not_open_names_the_host_that_refused(
    tmp_path: Path, name: str, said: str, logged: str, message: str
) -> None:
    with pytest.raises(TunnelError) as error:
        routes._fail(route(tmp_path, name, said=said, logged=logged))
    assert error.value.message == message


def test_a_node_s_changed_key_and_a_missing_socket_have_their_own_errors(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="key of n1"):
        routes._fail(route(tmp_path, "direct", said="@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @"))
    with pytest.raises(ServiceGoneError, match="the socket is not on n1"):
        routes._fail(route(tmp_path, "srun", said=f"hpcml: the socket is not on n1\n{CLOSED}"))


def test_a_second_hop_that_ends_is_not_the_login_node_s_refusal(tmp_path: Path) -> None:
    closed = "the connection is closed immediately (ConnectionResetError)"
    said = "hpcml: ssh from login to n1 ended: Connection to n1 closed by remote host. (two hops)\n"
    ended = route(tmp_path, "twohop", said=said, code=77).failure(closed)
    assert ended.message == "ssh from login to n1 ended: Connection to n1 closed by remote host. (two hops)"
    assert "lab forbids ssh forwarding" in route(tmp_path, "twohop", code=None).failure(closed).message
