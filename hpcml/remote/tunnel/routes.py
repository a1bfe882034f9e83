"""The ways from a laptop to a unix socket on a compute node; which one a site allows is found by trying."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from hpcml import files, subprocesses
from hpcml.errors import HostKeyError, HpcmlError, ServiceGoneError, TunnelError
from hpcml.remote.answers import Relay, RunFacts
from hpcml.remote.channel import Call
from hpcml.remote.ssh import config, login
from hpcml.remote.ssh.connection import Connection, literal, proxy
from hpcml.sites.layers import process_environment

MEANING = {
    "direct": "ssh through the login node to the node",
    "twohop": "two hops, by a socket on the login node",
    "srun": "sshd in a job step, over srun's input and output",
    "local": "no ssh, as the run is on this machine",
}
ROUTES = ("direct", "twohop", "srun")
READY = {"direct": 20.0, "twohop": 25.0, "srun": 40.0}  # seconds until a route has to be open


class OpenRoute:
    """A route that is open: forwards to ``target`` go over ``control``, for as long as ``child`` lives."""

    def __init__(
        self, name: str, child: subprocesses.Child | Call, control: Path, target: str, folder: Path | None = None
    ) -> None:
        self.name, self.child, self.control, self.target, self.folder = name, child, control, target, folder
        self.port = 0
        self.cleanup: list[str] = []  # a command that leaves nothing behind on the cluster

    def missing(self, connection: Connection) -> bool:
        """Whether the socket is surely not there, by a look through a route that gives a shell."""
        if self.name != "direct":
            return False
        words = connection.command(["test", "-S", self.target], self.control)
        return subprocesses.run(words, READY["direct"]).code == 1

    def close(self, connection: Connection) -> None:
        """Take the forward back and end the process."""
        if self.port:
            connection.cancel(self.port, self.target, self.control)
            self.port = 0
        self.child.stop()
        if self.cleanup:
            with contextlib.suppress(HpcmlError):  # the connection may be what has gone
                connection.run(self.cleanup, 20.0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.name != "twohop":
            self.control.unlink(missing_ok=True)


def start(name: str, connection: Connection, facts: RunFacts, service: str) -> OpenRoute:
    """Open one of :data:`ROUTES` to a service of a run and return it when forwards can be made.

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
    return {"direct": _direct, "twohop": _twohop, "srun": _srun}[name](connection, facts, service)


def _control(connection: Connection) -> Path:
    return config.control_socket(connection.places.control, f"{connection.name}-{os.urandom(4).hex()}")


def _serve(what: str, facts: RunFacts, service: str, *options: str) -> list[str]:
    """Return the words that have the login node's hpcml serve this tunnel."""
    return ["tunnel", "--serve", what, *options, f"--service={service}", "--", facts.run]


def _direct(connection: Connection, facts: RunFacts, service: str) -> OpenRoute:
    """The laptop is let in by the node itself; the login node only passes bytes on."""
    node, control = facts.services[service].node, _control(connection)
    settings = config.options(
        ControlMaster="yes",
        ControlPersist="no",
        ClearAllForwardings="yes",
        BatchMode="yes",
        ProxyCommand=proxy([*connection.over(), connection.host], destination=True),
    )
    words = ["ssh", "-F", str(connection.file), "-S", literal(str(control)), "-NT", *settings]
    child = subprocesses.Child([*words, *_as_on_login(connection, node), "--", node])
    return _wait(OpenRoute("direct", child, control, facts.services[service].socket), connection)


def _as_on_login(connection: Connection, node: str) -> list[str]:
    """Return options that give a node, which the user's configuration may not name, the login node's user and keys."""
    own = config.effective(node, connection.file)
    words = []
    if own.get("user") != [connection.user] and own.get("user", [""])[0] == process_environment().get("USER", ""):
        words += config.options(User=connection.user)
    for name in ("identityfile", "certificatefile"):
        extra = [value for value in connection.settings.get(name, []) if value not in own.get(name, [])]
        words += [word for value in extra for word in ("-o", f"{name}={value}")]
    return words


def _twohop(connection: Connection, facts: RunFacts, service: str) -> OpenRoute:
    """The login node is let in by the node; a socket in a folder of the user's own lies between the two."""
    call = Call(connection, _serve("hop", facts, service))
    route = OpenRoute("twohop", call, connection.control, "")
    try:
        call.begin()
        route.target = call.fact("socket", READY["twohop"]) or ""
        if not route.target:
            _fail(route, connection)
    except BaseException:
        route.close(connection)
        raise
    return route


