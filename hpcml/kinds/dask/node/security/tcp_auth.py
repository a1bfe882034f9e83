"""Let nobody without the run's key talk to Dask over plain TCP: both ends prove it before Dask reads a byte.

The addresses have a scheme of their own. A process without the key's backend does not know the scheme, so that no
connection goes without the proof, and ``tcp://`` stays Dask's own, for clusters that a script starts itself. What comes
after the proof is as Dask's TCP does it: neither encrypted nor safe from who can change packets on their way.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Any

from distributed.comm import registry
from distributed.comm.tcp import TCPBackend, TCPConnector, TCPListener

from hpcml.kinds.dask.node.security.connection_limits import HalfOpen, LineLimit, most_half_open
from hpcml.kinds.dask.node.security.key_proof import (
    DEADLINE,
    Handshake,
    KeyProofError,
    RefusedError,
    pack,
    prove_as_connector,
    read_key,
    reason,
)

PREFIX = "hpcml-"  # before the protocol
SCHEME = f"{PREFIX}tcp"  # of addresses

logger = logging.getLogger("hpcml.tcp")
logger.addFilter(LineLimit())


def install(key_file: Path) -> None:
    """Let Dask make and accept connections at addresses of :data:`SCHEME` in this process, with the run's key only.

    Again with the same key it does nothing. A KeyProofError if the key file is no good, or if another key is installed.
    """
    key = read_key(key_file)
    current = registry.backends.get(SCHEME)
    if current is None:
        registry.backends[SCHEME] = Backend(key)
    elif not hmac.compare_digest(current.key, key):
        raise KeyProofError("This process already uses the key of another run for its TCP connections")


class Backend(TCPBackend):  # type: ignore[misc]
    """Dask's backend of TCP, whose connectors and listeners authenticate."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def get_connector(self) -> Any:
        """Return the connector."""
        return _Connector(self.key)

    def get_listener(self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any) -> Any:
        """Return the listener."""
        listener = _Listener(loc, handle_comm, deserialize, **connection_args)
        listener.key = self.key
        return listener


class _Unencrypted:
    """Dask's settings in a run require encryption of all other connections."""

    prefix = f"{SCHEME}://"

    def _check_encryption(self, address: str, connection_args: Any) -> None:
        """Let Dask connect and listen."""


class _Stream:
    """A stream of tornado's, by which :class:`Handshake` sends and receives."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: bytes) -> None:
        await self._stream.write(message)

    async def recv(self, buffer: bytearray) -> None:
        await self._stream.read_into(buffer)  # all of it, or an OSError


class _Connector(_Unencrypted, TCPConnector):  # type: ignore[misc]
    """Dask's connector: nothing is sent or read on a connection whose other end proved nothing."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        """Connect and prove (:func:`.key_proof.prove_as_connector`)."""
        comm = await super().connect(address, deserialize=deserialize, **connection_args)
        await prove_as_connector(comm, _Stream(comm.stream), self.key, address)
        return comm


class _Listener(_Unencrypted, TCPListener):  # type: ignore[misc]
    """Dask's listener: it reads nothing for Dask from who has not proved that it holds the key."""

    key: bytes
    half_open: HalfOpen

    async def start(self) -> None:
        self.half_open = HalfOpen(DEADLINE, most_half_open())
        await super().start()

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        """Have the peer prove itself; Dask calls this before it reads from a connection."""
        try:
            own = pack(*stream.socket.getsockname()[:2])  # what the peer dialled, unless somebody passes it on
            async with self.half_open.one():
                await Handshake(_Stream(stream)).prove_as_listener(self.key, {own})
        except (RefusedError, OSError) as error:
            stream.close()
            logger.warning("hpcml.tcp: refused %s: %s", address, reason(error))
            return None
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream
