"""The routes of a tunnel: from a port of this machine to the unix socket of a run's service.

Over ssh there are three; which one a site allows is found by trying. A run of this very machine needs no ssh. Each
route listens on a local port, is asked for the service's identity through that port, and is closed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import socketserver
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from hpcml import listeners, safe_files, socket_relay, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import HostKeyError, HpcmlError, ServiceGoneError, TunnelError
from hpcml.remote import answers, ssh
from hpcml.remote.answers import Relay, RunFacts, Service
from hpcml.remote.login_call import Call
from hpcml.remote.ssh import Connection, literal, proxy
from hpcml.runs import directories
from hpcml.sites.settings_layers import process_environment

MEANING = {
    "direct": "ssh through the login node to the compute node",
    "twohop": "two ssh connections that meet at a socket on the login node",
    "srun": "ssh to an sshd in a job step, through srun's input and output",
    "local": "no ssh is needed: the run is on this machine",
}
READY = {"direct": 20.0, "twohop": 25.0, "srun": 40.0}  # seconds until a route over ssh has to be open
ANSWER = 5.0  # seconds for an answer of the service
ABANDONED = 3600.0  # seconds after which a folder that names no process was left by one that was killed
_CLOSING = 1.0  # seconds for a route that carried nothing to say why
_FIRST_PORT, _PORTS, _PORTS_TRIED = 20000, 10000, 20


# -- the port, and who answers on it -------------------------------------------------------------------------------


def port_of(cluster: str, run: str, service: str) -> int:
    """Return the port that a run's service has on this machine, the same each time unless it is taken."""
    digest = hashlib.sha256("\0".join((cluster, run, service)).encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def candidates(port: int) -> list[int]:
    """Return the port and those that are tried if it is taken."""
    if port < _FIRST_PORT:
        return [port + step for step in range(_PORTS_TRIED)]
    return [_FIRST_PORT + (port - _FIRST_PORT + step) % _PORTS for step in range(_PORTS_TRIED)]


def is_free(port: int) -> bool:
    """Whether nobody listens on the port of 127.0.0.1."""
    try:
        listeners.try_tcp("127.0.0.1", port)
    except OSError:
        return False
    return True


def get(address: int | str, page: str, token: str = "") -> tuple[int, bytes]:
    """Return the status and the first MiB of a page, by a port of 127.0.0.1 or the path of a unix socket.

    Raises
    ------
    OSError, http.client.HTTPException
        If nobody speaks HTTP there, or not in time.
    """
    connection = http.client.HTTPConnection("127.0.0.1", address if isinstance(address, int) else None, timeout=ANSWER)
    try:
        if isinstance(address, str):
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(ANSWER)
            connection.sock.connect(address)
        connection.request("GET", page, headers={"Authorization": f"token {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        connection.close()


def look(port: int, service: Service, token: str = "") -> str:
    """Ask the service for its identity; return nothing if it is the one, else what is wrong in a few words."""
    try:
        status, body = get(port, service.probe or service.path, token)
    except TimeoutError:
        return "it does not respond in time"
    except (OSError, http.client.HTTPException) as error:
        return f"the connection is closed immediately ({type(error).__name__})"
    if status != 200:
        return f"it responds with HTTP status {status}"
    try:
        answer = safe_files.parsed(json.loads, body.decode())
    except ValueError:
        return "another program responds"
    if not isinstance(answer, dict) or service.identity not in answer.values():
        return "another service responds"
    wrong = answer.get("wrong", "")  # of a bridge, whose program may be another
    return wrong if isinstance(wrong, str) else ""


def token_of(connection: Connection | None, service: Service) -> str:
    """Read the service's token, if any, here or on the cluster, into memory alone; ServiceGoneError if unreadable."""
    if not service.token_file:
        return ""
    if connection is None:
        with directories.storage(Path(service.token_file)):
            return safe_files.read(Path(service.token_file), 4096).decode(errors="replace").strip()
    answer = connection.run(connection.command(["cat", "--", service.token_file]))
    if answer.code != 0:
        message = "The token of the run's service cannot be read"
        raise ServiceGoneError(message, place=service.token_file, hint=answer.text[-200:])
    return answers.of_token(answer.out, connection.host)


# -- a route ---------------------------------------------------------------------------------------------------------


class SshRoute:
    """A route over ssh: forwards to ``target`` go over ``control``, for as long as ``child`` lives."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        service: Service,
        child: subprocesses.Child | Call,
        control: Path,
        folder: Path | None = None,
    ) -> None:
        self.name, self.connection, self.service = name, connection, service
        self.child, self.control, self.folder = child, control, folder
        self.target = service.socket
        self.log_begin = connection.log_size()  # what the connection said before is not this route's
        self.port = 0
        self.cleanup: list[str] = []  # a command that leaves nothing behind on the cluster

    @property
    def lost(self) -> bool:
        """Whether it has ended by itself."""
        return self.child.code is not None

    def take(self, port: int) -> bool:
        """Have a port of this machine lead to the service; return False if the port is taken."""
        if is_free(port) and self.connection.forward(port, self.target, self.control):
            self.port = port
        return self.port == port

    def failure(self, wrong: str) -> HpcmlError:
        """Return the error that an open route means which does not carry the right answer."""
        host, node = self.connection.host, self.service.node
        if "closed" not in wrong:
            return TunnelError(wrong, place=self.name)
        if self.name == "twohop":
            if isinstance(self.child, Call) and self.child.child.wait(_CLOSING) is not None:  # the second hop ended
                return TunnelError(_reason(self.child.errors) or wrong, place=self.name)
            message = f"{host} forbids ssh forwarding, or the service's socket does not exist ({wrong})"
            return TunnelError(message, place=self.name)
        if self._is_missing():
            return ServiceGoneError(f"The service's socket file does not exist on {node}", place=self.name)
        message = f"{node} forbids ssh forwarding, or the service's socket does not exist ({wrong})"
        return TunnelError(message, place=self.name)

    def _is_missing(self) -> bool:
        """Whether the socket is surely not on the node, by a look through a route that gives a shell."""
        if self.name != "direct":
            return False
        command = self.connection.command(["test", "-S", self.target], self.control)
        return subprocesses.run(command, READY["direct"], program=HPCML).code == 1

    def close(self) -> None:
        """Take the forward back and end the process."""
        if self.port:
            self.connection.cancel(self.port, self.target, self.control)
            self.port = 0
        self.child.stop()
        if self.cleanup:
            with contextlib.suppress(HpcmlError):  # the connection may be what has gone
                self.connection.run(self.cleanup, 20.0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.name != "twohop":
            self.control.unlink(missing_ok=True)


class LocalRoute:
    """The route without ssh, to a run of this machine, whose sockets are in a folder of this user's."""

    name, lost = "local", False

    def __init__(self, service: Service) -> None:
        self.service = service
        self.bridge: Bridge | None = None

    def take(self, port: int) -> bool:
        """Have a port lead to the service; return False if the port is taken."""
        try:
            self.bridge = Bridge(port, self.service.socket)
        except OSError:
            return False
        return True

    def failure(self, wrong: str) -> HpcmlError:
        """Return the error that a silent service means."""
        return ServiceGoneError(wrong, place=self.service.socket)

    def close(self) -> None:
        """Listen no more."""
        if self.bridge is not None:
            self.bridge.close()
            self.bridge = None


Route = SshRoute | LocalRoute


def start(name: str, connection: Connection | None, run: RunFacts, service: str) -> Route:
    """Open a route to a service of a run and return it when it can listen on a port.

    Parameters
    ----------
    name
        One of :data:`MEANING`.
    connection
        The cluster; None for the route without ssh.

    Raises
    ------
    TunnelError
        If the site does not allow it.
    ServiceGoneError
        If the service's socket is not there.
    HostKeyError
        If the node's host key has changed.
    LinkError
        If the connection to the login node is gone.
    """
    if connection is None:
        return LocalRoute(run.services[service])
    return {"direct": _direct, "twohop": _twohop, "srun": _srun}[name](connection, run, service)


def in_order(connection: Connection | None, wanted: str) -> list[str]:
    """Return the routes to try: the one that is wanted, or all, the one that worked last first."""
    if connection is None:
        return ["local"]
    if wanted != "auto":
        return [wanted]
    try:
        last = (connection.places.files / f"{connection.name}.route").read_text().strip()
    except OSError:
        last = ""
    return sorted(READY, key=lambda name: name != last)


def remember(connection: Connection | None, name: str) -> None:
    """Note the route that works on this cluster."""
    if connection is not None:
        safe_files.write(connection.places.files / f"{connection.name}.route", f"{name}\n")


# -- over ssh --------------------------------------------------------------------------------------------------------


def _control(connection: Connection) -> Path:
    return ssh.control_socket(connection.places.control, f"{connection.name}-{os.urandom(4).hex()}")


def _serve(role: str, run: RunFacts, service: str, *options: str) -> list[str]:
    """Return the words that have the login node's hpcml serve this tunnel."""
    return ["tunnel", "--serve", role, *options, f"--service={service}", "--", run.run]


def _direct(connection: Connection, run: RunFacts, service: str) -> SshRoute:
    """The laptop is let in by the node itself; the login node only passes bytes on."""
    target, control = run.services[service], _control(connection)
    settings = ssh.options(
        ControlMaster="yes",
        ControlPersist="no",
        ClearAllForwardings="yes",
        BatchMode="yes",
        ProxyCommand=proxy([*connection.over(), connection.host], destination=True),
    )
    command = ["ssh", "-F", str(connection.file), "-S", literal(str(control)), "-NT", *settings]
    command += [*_as_on_login(connection, target.node), "--", target.node]
    child = subprocesses.Child(command, program=HPCML)
    return _wait(SshRoute("direct", connection, target, child, control))


def _as_on_login(connection: Connection, node: str) -> list[str]:
    """Return options that give a node, which the user's configuration may not name, the login node's user and keys."""
    effective = ssh.effective(node, connection.file)
    options = []
    if effective.get("user") != [connection.user] and effective.get("user", [""])[0] == process_environment().get(
        "USER", ""
    ):
        options += ssh.options(User=connection.user)
    for name in ("identityfile", "certificatefile"):
        extra = [value for value in connection.settings.get(name, []) if value not in effective.get(name, [])]
        options += [word for value in extra for word in ("-o", f"{name}={ssh.quoted(value)}")]
    return options


def _twohop(connection: Connection, run: RunFacts, service: str) -> SshRoute:
    """The login node is let in by the node; a socket in a folder of the user's own lies between the two."""
    call = Call(connection, _serve("hop", run, service))
    route = SshRoute("twohop", connection, run.services[service], call, connection.control)
    try:
        call.begin()
        route.target = call.fact("socket", READY["twohop"]) or ""
        if not route.target:
            _fail(route)
    except BaseException:
        route.close()
        raise
    return route


def _srun(connection: Connection, run: RunFacts, service: str) -> SshRoute:
    """Nobody is let in by the node: an sshd in a job step speaks over srun's input and output, and opens no port."""
    folder = process_folder(connection.places.files, "session-")
    try:
        key, known_hosts, public = folder / "key", folder / "known_hosts", session_key(folder)
        remote, host_key, *_ = _prepared(connection, _serve("prepare", run, service, f"--key={public}"))
        name, control = f"hpcml-job-{run.job}", _control(connection)
        safe_files.write(known_hosts, f"{name} {host_key}\n")
        settings = ssh.options(
            ControlMaster="yes",
            ControlPersist="no",
            BatchMode="yes",
            IdentitiesOnly="yes",
            IdentityFile=ssh.quoted(literal(str(key))),
            IdentityAgent="none",
            PreferredAuthentications="publickey",
            UserKnownHostsFile=ssh.quoted(literal(str(known_hosts))),
            GlobalKnownHostsFile=ssh.quoted(literal(str(known_hosts))),
            StrictHostKeyChecking="yes",
            HostKeyAlias=name,
            ServerAliveInterval="15",
            ForwardAgent="no",
            ProxyCommand=proxy(connection.hpcml(*_serve("relay", run, service, f"--relay={Path(remote).name}"))),
            User=connection.user,
        )
        command = ["ssh", "-F", "none", "-S", literal(str(control)), "-NT", *settings, "--", name]
        child = subprocesses.Child(command, program=HPCML)
        route = SshRoute("srun", connection, run.services[service], child, control, folder)
        route.cleanup = connection.command(["rm", "-rf", "--", remote])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _wait(route)


def _prepared(connection: Connection, command: list[str]) -> Relay:
    """Have the login node prepare an sshd."""
    call = Call(connection, command)
    try:
        call.begin()
        relay: Relay | None = call.fact("relay", READY["srun"])
    finally:
        call.stop()
    if relay is None and not connection.alive():
        raise connection.gone(call.errors)
    if relay is None:
        raise TunnelError(f"The login node prepared no tunnel: {_reason(call.errors)}", place="srun")
    return relay


def session_key(folder: Path) -> str:
    """Make a key for one tunnel; return its public half; TunnelError if ssh-keygen fails."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hpcml", "-f", str(folder / "key")]
    answer = subprocesses.run(command, 20.0, program=HPCML)
    if answer.code != 0:
        raise TunnelError(f"hpcml could not create an ssh key: {answer.text}", place="ssh-keygen")
    return (folder / "key.pub").read_text().strip()


def _wait(route: SshRoute) -> SshRoute:
    """Wait for the control socket, which ssh makes once it is let in."""
    deadline = time.monotonic() + READY[route.name]
    try:
        while not route.control.exists():
            if route.lost or time.monotonic() > deadline:
                _fail(route)
            time.sleep(0.02)
    except BaseException:
        route.close()
        raise
    return route


def _fail(route: SshRoute) -> NoReturn:
    """Raise what a route that did not open means; the host that refused it is named."""
    route.child.stop()
    complaint, connection, node = route.child.errors, route.connection, route.service.node
    if not connection.alive():
        raise connection.gone()
    if "the socket is not on" in complaint.lower():
        raise ServiceGoneError(_reason(complaint), place=route.name)
    if re.search("HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", complaint):
        error = ssh.failure(complaint, node)
        assert isinstance(error, HostKeyError)
        raise error
    if re.search(r"(?i)stdio forwarding", complaint) and route.name == "direct":
        raise TunnelError(_not_through(connection, node, route.log_begin), place=route.name)
    if re.search(r"(?i)session request failed", complaint):
        raise TunnelError(f"{connection.host} allows no further session on this ssh connection", place=route.name)
    raise TunnelError(_reason(complaint) or "no answer in time", place=route.name)


def _not_through(connection: Connection, node: str, begin: int) -> str:
    """Return the reason why the login node passed no bytes on; ssh tells it where the connection is kept alone."""
    refusals = re.findall(r"open failed: (.+)", connection.log_text(begin))
    if not refusals:
        return f"{connection.host} forbids ssh forwarding, or does not reach {node}"
    if "administratively prohibited" in refusals[-1]:
        return f"{connection.host} forbids ssh forwarding: {refusals[-1]}"
    return f"{connection.host} does not reach {node}: {refusals[-1]}"


def _reason(complaint: str) -> str:
    """Return the reason that the hpcml there, or else ssh, gave: ssh says last that the connection is closed."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("hpcml: ") and not line.startswith("hpcml: note: ")]
    return errors[0].removeprefix("hpcml: ") if errors else lines[-1] if lines else ""


# -- on this machine -------------------------------------------------------------------------------------------------


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
        self.server = _Server(listeners.TUNNEL, "127.0.0.1", port, _Handler)
        self.server.target = target
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Listen no more; connections that stand end with this process."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Server(listeners.ThreadingServer):
    target: str

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's signature
        return socket_relay.owner(client_address, self.server_address) in (None, 0, os.getuid())


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inner:
            inner.connect(self.server.target)
            socket_relay.pass_on(self.request, inner)


# -- folders of a process --------------------------------------------------------------------------------------------


def process_folder(above: Path, prefix: str) -> Path:
    """Make a folder of mode 0700 that names this process; remove those of the user's whose processes are gone.

    A process is named by its pid and its start: a pid alone may belong to another process by now.
    """
    for folder in above.glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        (folder / "owner").write_text(f"{os.getpid()} {subprocesses.start_time(os.getpid())}")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _is_abandoned(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    try:
        pid, started = (folder / "owner").read_text().split()
    except FileNotFoundError:  # its process was killed before it could write it, or is about to
        return time.time() - status.st_mtime > ABANDONED
    return subprocesses.start_time(int(pid)) != started
