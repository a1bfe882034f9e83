"""A tunnel without ssh: to a run of this very machine, whose sockets lie here, for this user's programs alone."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcml import files
from hpcml.errors import ServiceGoneError
from hpcml.remote.answers import RunFacts, Service
from hpcml.remote.tunnel import server, service_port
from hpcml.remote.tunnel.client import Opened, port_taken, tell_end
from hpcml.runs import directories

TABLE = Path("/proc/net/tcp")  # Linux' list of connections, with whose they are (proc_pid_net(5))
_STATE, _OWNER, _INODE = 3, 7, 9  # its columns; a socket that its program has closed is listed with uid 0 and inode 0
_ESTABLISHED = "01"


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

    -1 where the system lists its connections and this one is not among them, or no program has it any more.
    """
    wanted = [
        f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}" for host, port in (client, server[:2])
    ]
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        if fields[1:3] == wanted:
            return int(fields[_OWNER]) if fields[_STATE] == _ESTABLISHED or fields[_INODE] != "0" else -1
    return -1


class _Local:
    """The way to one service of a run of this machine."""

    def __init__(self, run: directories.Run, name: str, port: int, say: Callable[[str], None], opened: Opened) -> None:
        self.run, self.name, self.port, self.say, self.opened = run, name, port, say, opened
        self.service: Service | None = None
        self.bridge: Bridge | None = None
        self.shown = ""
        self.last: RunFacts | None = None

    def follow(self, facts: RunFacts) -> None:
        """Have the port lead to the service as it is now."""
        self.last, service = facts, facts.services.get(self.name)
        if service is None and self.bridge is None and not facts.over and facts.message != self.shown:
            self.shown = facts.message
            self.say(f"{facts.run} is {facts.state}: {facts.message}.")
        if service != self.service:
            self.close()
            self.service = service
            if service:
                self._open(service)

    def _open(self, service: Service) -> None:
        token = ""
        if service.token_file:
            with directories.storage(Path(service.token_file)):
                token = files.read(Path(service.token_file), 4096).decode(errors="replace").strip()
        first = self.port or service_port.port_of("", self.run.id, self.name)
        for number in [first] if self.port else service_port.candidates(first):
            try:
                self.bridge = Bridge(number, service.socket)
            except OSError:
                continue
            if wrong := service_port.look(number, service, token):
                hint = f"Look at it: hpcml status {self.run.id}."
                raise ServiceGoneError(f"The {self.name} does not answer: {wrong}", place=service.socket, hint=hint)
            self.opened(number, service, token, "local")
            return
        raise port_taken(first, chosen=bool(self.port))

    def close(self) -> None:
        if self.bridge is not None:
            self.bridge.close()
            self.bridge = None


def keep(
    run: directories.Run,
    name: str,
    port: int,
    say: Callable[[str], None],
    opened: Opened,
) -> None:
    """Have a port of this machine lead to a service of the run, until the run has ended.

    Parameters
    ----------
    port
        The port that the user chose; 0 for the one that the run's service always has, or the next that is free.
    opened
        Called when the way is open; its route is "local".

    Raises
    ------
    HpcmlError
        If no port is free, the service does not answer, or the run did not end well.
    """
    local = _Local(run, name, port, say, opened)
    try:
        server.feed(run, local.follow)
    finally:
        local.close()
    if local.last is not None:
        tell_end(local.last, say)
