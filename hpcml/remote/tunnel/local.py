"""A tunnel without ssh: to a run of this very machine, whose sockets lie here, for this user's programs alone."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcml import files
from hpcml.errors import UNAVAILABLE, HpcmlError, ServiceGoneError
from hpcml.remote.tunnel import probe
from hpcml.remote.tunnel import server as tunnel_remote
from hpcml.remote.tunnel.client import tell_end
from hpcml.runs import directories

TABLE = Path("/proc/net/tcp")  # Linux' list of connections, with whose they are (proc_pid_net(5))
_OWNER = 7  # its column with the uid


class Bridge:
    """A port of 127.0.0.1 that leads to a unix socket.

    On Linux only programs of this user (and root's) are let in: every user of the machine reaches the port, and Dask's
    dashboard has no password. Elsewhere the system does not say whose a connection is, and all are let in.

    Parameters
    ----------
    port
        The port; OSError is raised if it is taken.
    target
        The socket's path.
    """

    def __init__(self, port: int, target: str) -> None:
        self.port, self.target = port, target
        self.server = _Server(("127.0.0.1", port), _Handler)
        self.server.target = target
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Listen no more; connections that stand end with this process."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    target: str

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's signature
        return owner(client_address, self.server_address) in (None, 0, os.getuid())


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inner:
            inner.connect(self.server.target)
            back = threading.Thread(target=_copy, args=(inner, self.request), daemon=True)
            back.start()
            _copy(self.request, inner)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until one side has closed; then close the other for writing."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def owner(client: tuple[str, int], server: tuple[Any, ...], table: Path = TABLE) -> int | None:
    """Return the uid of the program at the other end of a connection of 127.0.0.1, None where the system does not say.

    -1 where the system lists its connections and this one is not among them.
    """
    wanted = [
        f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}" for host, port in (client, server[:2])
    ]
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return None
    found = [fields for line in lines if (fields := line.split())[1:3] == wanted]
    return int(found[0][_OWNER]) if found else -1


def keep(
    run: directories.Run,
    name: str,
    port: int,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    up: Callable[[int, dict[str, Any], str, str], None],
) -> None:
    """Have a port of this machine lead to a service of the run, until the run has ended.

    Parameters
    ----------
    port
        The port that the user chose; 0 for the one that the run's service always has, or the next that is free.
    up
        Called with the port, the service, its token and "local" when the way is open.

    Raises
    ------
    HpcmlError
        If no port is free, the service does not answer, or the run did not end well.
    """
    state: dict[str, Any] = {"served": None, "bridge": None, "shown": ""}

    def heed(facts: dict[str, Any]) -> None:
        service = facts["services"].get(name)
        if service is None and state["bridge"] is None and facts["words"] != state["shown"]:
            state["shown"] = facts["words"]
            say(f"{facts['run']} is {facts['state']}: {facts['words']}.")
        if service != state["served"]:
            _close(state)
            state["served"] = service
            if service:
                state["bridge"], token = _open(run, name, port, service)
                up(state["bridge"].port, service, token, "local")
        state["last"] = facts

    try:
        tunnel_remote.feed(run, environment, heed)
    finally:
        _close(state)
    tell_end(state["last"], say)


def _close(state: dict[str, Any]) -> None:
    if state["bridge"] is not None:
        state["bridge"].close()
        state["bridge"] = None


def _open(run: directories.Run, name: str, port: int, service: dict[str, Any]) -> tuple[Bridge, str]:
    token = ""
    if service.get("token_file"):
        with directories.storage(Path(service["token_file"])):
            token = files.read(Path(service["token_file"]), 4096).decode(errors="replace").strip()
    for number in _ports(run, name, port):
        try:
            bridge = Bridge(number, service["socket"])
        except OSError:
            continue
        if wrong := probe.look(number, service, token):
            bridge.close()
            words = f"The {name} does not answer: {wrong}"
            raise ServiceGoneError(words, place=service["socket"], hint=f"Look at it: hpcml status {run.id}.")
        return bridge, token
    hint = "Give another with --port." if port else "Give one with --port."
    raise HpcmlError(
        "The port is taken" if port else "Twenty ports are taken",
        place=f"127.0.0.1:{port or '20000…'}",
        hint=hint,
        status=UNAVAILABLE,
    )


def _ports(run: directories.Run, name: str, port: int) -> Iterator[int]:
    return iter([port] if port else probe.candidates(probe.port_of("", run.id, name)))
