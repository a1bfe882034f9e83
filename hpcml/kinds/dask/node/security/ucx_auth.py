"""Let nobody without the run's key talk to Dask over UCX: both ends prove it before either reads a message of Dask's.

Dask's TLS settings do nothing on ``ucx://``: its backend ignores them, and its listener answers everybody on every
interface and unpickles what comes. :func:`install` puts another backend in its place, which runs the handshake of
:mod:`.key_proof` on each raw endpoint right after it is there. What comes after is as Dask's backend does it, and no
slower.

UCX itself trusts whoever reaches it, before any handshake. With the features that UCXX asks for, a peer may read and
write any memory of the process (``ucp_get_req_handler``, ``ucp_put_handler``). So UCX is started here with those only
that Dask uses (:data:`FEATURES`), and a peer cannot read. **UCX's TCP transport still writes where its peer says**
(``uct_tcp_ep_handle_put_req`` in UCX 1.21; there is no setting for it): docs/security.md says what follows.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from distributed.comm import registry
from distributed.comm.core import CommClosedError
from distributed.utils import ensure_ip

from hpcml.kinds.dask.node.security.connection_limits import HalfOpen, LineLimit
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
from hpcml.units import RDMA

logger = logging.getLogger("hpcml.ucx")
logger.addFilter(LineLimit())  # so that nobody can fill the disk by knocking

MOST_HALF_OPEN = 256  # handshakes under way at one listener
OPEN_TCP = (
    "through UCX's tcp, users who can connect write to this process's memory without the key (docs/security.md). "
    "Use network.protocol=auto or tls"
)
FEATURES = ("TAG", "STREAM", "WAKEUP")  # messages, the exchange of their tags, and sleep while nothing comes

_BACKENDS = {"ucx": "UCXXBackend", "ucxx": "UCXXBackendLegacyPrefix"}  # as distributed-ucxx registers them
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - recognized, not bound
_LOCK = threading.RLock()


def install(key_file: Path) -> None:
    """Let Dask make and accept UCX connections in this process with the run's key only; ImportError without UCX.

    It must come before the first connection and the first listener; again with the same key it does nothing. A
    KeyProofError if the key file is no good, if UCX was used in this process before, or if another key is installed.
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
                raise KeyProofError("This process already uses the key of another run for its UCX connections")
            return
        if distributed_ucxx.ucxx.ucxx is not None or _context() is not None:
            raise KeyProofError("This process used UCX before hpcml could protect the connections with the run's key")
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
        """Connect and prove (:func:`.key_proof.prove_as_connector`)."""
        start_ucx()
        from ucxx.exceptions import UCXError, UCXMessageTruncatedError

        try:
            comm = await super().connect(address, deserialize=deserialize, **arguments)  # type: ignore[misc]
        except (UCXError, TimeoutError) as error:  # ucxx gives the exchange of tags 5 s, and no setting reaches it
            raise CommClosedError(f"the UCX connection to {address} failed: {reason(error)}") from error
        # A message of another size is not of the handshake.
        errors: dict[str, Any] = {"wrong": (UCXMessageTruncatedError,), "lost": (UCXError,)}
        await prove_as_connector(comm, comm.ep, self.key, address, **errors)
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
            _log_refusal(reason(error))
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
    """Start UCX in this process, unless it runs, with no features but :data:`FEATURES`; a KeyProofError with others.

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
            raise KeyProofError(
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
