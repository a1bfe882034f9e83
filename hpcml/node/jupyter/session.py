"""What a Jupyter run does about its end: sees idleness, tells open pages, and lets them save before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.node import files
from hpcml.node.settings import Context

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

LOOK = 3.0  # seconds between looks at the run's notes and at what the kernels do
POLL = 25.0  # seconds that a page's question stays open while nothing changes
FORGET = 2 * POLL  # seconds after which a page that asks no more counts as closed
MOST_WARNING = 300.0  # seconds before an end for idleness at which pages are told, at most; a quarter of it at least


class Session:
    """The end of the session as server and pages see it.

    ``state`` is ``running``, ``idle`` (it will end soon unless somebody does something), ``near`` (the time limit is
    near) or ``ending``; ``number`` grows with each change, so that a page can wait for the next.
    """

    def __init__(self, context: Context, server: ServerApp, scheduler: Path) -> None:
        self.context, self.server, self.scheduler = context, server, scheduler
        self.state, self.number, self.words = "running", 0, ""
        self.changed = asyncio.Event()
        self.told = False
        self.pages: dict[str, float] = {}
        self.questions: dict[str, int] = {}  # the last of each page, by its number
        self.saved: set[str] = set()
        self.heard = asyncio.Event()
        self.used = time.time()
        self.ending: asyncio.Task[None] | None = None

    # -- what pages ask -------------------------------------------------------------------------------------------

    def ask(self, page: str) -> int:
        """Take note that a page asks; return the number of its question."""
        self.pages[page] = time.monotonic()
        self.questions[page] = self.questions.get(page, 0) + 1
        return self.questions[page]

    def leave(self, page: str, question: int) -> None:
        """Take note that a page was closed, as its question was cut off and it has not asked another."""
        if self.questions.get(page) == question:
            self.pages.pop(page, None)
            self.heard.set()

    async def wait(self, page: str, seen: int) -> dict[str, object]:
        """Return the state when it is another than the page has seen, or after a while."""
        if seen == self.number:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), POLL)
        if page in self.pages:
            self.pages[page] = time.monotonic()
        return {"number": self.number, "state": self.state, "words": self.words}

    def use(self) -> None:
        """Take note that somebody uses the session."""
        self.used = time.time()
        if self.state == "idle":
            self._become("running", "")

    def has_saved(self, page: str) -> None:
        """Take note that a page has saved all that it holds."""
        self.saved.add(page)
        self.heard.set()

    def _become(self, state: str, words: str) -> None:
        self.state, self.words, self.number = state, words, self.number + 1
        self.changed.set()
        self.changed = asyncio.Event()
        if words:
            print(f"hpcml: {words}", file=sys.stderr, flush=True)

    # -- ends -----------------------------------------------------------------------------------------------------

    def told_to_end(self) -> None:
        """SIGTERM: the run was cancelled, is out of time, or lost its scheduler or workers."""
        if not self.told:
            self.told = True
            self.end("The run is being ended; open pages save what they hold.")

    def end(self, words: str) -> None:
        """Tell all pages, let them save, and stop."""
        if self.ending is None:
            self._become("ending", words)
            self.ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(10.0, self.context.settings.driver_grace * 0.4)):
                while self._unsaved():
                    await self.heard.wait()
                    self.heard.clear()
        if left := self._unsaved():
            print(f"hpcml: {len(left)} open pages did not say that they saved.", file=sys.stderr, flush=True)
        self.server.stop()

    def _unsaved(self) -> set[str]:
        now = time.monotonic()
        return {page for page, seen in self.pages.items() if now - seen < FORGET} - self.saved

    # -- looks ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the run's notes and for idleness, until the session ends."""
        while self.ending is None:
            try:
                notes = files.listed(self.context.attempt.directory)
            except OSError as error:  # the shared file system may hang or be stale for a while
                print(f"hpcml: the run's notes cannot be read: {error}", file=sys.stderr, flush=True)
                notes = set()
            if self.context.attempt.time_limit.name in notes and self.state != "near":
                lead = self.context.settings.signal_lead
                self._become("near", f"The time limit is near: this session ends in about {_rounded(lead)}.")
            elif self.context.settings.idle:
                await self._look_for_idleness()
            await asyncio.sleep(
                min(LOOK, max(0.2, self.context.settings.idle / 10)) if self.context.settings.idle else LOOK
            )

    async def _look_for_idleness(self) -> None:
        idle = self.context.settings.idle
        if await self._busy():
            self.use()
        self.used = max(self.used, self._last_message())
        left = self.used + idle - time.time()
        warning = min(MOST_WARNING, idle / 4)
        if left <= 0:
            words = f"nobody used it for {_rounded(idle)}"
            self._note_end(words)
            self.end(f"The session ends: {words} (hpcml jupyter --idle).")
        elif left < warning and self.state == "running":
            self._become("idle", f"Nobody uses this session: it ends in {_rounded(warning)}.")
        elif left >= warning and self.state == "idle":
            self._become("running", "")

    def _last_message(self) -> float:
        """Return when a kernel or a terminal last said something (Unix time)."""
        settings = self.server.web_app.settings
        times = [settings["kernel_manager"].last_kernel_activity, settings.get("terminal_last_activity")]
        return max([said.timestamp() for said in times if said is not None], default=0.0)

    async def _busy(self) -> bool:
        """Whether a kernel computes, or the run's workers do."""
        kernels: Any = self.server.kernel_manager
        if any(
            getattr(kernels.get_kernel(name), "execution_state", "") == "busy" for name in kernels.list_kernel_ids()
        ):
            return True
        try:
            counts = await asyncio.wait_for(ask(self.scheduler, "/json/counts.json"), 5.0)
        except (OSError, ValueError, TimeoutError):
            return False  # the scheduler has gone or hangs; the supervisor sees to that
        return bool(counts.get("processing"))

    def _note_end(self, words: str) -> None:
        """Leave word of an end that is the session's own, for the run's status."""
        path = self.context.attempt.service_of("jupyter")
        files.write_json(path, {**(files.read_json(path) or {}), "ended": words})


