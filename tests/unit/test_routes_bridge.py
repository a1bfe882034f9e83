"""The way to a service of a run on this machine: bytes pass both ways, and only this user's connections are let in."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml import socket_relay
from hpcml.remote import routes
from tests.looks import free_port

_heard: list[bytes] = []  # the beginning of each piece that the service got


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[str]:
    """A service that sends back what it gets, until the other side stops sending."""
    path = str(tmp_path / "echo.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            with inner, contextlib.suppress(OSError):
                while data := inner.recv(65536):
                    _heard.append(data[:64])
                    inner.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_bytes_pass_both_ways(echo: str) -> None:
    way = routes.Bridge(free_port(), echo)
    sent = bytes(range(256)) * 8192  # 2 MiB of every byte
    got = b""
    with socket.create_connection(("127.0.0.1", way.port), 10) as client:

        def send() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        while data := client.recv(65536):
            got += data
        sender.join(10)
    way.close()
    assert got == sent
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", way.port), 10)


def test_connections_of_others_and_of_nobody_known(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:C350 0100007F:4E20 01 00000000:00000000 00:00000000 00000000  1234        0 1 1 0\n"
    )
    assert socket_relay.owner(("127.0.0.1", 50000), ("127.0.0.1", 20000), table) == 1234
    assert socket_relay.owner(("127.0.0.1", 50001), ("127.0.0.1", 20000), table) == -1
    for state, uid, inode, whose in (
        ("01", 0, 7, 0), ("04", 1234, 7, 1234),  # root's; one that its program has closed for writing
        ("04", 0, 0, -1), ("06", 0, 0, -1),  # closed, and anybody's
    ):  # fmt: skip
        row = f"   0: 0100007F:C350 0100007F:4E20 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1 0\n"
        table.write_text(f"head\n{row}")
        assert socket_relay.owner(("127.0.0.1", 50000), ("127.0.0.1", 20000), table) == whose, (state, inode)
    assert socket_relay.owner(("127.0.0.1", 50000), ("127.0.0.1", 20000), tmp_path / "none") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_s_program_is_not_let_in(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what it sent before it closed: then the system lists the connection as root's."""
    closed = threading.Event()
    verify = routes._Server.verify_request
    way = routes.Bridge(free_port(), echo)
    _heard.clear()

    def ask_as_another(question: bytes, *, wait: bool) -> None:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            answer = b""
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", way.port), 10) as client:
                client.sendall(question)
                answer = client.recv(5) if wait else b""
            os._exit(answer != b"")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    ask_as_another(b"hello", wait=True)
    monkeypatch.setattr(routes._Server, "verify_request", lambda *words: closed.wait(60) and verify(*words))
    for _ in range(3):
        ask_as_another(b"blind", wait=False)
    closed.set()
    # The test's own uid is root's here; somebody who is neither root nor the owner is what was refused.
    with socket.create_connection(("127.0.0.1", way.port), 10) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
    assert _heard == [b"hello"]
    way.close()
