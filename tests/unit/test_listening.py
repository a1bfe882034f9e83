"""hpcml/listeners.py: who may connect to what its functions open."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml import listeners


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_unix_socket_is_the_user_s_alone_with_any_umask(tmp_path: Path) -> None:
    with listeners.listen_unix(listeners.DASHBOARD, tmp_path / "socket") as listener:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(listener.getsockname())


def test_an_http_server_s_socket_is_the_user_s_alone_with_any_umask(tmp_path: Path) -> None:
    class Server:
        def add_socket(self, listener: socket.socket) -> None:
            self.listener = listener

    server = Server()
    listeners.serve_at(listeners.DASHBOARD, server, tmp_path / "socket")
    with server.listener:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600


def test_a_reserved_port_refuses_connections_until_rank_0_listens_there() -> None:
    with listeners.reserve_tcp(listeners.MASTER_PORT) as holder:
        place = ("127.0.0.1", holder.getsockname()[1])
        with socket.socket() as connection:
            assert connection.connect_ex(place) != 0
        with pytest.raises(OSError, match="in use"), socket.socket() as another:
            another.bind(place)
        with socket.create_server(place), socket.create_connection(place):
            pass
