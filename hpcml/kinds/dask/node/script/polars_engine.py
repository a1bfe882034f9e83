"""cuDF-Polars' DaskEngine on a run's GPU workers: it uses their memory pools, and Dask keeps them."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from distributed import Client, Scheduler

from hpcml.kinds.dask.samples import QUERIES

_REPORTER = "hpcml-reporter"
_TTL = "distributed.scheduler.worker-ttl"
_before: list[Any] = []  # in a worker: RMM's resource that the engine builds on


@contextlib.contextmanager
def opened(client: Client, options: dict[str, Any]) -> Iterator[Any]:
    """Yield an engine on all workers of a client; at the end they have their memory resource as before.

    Raises
    ------
    RuntimeError
        If cudf-polars is not installed in the run's environment.
    """
    try:
        from cudf_polars.engine.dask import DaskEngine
        from cudf_polars.engine.hardware_binding import HardwareBindingPolicy
        from cudf_polars.utils.config import MemoryResourceConfig
    except ImportError as error:
        hint = "Install hpcml[polars-cuda12] or hpcml[polars-cuda13]"
        raise RuntimeError(f"hpcml.polars_engine() needs cudf-polars ({error}). {hint}.") from error
    engine_options = {
        "hardware_binding": HardwareBindingPolicy(enabled=False),  # hpcml has bound each worker to its GPU's cores
        "memory_resource_config": MemoryResourceConfig(qualname=f"{__name__}.{memory.__name__}"),
        "raise_on_fail": True,
        **options.pop("engine_options", {}),
    }
    hosts = {worker["host"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
    if len(hosts) > 1:
        print(
            "hpcml: other users can connect to cuDF-Polars' own connections between the nodes, which need no key "
            "(hpcml help security).",
            file=sys.stderr,
        )
    client.run_on_scheduler(wait_for_queries, patient=True)
    try:
        with DaskEngine(dask_client=client, engine_options=engine_options, **options) as engine:
            yield engine
    finally:
        client.run(restore)
        client.run_on_scheduler(wait_for_queries, patient=False)


def memory() -> Any:
    """Return the resource that the engine of this worker allocates from: the run's pool, or CUDA's own."""
    import rmm

    _before[:] = [rmm.mr.get_current_device_resource()]
    if type(_before[0]) is rmm.mr.CudaMemoryResource:  # no pool: each allocation would wait for the GPU
        return rmm.mr.CudaAsyncMemoryResource()
    return _before[0]


def restore() -> None:
    """Have this worker allocate as before the engine."""
    import rmm

    if _before:
        rmm.mr.set_current_device_resource(_before.pop())


def wait_for_queries(*, patient: bool, dask_scheduler: Scheduler) -> None:
    """Keep workers that send no heartbeat, as they do not while they compute a query."""
    dask_scheduler.worker_ttl = math.inf if patient else parse_timedelta(dask.config.get(_TTL))
    if patient and (reporter := dask_scheduler.plugins.get(_REPORTER)):
        reporter.send(event=QUERIES)
