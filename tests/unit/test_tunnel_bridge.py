"""The way to a service of a run on this machine: bytes pass both ways, and only this user's connections are let in."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.remote.tunnel import bridge


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
            with inner:
                while data := inner.recv(65536):
                    inner.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_bytes_pass_both_ways(echo: str) -> None:
    way = bridge.Bridge(free_port(), echo)
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


def test_a_taken_port_is_an_error(echo: str) -> None:
    first = bridge.Bridge(free_port(), echo)
    with pytest.raises(OSError, match="in use"):
        bridge.Bridge(first.port, echo)
    first.close()


def test_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert bridge.owner(client.getsockname(), listener.getsockname()) == os.getuid()


def test_connections_of_others_and_of_nobody_known(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:C350 0100007F:4E20 01 00000000:00000000 00:00000000 00000000  1234        0 1 1 0\n"
    )
    assert bridge.owner(("127.0.0.1", 50000), ("127.0.0.1", 20000), table) == 1234
    assert bridge.owner(("127.0.0.1", 50001), ("127.0.0.1", 20000), table) == -1
    assert bridge.owner(("127.0.0.1", 50000), ("127.0.0.1", 20000), tmp_path / "none") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_s_program_is_not_let_in(echo: str) -> None:
    way = bridge.Bridge(free_port(), echo)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        with socket.create_connection(("127.0.0.1", way.port), 10) as client:
            try:
                client.sendall(b"hello")
                os._exit(0 if client.recv(5) == b"" else 1)
            except OSError:
                os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The test's own uid is root's here; somebody who is neither root nor the owner is what was refused.
    with socket.create_connection(("127.0.0.1", way.port), 10) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
    way.close()
