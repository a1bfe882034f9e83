"""Dask's dashboard on the scheduler's unix socket, for localhost alone.

The dashboard's pages are loaded at the first look: Bokeh and the pages take about a second to import. A run that nobody
looks at does not pay for them, nor does any startup.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any
from urllib.parse import urlsplit

import dask.config
from distributed.http.routing import RoutingApplication
from tornado.web import ErrorHandler, RequestHandler

IDENTITY = "/hpcml/identity.json"  # what a tunnel asks for, to know that it reached this run and no other
LOCAL = ("localhost", "127.0.0.1", "[::1]")
_PROXY = "distributed.http.proxy"  # would let who reaches the dashboard talk to ports of other nodes


def configure() -> None:
    """Take the proxy out of Dask's routes.

    Who may open a websocket is decided here (:func:`is_local`): Bokeh's own list wants port numbers, and the tunnel's
    port is the laptop's.
    """
    routes = dask.config.get("distributed.scheduler.http.routes")
    dask.config.set(
        {
            "distributed.scheduler.http.routes": [route for route in routes if route != _PROXY],
            "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin": ["*"],
        }
    )


def is_local(host: str, origin: str = "") -> bool:
    """Whether a request came through a tunnel of the user's own, by its headers ``Host`` and ``Origin``.

    A page on the internet that is open in the same browser can send requests to the tunnel's port. Its ``Origin`` gives
    it away; and if it gave its own name the address 127.0.0.1 (DNS rebinding), its ``Host`` does.
    """
    names = [host] + ([urlsplit(origin).netloc] if origin else [])
    return all(_name(text) in LOCAL for text in names)


def _name(netloc: str) -> str:
    """Return the host of ``host:port``, brackets included."""
    name, colon, port = netloc.rpartition(":")
    return (name if colon and port.isdecimal() else netloc).lower()


def _answer(handler: RequestHandler, status: int, text: str) -> None:
    handler.set_status(status)
    handler.set_header("Content-Type", "text/plain; charset=utf-8")
    handler.finish(text)


class _Refused(RequestHandler):  # type: ignore[misc]
    def prepare(self) -> None:
        _answer(
            self, 403, "This is the dashboard of an hpcml run; it accepts only requests for localhost and 127.0.0.1.\n"
        )


class _Identity(RequestHandler):  # type: ignore[misc]
    """Say which scheduler this is; Dask's own page about it fails as soon as there are workers (2026.7)."""

    def initialize(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def get(self) -> None:
        self.write({"id": self.scheduler.id})


class _Waking(RequestHandler):  # type: ignore[misc]
    """Load the pages, then send the browser to the same address again."""

    async def get(self, *_: str) -> None:
        application = self.application
        assert isinstance(application, Application)
        if problem := await application.wake():
            hint = "Install bokeh in the run's environment. The pages /metrics and /health work without bokeh."
            _answer(self, 503, f"The dashboard's pages cannot be shown: {problem}.\n{hint}\n")
        else:
            self.redirect(self.request.uri or "/")


class Application(RoutingApplication):  # type: ignore[misc]
    """Dask's HTTP application that answers to localhost only, and mounts the dashboard at the first look at it."""

    def __init__(self, routes: Any, scheduler: Any) -> None:
        super().__init__(routes)
        self.add_handlers(".*$", [(IDENTITY, _Identity, {"scheduler": scheduler})])
        self.scheduler = scheduler
        self.problem: str | None = None  # None: not loaded yet; empty: the pages are there
        self.lock = asyncio.Lock()

    def find_handler(self, request: Any, **options: Any) -> Any:
        """Return Dask's handler of a request; a page that nobody knows yet loads the dashboard."""
        if not is_local(request.headers.get("Host", ""), request.headers.get("Origin", "")):
            return self.get_handler_delegate(request, _Refused)
        handler = super().find_handler(request, **options)
        unknown = handler is None or issubclass(handler.handler_class, ErrorHandler)
        if unknown and self.problem != "" and request.method == "GET":
            return self.get_handler_delegate(request, _Waking)
        return handler

    async def wake(self) -> str:
        """Mount the dashboard's pages unless they are; return the reason why that is impossible, or nothing."""
        async with self.lock:
            if self.problem is None:
                try:
                    pages: Any = await asyncio.to_thread(importlib.import_module, "distributed.dashboard.scheduler")
                    pages.connect(self, self.scheduler.http_server, self.scheduler)
                    self.problem = ""
                except ImportError as error:
                    self.problem = (str(error).strip() or "bokeh is missing").splitlines()[0]
            return self.problem
