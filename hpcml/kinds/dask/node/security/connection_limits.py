"""Limits on what an unauthenticated peer can use up: open files, half-open TLS handshakes, and lines of the log.

Whoever reaches a port can connect to it, and needs no key for that. Dask waits for such a peer's handshake for ever,
writes a line about each that fails, and where its files have run out, a traceback each time that it looks at the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import AsyncIterator
from typing import Any

import dask.config
from distributed.comm import registry
from distributed.comm.tcp import TLSBackend, TLSListener

from hpcml.node.process_helpers import raise_file_limit

logger = logging.getLogger("hpcml.tls")

DEADLINE = 10.0  # seconds for a TLS handshake: a busy process on either side may take some
MOST_HALF_OPEN = 2048  # TLS handshakes under way at one listener, each some 50 kB
SHARE_OF_FILES = 4  # the part of the process's files that they may take
FILES_EACH = 3  # connections of a scheduler with each worker: its stream, its questions, and those of the scheduler
FILES_OF_ITS_OWN = 64  # and files that are no connections
LINES_A_MINUTE = 20
_LOGGERS = ("distributed.comm.tcp", "tornado.general", "tornado.application", "asyncio")  # which peers can make write


def guard() -> None:
    """Set the limits in this process, before its first listener; again it does nothing."""
    raise_file_limit()
    if type(registry.backends["tls"]) is TLSBackend:
        registry.backends["tls"] = _Backend()
    for name in _LOGGERS:
        log = logging.getLogger(name)
        if not any(isinstance(limit, LineLimit) for limit in log.filters):
            log.addFilter(LineLimit())


class Guarded:
    """A mixin for Dask's servers, whose listeners then have the limits; ValueError without a folder of their own.

    Dask puts that folder first on ``sys.path``. Without one it takes ``/tmp/dask-scratch-space``, whoever made it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if not (options.get("local_directory") or dask.config.get("temporary-directory", None)):
            raise ValueError(f"{type(self).__name__} needs a local_directory: set this argument to your own folder")
        guard()
        super().__init__(*arguments, **options)


def too_few_files(workers: int) -> str:
    """Return a sentence if the limit of open files is too low here for so many workers, with what to do.

    Otherwise its listener would accept nobody once the files have run out, and the run wait for its workers' deadline.
    """
    raise_file_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_OF_ITS_OWN + FILES_EACH * workers
    if soft == resource.RLIM_INFINITY or soft >= need:
        return ""
    most = max(1, (soft - FILES_OF_ITS_OWN) // FILES_EACH)
    may = f"the Dask scheduler can open only {soft} files (ulimit -Hn), but {workers} workers need {need} open files"
    return f"{may}: use at most {most} workers, or ask the site for a higher limit"


def most_half_open() -> int:
    """Return the number of handshakes that may be under way at one listener of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HALF_OPEN if soft == resource.RLIM_INFINITY else min(MOST_HALF_OPEN, soft // SHARE_OF_FILES)


class LineLimit(logging.Filter):
    """A logger's filter: at most so many lines a minute; the rest is counted, and reported with the next line."""

    minute, written, suppressed = 0.0, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass while the limit is not reached."""
        now = time.monotonic()
        if now - self.minute > 60:
            self.minute, self.written = now, 0
        if self.written >= LINES_A_MINUTE:
            self.suppressed += 1
            return False
        self.written += 1
        if self.suppressed:
            record.msg, record.args = f"{record.getMessage()} (and {self.suppressed} more lines, not shown)", ()
            self.suppressed = 0
        return True


logger.addFilter(LineLimit())


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


class _Listener(TLSListener):  # type: ignore[misc]
    """Dask's listener with a deadline for each handshake; of too many the oldest goes."""

    half_open: HalfOpen

    async def start(self) -> None:
        self.half_open = HalfOpen(DEADLINE, most_half_open())
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
            late = isinstance(error, TimeoutError)
            why = "no handshake in time" if late else getattr(error, "real_error", None) or error
            logger.warning("hpcml.tls: refused %s: %s", address, why)
            return None
        return stream


def _is_through(handshake: Any) -> bool:
    return handshake.done() and not handshake.cancelled() and handshake.exception() is None


class _Backend(TLSBackend):  # type: ignore[misc]
    _listener_class = _Listener
