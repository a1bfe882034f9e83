"""The ways from a laptop to a unix socket on a compute node; which one a site allows is found by trying."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml import files, subprocesses
from hpcml.errors import HostKeyError, HpcmlError, ServiceGoneError, TunnelError
from hpcml.remote import answers
from hpcml.remote.ssh import config, login
from hpcml.remote.ssh.connection import Connection, literal, proxy

ROUTES = ("direct", "twohop", "srun")
IN_WORDS = {
    "direct": "ssh through the login node to the node",
    "twohop": "two hops, by a socket on the login node",
    "srun": "sshd in a job step, over srun's input and output",
    "local": "no ssh, as the run is on this machine",
}
READY = {"direct": 20.0, "twohop": 25.0, "srun": 40.0}  # seconds until a way has to be there


class Way:
    """A way that is open: forwards to ``target`` go over ``control``, for as long as ``child`` lives."""

    def __init__(
        self, name: str, child: subprocesses.Child, control: Path, target: str, folder: Path | None = None
    ) -> None:
        self.name, self.child, self.control, self.target, self.folder = name, child, control, target, folder
        self.port = 0
        self.cleanup: list[str] = []  # words of a command that leaves nothing behind on the cluster

    def open(self) -> bool:
        """Whether its process lives."""
        return self.child.code is None

    def said(self) -> str:
        """Return what its process complained of."""
        return self.child.errors

    def missing(self, connection: Connection) -> bool:
        """Whether the socket is surely not there, by a look through a way that gives a shell."""
        if self.name != "direct":
            return False
        words = connection.command(["test", "-S", self.target], self.control)
        return subprocesses.run(words, connection.environment, READY["direct"]).code == 1

    def close(self, connection: Connection) -> None:
        """Take the forward back and end the process."""
        if self.port:
            connection.cancel(self.port, self.target, self.control)
            self.port = 0
        self.child.end()
        if self.cleanup:
            with contextlib.suppress(HpcmlError):  # the connection may be what has gone
                connection.run(self.cleanup, 20.0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.name != "twohop":
            self.control.unlink(missing_ok=True)


def start(name: str, connection: Connection, facts: Mapping[str, Any], service_name: str) -> Way:
    """Open one way to a service of a run and return it when forwards can be made.

    Parameters
    ----------
    name
        One of :data:`ROUTES`.
    facts
        The run, as its login node says (:func:`hpcml.tunnel_remote.facts`).

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
    service = facts["services"][service_name]
    make = {"direct": _direct, "twohop": _twohop, "srun": _srun}[name]
    return make(connection, facts, service, service_name)


def _control(connection: Connection) -> Path:
    return config.control_socket(connection.places.control, f"{connection.name}-{os.urandom(4).hex()}")


def _direct(connection: Connection, _: Mapping[str, Any], service: Mapping[str, Any], __: str) -> Way:
    """The laptop is let in by the node itself; the login node only passes bytes on."""
    node, control = str(service["node"]), _control(connection)
    jump = proxy([*connection.over(), connection.host], destination=True)
    settings = config.options(
        ControlMaster="yes", ControlPersist="no", ClearAllForwardings="yes", BatchMode="yes", ProxyCommand=jump
    )
    words = ["ssh", "-F", str(connection.file), "-S", literal(str(control)), "-NT", *settings]
    child = subprocesses.Child([*words, *_as_on_login(connection, node), "--", node], connection.environment)
    return _wait(Way("direct", child, control, str(service["socket"])), connection)


def _as_on_login(connection: Connection, node: str) -> list[str]:
    """Return options that give a node, which the user's configuration may not name, the login node's user and keys."""
    known = config.effective(node, connection.environment, connection.file)
    words = []
    if known.get("user") != [connection.user] and known.get("user", [""])[0] == connection.environment.get("USER", ""):
        words += config.options(User=connection.user)
    for name in ("identityfile", "certificatefile"):
        extra = [value for value in connection.known.get(name, []) if value not in known.get(name, [])]
        words += [word for value in extra for word in ("-o", f"{name}={value}")]
    return words


def _twohop(connection: Connection, facts: Mapping[str, Any], _: Mapping[str, Any], service_name: str) -> Way:
    """The login node is let in by the node; a socket in a folder of the user's own lies between the two."""
    words = connection.hpcml("tunnel", "--serve", "hop", "--service", service_name, facts["run"])
    child = subprocesses.Child(words, connection.environment)
    way = Way("twohop", child, connection.control, "")
    deadline = time.monotonic() + READY["twohop"]
    try:
        while child.code is None and time.monotonic() < deadline:
            subprocesses.wait([child], 0.2)
            for line in child.lines():
                if line.startswith("{"):
                    way.target = answers.of_hop(line, connection.host)
                    return way
        _fail(way, connection)
    except BaseException:
        way.close(connection)
        raise
    return way


