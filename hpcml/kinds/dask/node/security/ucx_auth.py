"""Let nobody without the run's key talk to Dask over UCX: both ends prove it before either reads a message of Dask's.

Dask's TLS settings do nothing on ``ucx://``: its backend ignores them, and its listener answers everybody on every
interface and unpickles what comes. :func:`install` puts another backend in its place, which runs
:class:`Handshake` on each raw endpoint right after it is there. What comes after is as Dask's
backend does it, and no slower: authenticated at its beginning, neither encrypted nor safe from who can change packets
on their way.

UCX itself trusts whoever reaches it, before any handshake. With the features that UCXX asks for, a peer may read and
write any memory of the process (``ucp_get_req_handler``, ``ucp_put_handler``). So UCX is started here with those only
that Dask uses (:data:`FEATURES`), and a peer cannot read. **UCX's TCP transport still writes where its peer says**
(``uct_tcp_ep_handle_put_req`` in UCX 1.21; there is no setting for it): docs/security.md says what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from distributed.comm import registry
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.utils import ensure_ip

from hpcml.kinds.dask.node.security.connection_limits import HalfOpen, LineLimit
from hpcml.units import RDMA

logger = logging.getLogger("hpcml.ucx")
logger.addFilter(LineLimit())  # so that nobody can fill the disk by knocking

DEADLINE = 10.0  # seconds for the three messages: a busy process on the other side may take some
MOST_HALF_OPEN = 256  # handshakes under way at one listener
OPEN_TCP = (
    "through UCX's tcp, users who can connect write to this process's memory without the key (docs/security.md). "
    "Use network.protocol=auto or tls"
)
FEATURES = ("TAG", "STREAM", "WAKEUP")  # messages, the exchange of their tags, and sleep while nothing comes

_BACKENDS = {"ucx": "UCXXBackend", "ucxx": "UCXXBackendLegacyPrefix"}  # as distributed-ucxx registers them
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - recognized, not bound
_LOCK = threading.RLock()
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


def install(key_file: Path) -> None:
    """Let Dask make and accept UCX connections in this process with the run's key only.

    It must come before the first connection and the first listener; again with the same key it does nothing. A
    UcxAuthError if the key file is no good, if UCX was used in this process before, or if another key is installed.
    """
    key = read_key(key_file)
    try:
        import distributed_ucxx
    except ImportError as error:
        sentence = "This run's Dask uses UCX, but distributed-ucxx cannot be imported"
        raise ImportError(f"{sentence}: {error} (install hpcml[cuda12], hpcml[cuda13] or hpcml[ucx])") from error
    with _LOCK:
        current = registry.backends.get("ucx")
        if isinstance(current, _Backend):
            if not hmac.compare_digest(current.key, key):
                raise UcxAuthError("This process already uses the key of another run for its UCX connections")
            return
        if distributed_ucxx.ucxx.ucxx is not None or _context() is not None:
            raise UcxAuthError("This process used UCX before hpcml could protect the connections with the run's key")
        for scheme, name in _BACKENDS.items():
            registry.backends[scheme] = _authenticating(getattr(distributed_ucxx, name), key)


def _authenticating(backend: Any, key: bytes) -> Any:
    """Return a backend like Dask's, whose connectors and listeners authenticate."""
    plain = backend()
    connector = type(plain.get_connector())
    listener = type(plain.get_listener("127.0.0.1", None, True))
    members = {
        "key": key,
        "connector": type("Connector", (_Connector, connector), {"key": key}),
        "listener": type("Listener", (_Listener, listener), {"key": key}),
    }
    return type("Backend", (_Backend, backend), members)()


class _Backend:
    """What is changed of Dask's backend; how it understands addresses stays."""

    key: bytes
    connector: Any
    listener: Any

    def get_connector(self) -> Any:
        return self.connector()

    def get_listener(self, address: str, handler: Any, deserialize: bool, **arguments: Any) -> Any:
        return self.listener(address, handler, deserialize, **arguments)


class _Connector:
    """What is changed of Dask's connector: nothing is sent or read on a connection whose other end proved nothing."""

    key: bytes

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Any:
        """Connect and prove.

        After a CommClosedError (nobody answers, or not in time) Dask tries again until
        ``distributed.comm.timeouts.connect``; after a FatalCommClosedError (no key) it does not, as with TLS.
        """
        start_ucx()
        from ucxx.exceptions import UCXError, UCXMessageTruncatedError

        try:
            comm = await super().connect(address, deserialize=deserialize, **arguments)  # type: ignore[misc]
        except (UCXError, TimeoutError) as error:  # ucxx gives the exchange of tags 5 s, and no setting reaches it
            raise CommClosedError(f"the UCX connection to {address} failed: {_reason(error)}") from error
        host, port = parse_host_port(address)
        handshake = Handshake(comm.ep)
        try:
            async with asyncio.timeout(DEADLINE):
                await handshake.prove_as_connector(self.key, pack(ensure_ip(host), port))
        except (RefusedError, UCXMessageTruncatedError) as error:  # a message of another size is not of the handshake
            comm.abort()
            raise FatalCommClosedError(
                f"{address} refused the connection: the peer has another key ({_reason(error)})"
            ) from error
        except (UCXError, TimeoutError, OSError) as error:
            comm.abort()
            raise CommClosedError(
                f"{address} refused the connection: the peer has another key, or the peer has ended ({_reason(error)})"
            ) from error
        except BaseException:
            comm.abort()
            raise
        return comm


