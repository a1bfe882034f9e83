"""The proof by which both ends of a connection show that they hold the run's key before Dask reads a byte of it.

Connections without TLS, UCX's (:mod:`.ucx_auth`) and plain TCP (:mod:`.tcp_auth`), begin with :class:`Handshake`. What
comes after it is neither encrypted nor safe from who can change packets on their way.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import stat
import struct
from pathlib import Path
from typing import Any

from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.utils import ensure_ip

DEADLINE = 10.0  # seconds for the three messages: a busy process on the other side may take some
KEY_BYTES = 32

_VERSION = b"\x01"
_ADDRESS = struct.Struct("!16sH")
_HELLO = struct.Struct(f"!c{_ADDRESS.size}s32s")
_ANSWER = struct.Struct("!c32s32s")
_PROOF = struct.Struct("!c32s")


class KeyProofError(RuntimeError):
    """A connection cannot be made safely in this process; the sentence says why."""


class RefusedError(Exception):
    """The peer did not prove that it holds the key."""


async def prove_as_connector(
    comm: Any,
    endpoint: Any,
    key: bytes,
    address: str,
    *,
    wrong: tuple[type[Exception], ...] = (),
    lost: tuple[type[Exception], ...] = (),
) -> None:
    """Prove on a new connection of Dask's, and have the listener prove it; after an error the connection is aborted.

    After a CommClosedError (nobody answers, or not in time) Dask tries again until
    ``distributed.comm.timeouts.connect``; after a FatalCommClosedError (no key) it does not, as with TLS.

    Parameters
    ----------
    endpoint
        What :class:`Handshake` sends and receives by.
    address
        The address that was dialled, without its scheme.
    wrong
        Errors of the endpoint that only a peer without the key causes.
    lost
        Its other errors, beside OSError.
    """
    host, port = parse_host_port(address)
    handshake = Handshake(endpoint)
    no_key: tuple[type[Exception], ...] = (RefusedError, *wrong)
    no_answer: tuple[type[Exception], ...] = (OSError, *lost)  # also TimeoutError
    try:
        async with asyncio.timeout(DEADLINE):
            await handshake.prove_as_connector(key, pack(ensure_ip(host), port))
    except no_key as error:
        comm.abort()
        raise FatalCommClosedError(
            f"{address} refused the connection: the peer has another key ({reason(error)})"
        ) from error
    except no_answer as error:
        comm.abort()
        raise CommClosedError(
            f"{address} refused the connection: the peer has another key, or the peer has ended ({reason(error)})"
        ) from error
    except BaseException:
        comm.abort()
        raise


def reason(error: BaseException) -> str:
    """Return the reason why a proof failed, as a clause."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (
        str(error) if isinstance(error, RefusedError) else f"the connection was lost: {error or type(error).__name__}"
    )


class Handshake:
    """The messages with which both ends of a connection prove that they hold the run's key.

    ``endpoint`` is a ``ucxx.Endpoint``, or has its ``send`` and ``recv``.

    Three messages of fixed size::

        connector -> listener   version, address dialled, nonce C
        listener  -> connector  version, nonce L, HMAC(key, "server", version, address, nonce C, nonce L)
        connector -> listener   version,          HMAC(key, "client", version, address, nonce C, nonce L)

    Nonces are fresh, so nothing can be replayed; the labels differ, so nothing can be reflected; the listener accepts
    only its own address, so nobody can take the port of a worker that died and pass the messages on to a living one.

    It keeps what it receives into, and must be kept until the endpoint is aborted: UCX writes to a buffer also when
    nobody waits for the message any more.
    """

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self._buffers: list[bytearray] = []

    async def prove_as_connector(self, key: bytes, address: bytes) -> None:
        """Prove to the listener at an address (:func:`pack`) that this end holds the key, after it has done so.

        A RefusedError if it has not; the endpoint's own errors pass through.
        """
        mine = secrets.token_bytes(32)
        await self._send(_HELLO, address, mine)
        theirs, proof = await self._receive(_ANSWER)
        if not hmac.compare_digest(proof, _mac(key, b"server", address, mine, theirs)):
            raise RefusedError("the other end has another key or no key")
        await self._send(_PROOF, _mac(key, b"client", address, mine, theirs))

    async def prove_as_listener(self, key: bytes, addresses: set[bytes]) -> None:
        """Prove it to who has connected to one of the own addresses, and have it prove it; RefusedError if not."""
        address, theirs = await self._receive(_HELLO)
        if address not in addresses:
            raise RefusedError(f"the peer requested {_unpack(address)}, which is not this process's address")
        mine = secrets.token_bytes(32)
        await self._send(_ANSWER, mine, _mac(key, b"server", address, theirs, mine))
        (proof,) = await self._receive(_PROOF)
        if not hmac.compare_digest(proof, _mac(key, b"client", address, theirs, mine)):
            raise RefusedError("the peer has another key or no key")

    async def _send(self, form: struct.Struct, *fields: bytes) -> None:
        await self._endpoint.send(form.pack(_VERSION, *fields))

    async def _receive(self, form: struct.Struct) -> tuple[bytes, ...]:
        buffer = bytearray(form.size)  # a shorter message leaves zeros at its end, which no proof survives
        self._buffers.append(buffer)
        await self._endpoint.recv(buffer)
        version, *fields = form.unpack(buffer)
        if version != _VERSION:
            raise RefusedError("the peer does not use hpcml's handshake")
        return tuple(fields)


def _mac(key: bytes, label: bytes, address: bytes, connector: bytes, listener: bytes) -> bytes:
    return hmac.digest(key, label + _VERSION + address + connector + listener, "sha256")  # each of them of fixed size


def pack(host: str, port: int) -> bytes:
    """Return a numeric address and a port as the bytes that both ends compare: IPv6, or IPv4 as IPv6 maps it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    whole = address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed
    return _ADDRESS.pack(whole, port)


def _unpack(address: bytes) -> str:
    whole, port = _ADDRESS.unpack(address)
    long = ipaddress.IPv6Address(whole)
    return f"{long.ipv4_mapped or long} port {port}"


def read_key(path: Path) -> bytes:
    """Return the key in a file; a KeyProofError if it is not this user's alone, or holds no key."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise KeyProofError(f"{path}: the file with the key of data connections must belong to you")
        if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
            raise KeyProofError(f"{path}: other users can read the key of data connections (mode {mode:04o}, not 0600)")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise KeyProofError(f"{path}: the file is not a key of {KEY_BYTES} bytes")
    return key
