"""A cluster of this machine's CPUs for a script outside a run, none of whose ports talks to anybody else."""

from __future__ import annotations

from typing import Any

from distributed import LocalCluster, Nanny, Scheduler
from distributed.http.routing import RoutingApplication
from tornado.httpserver import HTTPServer

from hpcml.inside.dask_worker import PrivateWorker


class ClosedScheduler(Scheduler):  # type: ignore[misc]
    """Dask's scheduler without an HTTP port: every user of the machine reaches loopback, and Dask's pages ask nobody.

    ``LocalCluster(dashboard_address=None)`` does not close it: Dask then listens on port 8787 (distributed 2026.7).
    """

    def start_http_server(self, routes: Any, *_: Any, **__: Any) -> None:
        """Open no port: have a server that listens nowhere, for Dask gives it more routes and stops it."""
        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)
        self.http_server.port = 0


class ClosedNanny(Nanny):  # type: ignore[misc]
    """A Nanny whose worker has no HTTP port."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, worker_class=PrivateWorker, **options)


class ClosedCluster(LocalCluster):  # type: ignore[misc]
    """Dask's LocalCluster with mutual TLS on loopback and nothing else that listens."""

    def __init__(self, **options: Any) -> None:
        processes = options.get("processes", True)
        closed = {"security": True, "host": "127.0.0.1", "worker_class": ClosedNanny if processes else PrivateWorker}
        super().__init__(**{**closed, **options})

    async def _start(self) -> Any:
        self.scheduler_spec["cls"] = ClosedScheduler  # LocalCluster's constructor takes no class for it
        self.scheduler_spec["options"]["dashboard"] = False
        return await super()._start()
