"""The bridge to a service of the run: a unix socket of the user's on this node that leads to a port of a program.

A tunnel ends at the bridge. For each connection the bridge looks whose program listens, so that no other account's
program is reached in the place of the user's. The bridge itself answers a tunnel that asks which service this is.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from hpcml import listeners, socket_relay, typed_json
from hpcml.node import process_helpers, shared_files
from hpcml.node.context import Context
from hpcml.safe_files import account, parsed, read, unknown_users
from hpcml.services import Condition, Found, Wanted, declared

NAME = "hpcml-service"  # of the bridge's process
MOST = 100  # services that a run's scripts can name: each has a process
EVERY = 1.0  # seconds between two looks, of the supervisor for requests and of a bridge until its service is ready
READY_EVERY = 5.0  # seconds between two looks of a bridge at a service that is ready
FIRST = 1.0  # seconds for a client's first bytes: the program at the port sees no connection of who asks the bridge
TRIES = 3  # for a program that listens anew at the same moment
CONNECT = 5.0  # seconds for a connection to the program
ANSWER = 5.0  # seconds for the answer of the HTTP path
_HTTP = re.compile(rb"[A-Z]+ \S+ HTTP/1\.")


class Requests:
    """The services that are asked for, at the submission and in the attempt's folder, as the supervisor looks."""

    def __init__(self, context: Context) -> None:
        self.context, self.next_look = context, 0.0
        first = context.node_names[0]
        self.new = [Wanted(name, first, port) for name, port in map(declared, context.settings.services)]
        self.seen: dict[str, str] = {}  # by the name of a file, what is in it
        self.said = False  # whether the log says that there are too many

    def look(self) -> list[Wanted]:
        """Return the services that are newly asked for, or at another place than before."""
        new, self.new = self.new, []
        if time.monotonic() < self.next_look:
            return new
        self.next_look = time.monotonic() + EVERY
        folder = self.context.attempt.wanted
        if folder.name not in shared_files.listed(folder.parent):
            return new
        names = sorted(shared_files.listed(folder), key=lambda name: (name not in self.seen, name))
        if len(names) > MOST and not self.said:
            self.said = True
            print(f"hpcml: the run names {len(names)} services, and hpcml serves {MOST} of them.", file=sys.stderr)
        for name in names[:MOST]:
            try:
                text = read(folder / name).decode(errors="replace")
                if text != self.seen.get(name):
                    self.seen[name] = text
                    new.append(typed_json.read(Wanted, parsed(json.loads, text)))
            except (OSError, ValueError) as error:  # of the user's own doing
                if isinstance(error, OSError):
                    if self.seen.get(name) == str(error):
                        continue
                    self.seen[name] = str(error)
                place = folder / name
                print(f"hpcml: the request for a service in {place} cannot be read: {error}.", file=sys.stderr)
        return new


def serve(context: Context, wanted: Wanted, path: Path, agent: int) -> int:
    """In a fork of the agent: be the bridge to a service, with its socket at ``path``, until the agent ends."""
    process_helpers.end_with(agent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to every process; the service may still be of interest
    with contextlib.suppress(OSError):  # what ps and top show
        Path("/proc/self/comm").write_text(NAME)
    bridge = Bridge(wanted, path)
    threading.Thread(target=bridge.accept, daemon=True).start()
    record = context.attempt.service_of(wanted.name)
    page = {"path": "/", "probe": f"/{bridge.identity}", "wanted": wanted._asdict(), "since": 0.0}
    last: Found | None = None
    while True:
        now = bridge.look()
        if now != last:
            page |= {"found": now._asdict(), "since": time.time()}
            try:
                shared_files.write_service(record, context.node, path, bridge.identity, **page)
                last = now
            except OSError as error:  # a full disk, which the next look may find with room
                print(f"hpcml: {record} cannot be written: {error.strerror}.", file=sys.stderr, flush=True)
        time.sleep(READY_EVERY if now.condition is Condition.READY and last else EVERY)


class Bridge:
    """A unix socket that leads to the program at the place of a service."""

    def __init__(self, wanted: Wanted, path: Path) -> None:
        self.wanted = wanted
        self.identity = f"hpcml-service-{os.urandom(8).hex()}"
        self.listener = listeners.listen_unix(listeners.SERVICE, path)
        self.answered = False  # whether the HTTP path has answered since the program listens

    def accept(self) -> None:
        """Serve each connection in a thread of its own."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError as error:  # too many descriptors: those that are open may end
                print(f"hpcml: {self.wanted.name}: {error.strerror}.", file=sys.stderr, flush=True)
                time.sleep(EVERY)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(FIRST)
            try:
                first = client.recv(65536)
                if not first:
                    return
            except TimeoutError:  # the program speaks first
                first = b""
            client.settimeout(None)
            if first.startswith(f"GET /{self.identity} ".encode()):
                client.sendall(_http(200, json.dumps({"identity": self.identity, "wrong": self._wrong()})))
                return
            program, found = self.connect()
            if program is None:
                if _HTTP.match(first):
                    client.sendall(_http(502, f"hpcml: {found.clause(self.wanted)}\n"))
                return
            with program:
                program.sendall(first)
                socket_relay.pass_on(client, program)

    def _wrong(self) -> str:
        """Return the reason why the program is not reached, without a connection to it where that can be avoided."""
        return (self._listening() if self.wanted.port else self._peer()).clause(self.wanted)

    def look(self) -> Found:
        """Return the state of the service's place."""
        found = self._listening() if self.wanted.port else self._peer()
        if found.condition is not Condition.READY:
            self.answered = False
        elif self.wanted.ready and not self.answered:
            answer = self._answer()
            self.answered = answer.condition is Condition.READY
            return found if self.answered else answer
        return found

    def _listening(self) -> Found:
        """Return whose program listens at the port."""
        try:
            found = socket_relay.listeners(self.wanted.port)
        except OSError as error:
            return Found(Condition.ABSENT, why=f"{error.filename}: {error.strerror}")
        if own := [listener for listener in found if listener.uid == os.getuid()]:
            return Found(is_open=any(listener.is_open for listener in own))
        return _foreign(found[0].uid) if found else Found(Condition.ABSENT)

    def _peer(self) -> Found:
        program, found = self.connect()
        if program:
            program.close()
        return found

    def _answer(self) -> Found:
        """Ask the HTTP path."""
        program, found = self.connect()
        if program is None:
            return found
        status, connection = 0, http.client.HTTPConnection("localhost", self.wanted.port or None, timeout=ANSWER)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            program.settimeout(ANSWER)
            connection.sock = program
            connection.request("GET", self.wanted.ready)
            status = connection.getresponse().status
        program.close()
        why = f"HTTP status {status}" if status else ""
        return Found() if 0 < status < 400 else Found(Condition.SILENT, why=why)

    def connect(self) -> tuple[socket.socket | None, Found]:
        """Return a connection to a program of this user's; None where there is none, and what is there."""
        try:
            return self._to_port() if self.wanted.port else self._to_socket()
        except OSError as error:
            return None, Found(Condition.ABSENT, why=str(error.strerror or error))

    def _to_port(self) -> tuple[socket.socket | None, Found]:
        """Connect to the port.

        The socket that listened before listens after the connection too. No other account's socket can have its
        address meanwhile, so the connection is to this one.
        """
        for _ in range(TRIES):
            own = [listener for listener in socket_relay.listeners(self.wanted.port) if listener.uid == os.getuid()]
            if not own:
                break
            program = socket.create_connection((own[0].address, self.wanted.port), CONNECT)
            if own[0] in socket_relay.listeners(self.wanted.port):
                program.settimeout(None)
                return program, Found()
            program.close()
        found = self._listening()
        return None, Found(Condition.ABSENT) if found.condition is Condition.READY else found

    def _to_socket(self) -> tuple[socket.socket | None, Found]:
        program = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            program.settimeout(CONNECT)
            program.connect(self.wanted.socket)
            uid = socket_relay.peer(program)
            program.settimeout(None)
        except OSError:
            program.close()
            raise
        if uid != os.getuid():
            program.close()
            return None, _foreign(uid)
        return program, Found()


def _foreign(uid: int) -> Found:
    """Return the state for a program of another account that listens; in a user namespace all of them look like one."""
    return Found(Condition.FOREIGN, "" if uid in unknown_users() else account(uid))


def _http(status: int, text: str) -> bytes:
    """Return an answer of HTTP."""
    body = text.encode()
    head = f"HTTP/1.1 {status} {http.client.responses[status]}\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
