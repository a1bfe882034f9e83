"""The script of a Jupyter run: JupyterLab on a unix socket, with kernels that are clients of this very run.

``python -m hpcml.kinds.dask.node.jupyter.server`` is started by the supervisor in the place of a user's script. It
ends with 0 when the user shut it down or it was idle for long, with 143 when it was signalled to end, with 80 when it
could not start.

JupyterLab's documents live in the browser, so its pages have to save them; each holds a websocket here. Idleness is not
left to Jupyter's own ``shutdown_no_activity_timeout``: to that one an open page is use for ever, because it asks for
the list of kernels again and again, and what the run's workers do is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.errors import START_FAILED
from hpcml.kinds.dask.node.jupyter import config
from hpcml.kinds.dask.node.security import tls
from hpcml.node import script_environment, shared_files
from hpcml.node.context import Context, load
from hpcml.node.events_and_end import leave_note
from hpcml.paths import SCRIPT

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


PATH = "hpcml/session"
LOOK = 3.0  # seconds between looks at the run's files and at what the kernels do
MOST_WARNING = 300.0  # seconds before an end for idleness at which pages are told, at most; a quarter of it at least
NOT_STARTED = "JupyterLab could not be started"
TERMINATED = 128 + signal.SIGTERM
ANSWER_WITHIN = 60.0  # seconds from the start until the server has to answer itself
PROBE = "/api/status"  # what an authenticated GET is sent to; its `started` is the server's identity


class Session:
    """The end of the session as server and pages see it.

    ``state`` is ``running``, ``idle`` (it will end soon unless somebody does something), ``near`` (the time limit is
    near) or ``ending``; ``signalled`` is whether the supervisor has signalled the server to end. Where it has not,
    ``status`` is the exit status, and ``ended`` why the session ends. ``pages`` are the websockets of the open pages,
    ``saved`` those that have saved all they hold since the end began.
    """

    def __init__(self, context: Context, server: ServerApp, scheduler: Path) -> None:
        self.context, self.server, self.scheduler = context, server, scheduler
        self.state, self.sentence = "running", ""
        self.signalled = False
        self.status, self.ended = 0, "it was shut down"
        self.pages: set[Any] = set()
        self.saved: set[Any] = set()
        self.pages_changed = asyncio.Event()
        self.used = time.time()
        self.ending: asyncio.Task[None] | None = None

    # -- pages ----------------------------------------------------------------------------------------------------

    def open(self, page: Any) -> None:
        """Take in a page that was opened, and tell it the state."""
        self.pages.add(page)
        self._tell(page)

    def close(self, page: Any) -> None:
        """Take note that a page was closed: it is not waited for."""
        self.pages.discard(page)
        self.pages_changed.set()

    def hear(self, page: Any, message: str) -> None:
        """Take in what a page says: ``saved``, or ``stay`` when somebody wants to go on."""
        if message == "saved":
            self.saved.add(page)
            self.pages_changed.set()
        elif message == "stay":
            self.use()

    def use(self) -> None:
        """Take note that somebody uses the session."""
        self.used = time.time()
        if self.state == "idle":
            self._become("running", "")

    def _tell(self, page: Any) -> None:
        page.write_message({"state": self.state, "words": self.sentence})

    def _become(self, state: str, sentence: str) -> None:
        self.state, self.sentence = state, sentence
        for page in self.pages:
            self._tell(page)
        if sentence:
            print(f"hpcml: {sentence}", file=sys.stderr, flush=True)

    # -- ends -----------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """SIGTERM: the run was cancelled, is out of time, or lost its scheduler or workers."""
        if not self.signalled:
            self.signalled = True
            self.end("The run is ending. JupyterLab now saves the documents of all open pages.")

    def end(self, sentence: str) -> None:
        """Tell all pages, let them save, and stop."""
        if self.ending is None:
            self._become("ending", sentence)
            self.ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(10.0, self.context.settings.deadlines.script_grace * 0.4)):
                while self.pages - self.saved:
                    await self.pages_changed.wait()
                    self.pages_changed.clear()
        if unsaved := self.pages - self.saved:
            print(
                f"hpcml: {len(unsaved)} open JupyterLab pages may not have saved their documents.",
                file=sys.stderr,
                flush=True,
            )
        self.server.stop()

    # -- looks ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the run's files and for idleness, until the session ends."""
        settings, attempt = self.context.settings, self.context.attempt
        while self.ending is None:
            try:
                names = shared_files.listed(attempt.directory)
            except OSError as error:  # the shared file system may hang or be stale for a while
                print(f"hpcml: the run's folder cannot be read: {error}", file=sys.stderr, flush=True)
                names = set()
            if attempt.time_limit.name in names and self.state != "near":
                lead = _rounded(settings.job.signal_lead)
                self._become("near", f"The time limit is near: this session ends in about {lead}.")
            elif settings.code.idle:
                await self._look_for_idleness()
            await asyncio.sleep(min(LOOK, max(0.2, settings.code.idle / 10)) if settings.code.idle else LOOK)

    async def _look_for_idleness(self) -> None:
        idle = self.context.settings.code.idle
        if await self._busy():
            self.use()
        settings = self.server.web_app.settings
        times = (settings["kernel_manager"].last_kernel_activity, settings.get("terminal_last_activity"))
        self.used = max([self.used, *(at.timestamp() for at in times if at is not None)])
        left, warning = self.used + idle - time.time(), min(MOST_WARNING, idle / 4)
        if left < warning and self.state == "running":
            self._become("idle", f"This session is idle. Without activity, it ends in {_rounded(warning)}.")
            self.used += max(0.0, warning - left)  # a look that comes late takes nothing from the warning's time
        elif left <= 0:
            self.ended = f"the session was idle for {_rounded(idle)}"
            self.end(f"The session ends: {self.ended} (hpcml jupyter --idle).")
        elif left >= warning and self.state == "idle":
            self._become("running", "")

    async def _busy(self) -> bool:
        """Whether a kernel computes, or the run's workers do."""
        kernels: Any = self.server.kernel_manager
        states = [getattr(kernels.get_kernel(name), "execution_state", "") for name in kernels.list_kernel_ids()]
        if "busy" in states:
            return True
        try:
            counts = await asyncio.wait_for(ask(self.scheduler, "/json/counts.json"), 5.0)
        except (OSError, ValueError, TimeoutError):
            return False  # the scheduler has gone or hangs; the supervisor sees to that
        return bool(counts.get("processing"))