def _srun(connection: Connection, facts: Mapping[str, Any], service: Mapping[str, Any], service_name: str) -> Way:
    """Nobody is let in by the node: an sshd in a job step speaks over srun's input and output, and opens no port."""
    _sweep(connection.places.files)
    folder = Path(tempfile.mkdtemp(prefix=f"session-{os.getpid()}-", dir=connection.places.files))
    try:
        key, public = _session_key(folder, connection)
        words = connection.hpcml("tunnel", "--serve", "prepare", "--service", service_name, facts["run"])
        answer = connection.run(words, 30.0, public)
        remote, host_key = _prepared(answer, connection)
        name = f"hpcml-job-{facts['job']}"
        files.write(folder / "known_hosts", f"{name} {host_key}\n")
        relay = ["tunnel", "--serve", "relay", "--relay", Path(remote).name, "--service", service_name, facts["run"]]
        jump = proxy(connection.hpcml(*relay))
        control = _control(connection)
        settings = config.options(
            ControlMaster="yes",
            ControlPersist="no",
            BatchMode="yes",
            IdentitiesOnly="yes",
            IdentityFile=str(key),
            IdentityAgent="none",
            PreferredAuthentications="publickey",
            UserKnownHostsFile=str(folder / "known_hosts"),
            GlobalKnownHostsFile=str(folder / "known_hosts"),
            StrictHostKeyChecking="yes",
            HostKeyAlias=name,
            ServerAliveInterval="15",
            ForwardAgent="no",
            ProxyCommand=jump,
            User=connection.user,
        )
        words = ["ssh", "-F", "none", "-S", literal(str(control)), "-NT", *settings, "--", name]
        child = subprocesses.Child(words, connection.environment)
        way = Way("srun", child, control, str(service["socket"]), folder)
        way.cleanup = connection.command(["rm", "-rf", "--", remote])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _wait(way, connection)


def _prepared(answer: subprocesses.Answer, connection: Connection) -> tuple[str, str]:
    """Return the folder and the host key of the sshd that the login node prepared."""
    if not (told := _last(answer.out)).startswith("{"):
        raise TunnelError(f"The login node prepared nothing: {_last(answer.text)}", place="srun")
    return answers.of_relay(told, connection.host)


def _sweep(notes: Path) -> None:
    """Remove the keys of tunnels that were killed."""
    for folder in notes.glob("session-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdecimal() and not subprocesses.start_time(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _session_key(folder: Path, connection: Connection) -> tuple[Path, bytes]:
    """Make a key for one tunnel; return its path and its public half."""
    key = folder / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hpcml", "-f", str(key)]
    made = subprocesses.run(words, connection.environment, 20.0)
    if made.code != 0:
        raise TunnelError(f"No key could be made: {made.text}", place="ssh-keygen")
    return key, key.with_suffix(".pub").read_bytes()


def _wait(way: Way, connection: Connection) -> Way:
    """Wait for the control socket, which ssh makes once it is let in."""
    deadline = time.monotonic() + READY[way.name]
    try:
        while not way.control.exists():
            if way.child.code is not None or time.monotonic() > deadline:
                _fail(way, connection)
            subprocesses.wait([way.child], 0.02)
            way.child.lines()
    except BaseException:
        way.close(connection)
        raise
    return way


def _fail(way: Way, connection: Connection) -> None:
    """Raise what a way that did not open means."""
    way.child.end()
    said = way.said()
    if not connection.alive():
        raise connection.gone()
    if re.search(r"the socket is not on|The socket is not on", said, re.IGNORECASE):
        raise ServiceGoneError(_last(said).removeprefix("hpcml: "), place=way.name)
    if re.search("HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", said):
        error = login.failure(said, "the node")
        assert isinstance(error, HostKeyError)
        raise error
    if re.search(r"(?i)administratively prohibited|stdio forwarding|session open refused", said):
        raise TunnelError(f"{connection.host} forbids forwarding: {_last(said)}", place=way.name)
    raise TunnelError(_last(said) or "no answer in time", place=way.name)


def _last(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


# -- what worked the last time -----------------------------------------------------------------------------------------


def remembered(connection: Connection) -> str:
    """Return the route that worked last on this cluster, or nothing."""
    try:
        said = (connection.places.files / f"{connection.name}.route").read_text().strip()
    except OSError:
        return ""
    return said if said in ROUTES else ""


def remember(connection: Connection, name: str) -> None:
    """Note the route that works on this cluster."""
    files.write(connection.places.files / f"{connection.name}.route", f"{name}\n")


def in_order(connection: Connection, wanted: str) -> list[str]:
    """Return the routes to try: the one that is wanted, or all, the one that worked last first."""
    if wanted != "auto":
        return [wanted]
    known = remembered(connection)
    return [known, *(name for name in ROUTES if name != known)] if known else list(ROUTES)
