"""The handshake with which both ends of a connection prove that they hold the run's key, on any raw endpoint.

Three messages of fixed size::

    connector -> listener   version, address dialled, nonce C
    listener  -> connector  version, nonce L, HMAC(key, "server", version, address, nonce C, nonce L)
    connector -> listener   version,          HMAC(key, "client", version, address, nonce C, nonce L)

Nonces are fresh, so nothing can be replayed; the labels differ, so nothing can be reflected; the listener accepts only
its own address, so nobody can sit on the port of a worker that died and pass the messages on to a living one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import secrets
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

KEY_BYTES = 32

_VERSION = b"\x01"
_ADDRESS = struct.Struct("!16sH")
_HELLO = struct.Struct(f"!c{_ADDRESS.size}s32s")
_ANSWER = struct.Struct("!c32s32s")
_PROOF = struct.Struct("!c32s")


class UcxAuthError(RuntimeError):
    """A connection cannot be made safely in this process; the sentence says why."""


class RefusedError(Exception):
    """The peer did not prove that it holds the key."""


class Handshake:
    """The messages of one handshake, on a ``ucxx.Endpoint``: it carries each as a whole.

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
            raise RefusedError("the other end proved another key, or none")
        await self._send(_PROOF, _mac(key, b"client", address, mine, theirs))

    async def prove_as_listener(self, key: bytes, own: set[bytes]) -> None:
        """Prove it to who has connected to one of the own addresses, and have it prove it; errors as above."""
        address, theirs = await self._receive(_HELLO)
        if address not in own:
            raise RefusedError(f"it wanted {_unpack(address)}, which is not here")
        mine = secrets.token_bytes(32)
        await self._send(_ANSWER, mine, _mac(key, b"server", address, theirs, mine))
        (proof,) = await self._receive(_PROOF)
        if not hmac.compare_digest(proof, _mac(key, b"client", address, theirs, mine)):
            raise RefusedError("it proved another key, or none")

    async def _send(self, form: struct.Struct, *fields: bytes) -> None:
        await self._endpoint.send(form.pack(_VERSION, *fields))

    async def _receive(self, form: struct.Struct) -> tuple[bytes, ...]:
        buffer = bytearray(form.size)  # a shorter message leaves zeros at its end, which no proof survives
        self._buffers.append(buffer)
        await self._endpoint.recv(buffer)
        version, *fields = form.unpack(buffer)
        if version != _VERSION:
            raise RefusedError("it does not speak this handshake")
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


class HalfOpen:
    """The handshakes under way at a listener.

    Who connects and says nothing is dropped at the deadline. If there are too many, the oldest goes at once, not the
    newest: a peer with the key needs milliseconds, so it gets through while others hold connections open.
    ``deadline`` are the seconds for one handshake, ``most`` is how many there may be.
    """

    def __init__(self, deadline: float, most: int) -> None:
        self.deadline, self.most = deadline, most
        self._limits: dict[asyncio.Timeout, None] = {}

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Give a handshake its time; TimeoutError if it is over."""
        async with asyncio.timeout(self.deadline) as limit:
            if len(self._limits) >= self.most:
                oldest = next(iter(self._limits))
                del self._limits[oldest]
                if not oldest.expired():
                    oldest.reschedule(asyncio.get_running_loop().time())
            self._limits[limit] = None
            try:
                yield
            finally:
                self._limits.pop(limit, None)


def read_key(path: Path) -> bytes:
    """Return the key in a file; a UcxAuthError if it is not this user's alone, or holds no key."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise UcxAuthError(f"{path}: the key of the UCX connections must be a file of your own")
        if (mode := stat.S_IMODE(facts.st_mode)) & 0o077:
            raise UcxAuthError(f"{path}: others may use the key of the UCX connections (mode {mode:04o}, not 0600)")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise UcxAuthError(f"{path}: holds no key of {KEY_BYTES} bytes")
    return key
