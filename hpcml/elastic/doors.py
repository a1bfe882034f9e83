"""Who may talk to an elastic cluster: its keys, the scheduler that opens no other door, and where that one listens."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from hpcml.errors import SiteError, StorageError, UsageError
from hpcml.node import scratch
from hpcml.node.hardware.network import NoAddressError, choose_address
from hpcml.node.security import connection_limits, tls
from hpcml.paths import AttemptPaths

if TYPE_CHECKING:
    from distributed import Security

LIFETIME = 30 * 86400.0  # seconds: who uses a cluster for longer makes a new one


class PrivateScheduler(connection_limits.Guarded, Scheduler):  # type: ignore[misc]
    """Dask's scheduler without an HTTP port: on a login node everybody could open it, on 127.0.0.1 too."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port; the dashboard's, for which a client asks for its link, is 0."""
        self.services["dashboard"] = SimpleNamespace(port=0, stop=lambda: None)


def make_scratch(cluster: object) -> tuple[Path, Callable[[], object]]:
    """Make the folder of the scheduler, which Dask puts first on ``sys.path``; return it and what removes it.

    Raises
    ------
    StorageError
        If somebody else could replace it.
    """
    try:
        return scratch.of_cluster(cluster)
    except scratch.UnsafePlaceError as error:
        hint = scratch.OTHER_PLACE
        raise StorageError(str(error), place="TMPDIR", hint=f"{hint[0].upper()}{hint[1:]}.") from error


def make_keys(folder: Path) -> Security:
    """Write the cluster's key and certificate (0600, in a folder of 0700) and return Dask's object for them."""
    tls.make_certificate(AttemptPaths(folder), LIFETIME)
    return keys_in(folder)


def keys_in(folder: Path) -> Security:
    """Return Dask's object for the keys of a cluster."""
    return tls.security(AttemptPaths(folder))


def remove_keys(folder: Path) -> None:
    """Remove the keys, which are of no use after the cluster."""
    tls.remove_secrets(AttemptPaths(folder))


def checked(host: str) -> str:
    """Return an address of this machine that the user names.

    Raises
    ------
    UsageError
        If it is none of this machine's.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.bind(place)
    except OSError as error:
        hint = "Give the address of one of its interfaces (ip address)."
        raise UsageError(f"This machine has no address {host}: {error.strerror}", place="host", hint=hint) from error
    return host


def listen_at(interface: str) -> str:
    """Return this machine's address for the workers: the profile's interface if it is here, else by the nodes' rule.

    Raises
    ------
    SiteError
        If this machine has no address but loopback.
    """
    try:
        return choose_address(interface, single_node=False)[0]
    except NoAddressError:
        try:
            return choose_address("", single_node=False)[0]
        except NoAddressError as error:
            hint = "Give host=… the address at which the nodes reach this machine."
            raise SiteError(f"The nodes could not reach a scheduler here: {error}", place="host", hint=hint) from error