class _Listener:
    """What is changed of Dask's listener: it reads nothing for Dask from who has not proved that it holds the key."""

    key: bytes
    ip: str
    port: int
    half_open: HalfOpen

    async def start(self) -> None:
        """Listen."""
        start_ucx()
        if devices := ", ".join(sorted(tcp_devices() - {"lo"})):
            logger.warning("hpcml.ucx: UCX may use tcp on %s: %s", devices, OPEN_TCP)
        self.half_open = HalfOpen(DEADLINE, MOST_HALF_OPEN)
        await super().start()  # type: ignore[misc]

    async def on_connection(self, comm: Any, handshake_overrides: Any = None) -> None:
        """Have the peer prove itself, then do as Dask does: Dask calls this before it reads from a connection."""
        from ucxx.exceptions import UCXError

        handshake = Handshake(comm.ep)
        try:
            async with self.half_open.one():
                await handshake.prove_as_listener(self.key, self._own_addresses())
        except (RefusedError, UCXError, TimeoutError, OSError) as error:
            comm.abort()
            _log_refusal(_reason(error))
            raise CommClosedError("refused: the peer has another key") from error
        except BaseException:
            comm.abort()
            raise
        await super().on_connection(comm, handshake_overrides)  # type: ignore[misc]

    def _own_addresses(self) -> set[bytes]:
        """Return the address that peers dial, or all of this node's if none was chosen."""
        if self.ip not in _EVERYWHERE:
            return {pack(ensure_ip(self.ip), self.port)}
        entries = [entry for several in psutil.net_if_addrs().values() for entry in several]
        return {pack(entry.address, self.port) for entry in entries if entry.family.name in ("AF_INET", "AF_INET6")}


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (
        str(error) if isinstance(error, RefusedError) else f"the connection was lost: {error or type(error).__name__}"
    )


def _log_refusal(reason: str) -> None:
    logger.warning("hpcml.ucx: refused a UCX peer: %s", reason)


def _no_traceback(record: logging.LogRecord) -> bool:
    """Filter UCXX's log: a line takes the place of its tracebacks about peers that break off while tags are exchanged.

    There is no limit to those.
    """
    text = record.getMessage().rstrip()
    if text.startswith("Unexpected error in listener handler coroutine") or "calling listener callback" in text:
        _log_refusal(text.splitlines()[-1])
        return False
    return True


def start_ucx() -> None:
    """Start UCX in this process, unless it runs, with no features but :data:`FEATURES`; a UcxAuthError with others.

    With those, whoever can connect may read and write this process's memory.
    """
    from distributed_ucxx import ucxx as transport

    with _LOCK:
        if transport.ucxx is None and _context() is None:
            with _few_features():
                transport.init_once()
            logging.getLogger("ucx").addFilter(_no_traceback)
        context = _context()
        if context is None or context.context.feature_flags != sum(feature.value for feature in _features()):
            raise UcxAuthError(
                "UCX was started in this process with features that give peers access to the process's memory"
            )


@contextlib.contextmanager
def _few_features() -> Iterator[None]:
    """Let ucxx make its context with few features: ``ucxx.init()`` has no argument for them."""
    import ucxx._lib.libucxx as library

    original = library.UCXContext
    library.UCXContext = lambda options: original(options, feature_flags=_features())
    try:
        yield
    finally:
        library.UCXContext = original


def _features() -> tuple[Any, ...]:
    from ucxx._lib.libucxx import Feature

    return tuple(Feature[name] for name in FEATURES)


def tcp_devices() -> set[str]:
    """Return the network devices on which UCX's TCP transport listens: one data port each, beside Dask's."""
    return set(re.findall(r"\btcp/(\S+)", _context().ucp_context_info))


def rdma_devices() -> set[str]:
    """Return the devices of RDMA on which UCX can be reached."""
    pairs = re.findall(r"\b(\w+)/(\S+)", _context().ucp_context_info)
    return {device for transport, device in pairs if RDMA.fullmatch(transport)}


def group_memory() -> bool:
    """Whether UCX uses System V shared memory, which it makes for the user's group too (mode 660)."""
    return re.search(r"\bsysv/", _context().ucp_context_info) is not None


def _context() -> Any:
    """Return the context in which ucxx runs in this process, None if it does not run."""
    return getattr(sys.modules.get("ucxx.core"), "_ctx", None)


class Handshake:
    """The messages with which both ends of a connection prove that they hold the run's key, on a ``ucxx.Endpoint``.

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
        """Prove it to who has connected to one of the own addresses, and have it prove it; errors as above."""
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
    """Return the key in a file; a UcxAuthError if it is not this user's alone, or holds no key."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise UcxAuthError(f"{path}: the file with the key of the UCX connections must belong to you")
        if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
            raise UcxAuthError(f"{path}: other users can read the key of UCX connections (mode {mode:04o}, not 0600)")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise UcxAuthError(f"{path}: the file is not a key of {KEY_BYTES} bytes")
    return key