async def ask(socket: Path, path: str, token: str = "") -> dict[str, Any]:
    """Return the JSON table that a server on a unix socket of this node gives for a path.

    Raises
    ------
    OSError
        If nobody listens.
    ValueError
        If the answer is not 200 or no JSON.
    """
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        key = f"Authorization: token {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{key}\r\n".encode())
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    answer = head.partition(b"\r\n")[0].decode(errors="replace")
    if answer.split()[1:2] != ["200"]:
        raise ValueError(f"{path}: {answer or 'no answer'}")
    found: dict[str, Any] = json.loads(body)
    return found


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def add_handlers(server: ServerApp, session: Session) -> None:
    """Let pages ask about the session's end, and count what a user does as use: all requests that are no GET."""
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado.web import RequestHandler, authenticated

    class SessionHandler(APIHandler):  # type: ignore[misc]
        """``GET hpcml/session?page=ID&seen=N`` waits for news; ``POST`` says ``saved`` or ``stay``."""

        @authenticated  # type: ignore[untyped-decorator]
        async def get(self) -> None:
            page, seen = self.get_argument("page", "")[:64], self.get_argument("seen", "-1")
            if page:  # who asks without a name holds no documents
                self.asked = page, session.ask(page)
            self.finish(await session.wait(page, int(seen) if seen.isdecimal() else -1))

        def on_connection_close(self) -> None:
            if asked := getattr(self, "asked", None):
                session.leave(*asked)
            super().on_connection_close()

        @authenticated  # type: ignore[untyped-decorator]
        async def post(self) -> None:
            said = self.get_json_body() or {}
            if said.get("saved"):
                session.has_saved(str(said.get("page", "")))
            if said.get("stay"):
                session.use()
            self.finish({})

    app = server.web_app
    app.add_handlers(".*$", [(url_path_join(app.settings["base_url"], "hpcml/session"), SessionHandler)])
    log = app.settings["log_function"]

    def log_and_count(handler: RequestHandler) -> None:
        log(handler)
        if (
            handler.request.method not in ("GET", "HEAD", "OPTIONS")
            and not isinstance(handler, SessionHandler)
            and handler.get_status() < 400
        ):
            session.use()

    app.settings["log_function"] = log_and_count
