"""A cluster of this machine's CPUs for a script outside a run, none of whose ports talks to anybody else."""

from __future__ import annotations

import tempfile
import threading
import weakref
from typing import Any

from distributed import LocalCluster, Nanny, Scheduler
from distributed.http.routing import RoutingApplication
from tornado.httpserver import HTTPServer

from hpcml.node import scratch
from hpcml.node.roles.dask_worker import PrivateWorker
from hpcml.node.security.connection_limits import Guarded


class ClosedScheduler(Guarded, Scheduler):  # type: ignore[misc]
    """Dask's scheduler without an HTTP port: every user of the machine reaches loopback, and Dask's pages ask nobody.

    ``LocalCluster(dashboard_address=None)`` does not close it: Dask then listens on port 8787 (distributed 2026.7).
    """

    def start_http_server(self, routes: Any, *_: Any, **__: Any) -> None:
        """Open no port: have a server that listens nowhere, for Dask gives it more routes and stops it."""
        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)
        self.http_server.port = 0


class ClosedNanny(Guarded, Nanny):  # type: ignore[misc]
    """A Nanny whose worker has no HTTP port."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, worker_class=PrivateWorker, **options)


class NoHttpPort:
    """What makes the scheduler of a LocalCluster, or of a class derived from it, open no HTTP port."""

    async def _start(self) -> Any:
        self.scheduler_spec["cls"] = ClosedScheduler  # type: ignore[attr-defined] # the constructor takes no class for it
        self.scheduler_spec["options"]["dashboard"] = False  # type: ignore[attr-defined]
        return await super()._start()  # type: ignore[misc]


class ClosedCluster(NoHttpPort, LocalCluster):  # type: ignore[misc]
    """Dask's LocalCluster with mutual TLS on loopback, nothing else that listens, and a folder of its own.

    Dask's folder in ``/tmp`` has a fixed name, may be anybody's, and comes first on ``sys.path``. This one is made anew
    in ``local_directory``, else in Dask's ``temporary-directory``, else in TMPDIR or ``/tmp``, gone with the cluster;
    a RuntimeError if somebody else could replace what lies in that place.
    """

    def __init__(self, **options: Any) -> None:
        place = options.pop("local_directory", None) or scratch.for_dask(tempfile.gettempdir())
        try:
            folder = scratch.Folder(place)
        except scratch.UnsafePlaceError as error:
            raise RuntimeError(f"{error}; set TMPDIR to a folder of your own, or to a sticky one of root's") from error
        threading.Thread(target=scratch.sweep, args=(place,), name="hpcml-sweep", daemon=True).start()
        weakref.finalize(self, folder.remove)  # at the interpreter's exit too
        self._folder = folder
        processes = options.get("processes", True)
        closed = {"security": True, "host": "127.0.0.1", "worker_class": ClosedNanny if processes else PrivateWorker}
        options["scheduler_kwargs"] = {**(options.get("scheduler_kwargs") or {}), "local_directory": str(folder.path)}
        try:
            super().__init__(**{**closed, **options, "local_directory": str(folder.path)})
        except BaseException:
            folder.remove()
            raise

    async def _close(self) -> None:
        await super()._close()
        self._folder.remove()