def _srun(connection: Connection, facts: RunFacts, service: str) -> OpenRoute:
    """Nobody is let in by the node: an sshd in a job step speaks over srun's input and output, and opens no port."""
    _sweep(connection.places.files)
    folder = Path(tempfile.mkdtemp(prefix=f"session-{os.getpid()}-", dir=connection.places.files))
    try:
        key, known_hosts, public = folder / "key", folder / "known_hosts", _session_key(folder)
        remote, host_key = _prepared(connection, _serve("prepare", facts, service, f"--key={public}"))
        name, control = f"hpcml-job-{facts.job}", _control(connection)
        files.write(known_hosts, f"{name} {host_key}\n")
        settings = config.options(
            ControlMaster="yes",
            ControlPersist="no",
            BatchMode="yes",
            IdentitiesOnly="yes",
            IdentityFile=str(key),
            IdentityAgent="none",
            PreferredAuthentications="publickey",
            UserKnownHostsFile=str(known_hosts),
            GlobalKnownHostsFile=str(known_hosts),
            StrictHostKeyChecking="yes",
            HostKeyAlias=name,
            ServerAliveInterval="15",
            ForwardAgent="no",
            ProxyCommand=proxy(connection.hpcml(*_serve("relay", facts, service, f"--relay={Path(remote).name}"))),
            User=connection.user,
        )
        words = ["ssh", "-F", "none", "-S", literal(str(control)), "-NT", *settings, "--", name]
        child = subprocesses.Child(words)
        route = OpenRoute("srun", child, control, facts.services[service].socket, folder)
        route.cleanup = connection.command(["rm", "-rf", "--", remote])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _wait(route, connection)


def _prepared(connection: Connection, words: list[str]) -> Relay:
    """Have the login node prepare an sshd."""
    call = Call(connection, words)
    try:
        call.begin()
        relay: Relay | None = call.fact("relay", READY["srun"])
    finally:
        call.stop()
    if relay is None and not connection.alive():
        raise connection.gone(call.errors)
    if relay is None:
        raise TunnelError(f"The login node prepared nothing: {_last(call.errors)}", place="srun")
    return relay


def _sweep(notes: Path) -> None:
    """Remove the keys of tunnels that were killed."""
    for folder in notes.glob("session-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdecimal() and not subprocesses.start_time(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _session_key(folder: Path) -> str:
    """Make a key for one tunnel; return its public half."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hpcml", "-f", str(folder / "key")]
    answer = subprocesses.run(words, 20.0)
    if answer.code != 0:
        raise TunnelError(f"No key could be made: {answer.text}", place="ssh-keygen")
    return (folder / "key.pub").read_text().strip()


def _wait(route: OpenRoute, connection: Connection) -> OpenRoute:
    """Wait for the control socket, which ssh makes once it is let in."""
    deadline = time.monotonic() + READY[route.name]
    try:
        while not route.control.exists():
            if route.child.code is not None or time.monotonic() > deadline:
                _fail(route, connection)
            time.sleep(0.02)
    except BaseException:
        route.close(connection)
        raise
    return route


def _fail(route: OpenRoute, connection: Connection) -> NoReturn:
    """Raise what a route that did not open means."""
    route.child.stop()
    complaint = route.child.errors
    if not connection.alive():
        raise connection.gone()
    if "the socket is not on" in complaint.lower():
        raise ServiceGoneError(_last(complaint).removeprefix("hpcml: "), place=route.name)
    if re.search("HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", complaint):
        error = login.failure(complaint, "the node")
        assert isinstance(error, HostKeyError)
        raise error
    if re.search(r"(?i)administratively prohibited|stdio forwarding|session open refused", complaint):
        raise TunnelError(f"{connection.host} forbids forwarding: {_last(complaint)}", place=route.name)
    raise TunnelError(_last(complaint) or "no answer in time", place=route.name)


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# -- what worked the last time -----------------------------------------------------------------------------------------


def remember(connection: Connection, name: str) -> None:
    """Note the route that works on this cluster."""
    files.write(connection.places.files / f"{connection.name}.route", f"{name}\n")


def in_order(connection: Connection, wanted: str) -> list[str]:
    """Return the routes to try: the one that is wanted, or all, the one that worked last first."""
    if wanted != "auto":
        return [wanted]
    try:
        last = (connection.places.files / f"{connection.name}.route").read_text().strip()
    except OSError:
        last = ""
    return sorted(ROUTES, key=lambda name: name != last)