async def ask(socket: Path, path: str, token: str = "") -> dict[str, Any]:
    """Return the JSON table that a server on a unix socket of this node gives for a path, or a ValueError."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        key = f"Authorization: token {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{key}\r\n".encode())
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status_line = head.partition(b"\r\n")[0].decode(errors="replace")
    if status_line.split()[1:2] != ["200"]:
        raise ValueError(f"{path}: {status_line or 'the server sent no answer'}")
    table: dict[str, Any] = json.loads(body)
    return table


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def add_handlers(server: ServerApp, session: Session) -> None:
    """Let pages hear of the session's end, and count what a user does as use: all requests that are no GET."""
    from jupyter_server.auth.decorator import ws_authenticated
    from jupyter_server.base.handlers import JupyterHandler
    from jupyter_server.base.websocket import WebSocketMixin
    from jupyter_server.utils import url_path_join
    from tornado.web import RequestHandler
    from tornado.websocket import WebSocketHandler

    class PageHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):  # type: ignore[misc]
        """A page's websocket; Jupyter's own mixin checks its Origin, and closes it if the page does not answer."""

        def set_default_headers(self) -> None:
            """Those of JupyterHandler are for pages."""

        @ws_authenticated  # type: ignore[untyped-decorator]
        async def get(self, *arguments: Any, **options: Any) -> None:
            await super().get(*arguments, **options)

        def open(self, *_: str) -> None:
            super().open()
            session.open(self)

        def on_message(self, message: str | bytes) -> None:
            session.hear(self, str(message))

        def on_close(self) -> None:
            session.close(self)

    app = server.web_app
    app.add_handlers(".*$", [(url_path_join(app.settings["base_url"], PATH), PageHandler)])
    log = app.settings["log_function"]

    def log_and_count(handler: RequestHandler) -> None:
        log(handler)
        if handler.request.method not in ("GET", "HEAD", "OPTIONS") and handler.get_status() < 400:
            session.use()

    app.settings["log_function"] = log_and_count


