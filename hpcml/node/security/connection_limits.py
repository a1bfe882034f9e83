"""Limits on what an unauthenticated peer can use up: open files, half-open TLS handshakes, and lines of the log.

Whoever reaches a port can connect to it, and needs no key for that. Dask waits for such a peer's handshake for ever,
writes a line about each that fails, and where its files have run out, a traceback each time that it looks at the port.
"""

from __future__ import annotations

import logging
import resource
import time
from typing import Any

from distributed.comm import registry
from distributed.comm.tcp import TLSBackend, TLSListener

from hpcml.node.security.handshake import HalfOpen

logger = logging.getLogger("hpcml.tls")

DEADLINE = 10.0  # seconds for a TLS handshake: a busy process on either side may take some
MOST_HALF_OPEN = 2048  # TLS handshakes under way at one listener, each some 50 kB
SHARE_OF_FILES = 4  # the part of the process's files that they may take
MOST_FILES = 1 << 20  # what a process asks for where the hard limit is higher: some programs make a table of all
LINES_A_MINUTE = 20
_LOGGERS = ("distributed.comm.tcp", "tornado.general", "tornado.application", "asyncio")  # which peers can make write


def guard() -> None:
    """Set the limits in this process, before its first listener; again it does nothing."""
    raise_file_limit()
    if type(registry.backends["tls"]) is TLSBackend:
        registry.backends["tls"] = _Backend()
    for name in _LOGGERS:
        log = logging.getLogger(name)
        if not any(isinstance(one, LineLimitFilter) for one in log.filters):
            log.addFilter(LineLimitFilter())


def raise_file_limit() -> None:
    """Let this process have as many open files as it may: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_half_open() -> int:
    """Return how many handshakes may be under way at one listener of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HALF_OPEN if soft == resource.RLIM_INFINITY else min(MOST_HALF_OPEN, soft // SHARE_OF_FILES)


class LineLimit:
    """At most so many lines a minute; the rest is counted, and told with the next line."""

    def __init__(self) -> None:
        self._minute = 0.0
        self._written = 0
        self._suppressed = 0

    def take(self, lines: int = LINES_A_MINUTE) -> str | None:
        """Return what to put behind a line, None if it is one too many."""
        now = time.monotonic()
        if now - self._minute > 60:
            self._minute, self._written = now, 0
        if self._written >= lines:
            self._suppressed += 1
            return None
        self._written += 1
        more = f" (and {self._suppressed} more before)" if self._suppressed else ""
        self._suppressed = 0
        return more


class LineLimitFilter(logging.Filter):
    """A logger's filter with such a limit."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass while the limit is not reached."""
        more = self._limit.take()
        if more:
            record.msg, record.args = f"{record.getMessage()}{more}", ()
        return more is not None


class _Listener(TLSListener):  # type: ignore[misc]
    """Dask's listener with a deadline for each handshake; of too many the oldest goes."""

    half_open: HalfOpen

    async def start(self) -> None:
        self.half_open = HalfOpen(DEADLINE, most_half_open())
        self.refusals = LineLimit()
        await super().start()

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        handshake = stream.wait_for_handshake()
        try:
            async with self.half_open.one():
                await handshake
        except OSError as error:  # TimeoutError is one
            if _is_through(handshake):  # in the moment in which its time was over
                return stream
            stream.close()
            self._log_refusal(address, error)
            return None
        return stream

    def _log_refusal(self, address: str, error: OSError) -> None:
        more = self.refusals.take()
        if more is not None:
            late = isinstance(error, TimeoutError)
            why = "no handshake in time" if late else getattr(error, "real_error", None) or error
            logger.warning("hpcml.tls: refused %s: %s%s", address, why, more)


def _is_through(handshake: Any) -> bool:
    return handshake.done() and not handshake.cancelled() and handshake.exception() is None


class _Backend(TLSBackend):  # type: ignore[misc]
    _listener_class = _Listener
