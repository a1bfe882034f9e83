"""A cluster of this machine's CPUs for a script outside a run, none of whose ports talks to anybody else."""

from __future__ import annotations

import multiprocessing.spawn
from typing import Any

from distributed import LocalCluster, Nanny, Scheduler
from distributed.http.routing import RoutingApplication
from distributed.nanny import WorkerProcess

from hpcml import listeners
from hpcml.kinds.dask.node import temporary_directory
from hpcml.kinds.dask.node.dask_worker import PrivateWorker
from hpcml.kinds.dask.node.security.connection_limits import Guarded
from hpcml.node import scratch

WITHOUT_SCRIPT = "Dask worker of hpcml.connect()"  # the name of a process that multiprocessing starts


class ClosedScheduler(Guarded, Scheduler):  # type: ignore[misc]
    """Dask's scheduler without an HTTP port: every user of the machine reaches loopback, and Dask's pages ask nobody.

    ``LocalCluster(dashboard_address=None)`` does not close it: Dask then listens on port 8787 (distributed 2026.7).
    """

    def start_http_server(self, routes: Any, *_: Any, **__: Any) -> None:
        """Open no port: have a server that listens nowhere, for Dask gives it more routes and stops it."""
        self.http_application = RoutingApplication(routes)
        self.http_server = listeners.http_server(self.http_application)


class _WithoutScript(WorkerProcess):  # type: ignore[misc]
    """A worker's process that does not import the user's script: without a main guard that would run it again.

    Functions and classes of ``__main__`` travel by value in any case (cloudpickle).
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "process" and value is not None:  # it is set before the process is started
            value._process.name = WITHOUT_SCRIPT  # noqa: SLF001 - AsyncProcess has a name, and no way to give one
        super().__setattr__(name, value)


def _leave_out_script() -> None:
    """Have multiprocessing tell processes of that name nothing of ``__main__``; again it does nothing."""
    original = multiprocessing.spawn.get_preparation_data
    if original.__module__ == __name__:
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        described: dict[str, Any] = original(name)
        if name == WITHOUT_SCRIPT:
            described = {key: value for key, value in described.items() if not key.startswith("init_main_from_")}
        return described

    multiprocessing.spawn.get_preparation_data = get_preparation_data


class ClosedNanny(Guarded, Nanny):  # type: ignore[misc]
    """A Nanny whose worker has no HTTP port, and does not import the user's script."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _leave_out_script()
        super().__init__(*arguments, worker_class=PrivateWorker, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "process" and type(value) is WorkerProcess:  # Dask has no option for this class
            value.__class__ = _WithoutScript
        super().__setattr__(name, value)


class NoHttpPort:
    """What makes the scheduler of a LocalCluster, or of a class derived from it, open no HTTP port."""

    async def _start(self) -> Any:
        self.scheduler_spec["cls"] = ClosedScheduler  # type: ignore[attr-defined] # the constructor takes no class for it
        self.scheduler_spec["options"]["dashboard"] = False  # type: ignore[attr-defined]
        return await super()._start()  # type: ignore[misc]


class ClosedCluster(NoHttpPort, LocalCluster):  # type: ignore[misc]
    """Dask's LocalCluster with mutual TLS on loopback, nothing else that listens, and a folder of its own.

    Dask's folder in ``/tmp`` has a fixed name, may be anybody's, and comes first on ``sys.path``. This one is new,
    in ``local_directory``, else in Dask's ``temporary-directory``, else in TMPDIR or ``/tmp``, gone with the cluster;
    a RuntimeError if somebody else could replace what is in that place.
    """

    def __init__(self, **options: Any) -> None:
        try:
            folder, self._removed = temporary_directory.of_cluster(self, options.pop("local_directory", None) or "")
        except scratch.UnsafePlaceError as error:
            raise RuntimeError(f"{error}; {scratch.SET_TMPDIR}") from error
        processes = options.get("processes", True)
        closed = {"security": True, "host": "127.0.0.1", "worker_class": ClosedNanny if processes else PrivateWorker}
        options["scheduler_kwargs"] = {**(options.get("scheduler_kwargs") or {}), "local_directory": str(folder)}
        try:
            super().__init__(**{**closed, **options, "local_directory": str(folder)})
        except BaseException:
            self._removed()
            raise

    async def _close(self) -> None:
        await super()._close()
        self._removed()