def main() -> int:
    """Serve until the user, the idle time, the time limit or a cancellation ends it; return the exit status."""
    context = load()
    folder = context.sockets
    places = config.make_places(folder)
    try:
        server, token = _server(context, places)
    except ImportError as error:
        leave_note(context, SCRIPT, f"{NOT_STARTED}: the run's environment lacks JupyterLab ({error})")
        print("hpcml: Install hpcml[jupyter] in this environment.", file=sys.stderr)
        return START_FAILED
    except config.UnsafeError as error:
        leave_note(context, SCRIPT, f"{NOT_STARTED}: {error}")
        return START_FAILED
    script_environment.restore(os.environ)  # for kernels and terminals
    server.io_loop.add_callback(
        os.umask, context.settings.code.umask
    )  # for notebooks too, once the server's files are made
    session = Session(context, server, folder / "dashboard.sock")
    add_handlers(server, session)
    signal.signal(signal.SIGTERM, lambda *_: server.io_loop.add_callback_from_signal(session.terminate))
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Jupyter would ask on a terminal, or print; Slurm sends them to all
    server.io_loop.add_callback(_announce, session, places.socket, token)
    server.io_loop.add_callback(session.watch)
    server.start()
    if session.signalled:
        return TERMINATED
    leave_note(context, SCRIPT, NOT_STARTED if session.status else f"JupyterLab ended: {session.ended}")
    return session.status


def _server(context: Context, places: config.Places) -> tuple[ServerApp, str]:
    """Return the server, listening, and its token, which nobody learns but by the file in the attempt's ``secret``."""
    data = os.pathsep.join(filter(None, [str(places.data), os.environ.get("JUPYTER_PATH", "")]))
    os.environ.update(JUPYTER_RUNTIME_DIR=str(places.runtime), JUPYTER_NO_CONFIG="1", JUPYTER_PATH=data)
    tempfile.tempdir = str(places.config)  # where JUPYTER_NO_CONFIG makes its empty folder
    try:
        from jupyter_core.paths import jupyter_config_dir

        settings = Path(jupyter_config_dir())
    finally:
        tempfile.tempdir = None
    from jupyterlab.labapp import LabApp

    config.close_dask_labextension()
    config.write_kernel(places.data)
    config.write_overrides(settings)
    config.write_extension(places.extensions)
    token = tls.make_token(context.attempt)
    options = config.options(context, places, token)
    server: Any = LabApp.initialize_server(argv=[], config=options)
    server.log_level = "WARN"  # its words at the start are about Ctrl-C and an address that no browser takes
    config.check(server, places)
    return server, token


async def _announce(session: Session, socket: Path, token: str) -> None:
    """Write where JupyterLab is once it answers; end it if it never does."""
    context, server = session.context, session.server
    deadline = time.monotonic() + ANSWER_WITHIN
    while True:
        try:
            identity = await asyncio.wait_for(ask(socket, PROBE, token), 5.0)
            config.check_socket(socket)
            break
        except (config.UnsafeError, OSError, ValueError, TimeoutError) as error:
            unsafe = isinstance(error, config.UnsafeError)
            if unsafe or time.monotonic() > deadline:
                state = f"was stopped by hpcml: {error}." if unsafe else f"does not answer: {error}"
                print(f"hpcml: JupyterLab {state}", file=sys.stderr)
                session.status = START_FAILED
                server.stop()
                return
            await asyncio.sleep(0.2)
    page = {"path": "/lab", "probe": PROBE, "token_file": str(context.attempt.jupyter_token)}
    shared_files.write_service(context.attempt.service_of("jupyter"), context.node, socket, identity["started"], **page)


if __name__ == "__main__":
    sys.exit(main())
