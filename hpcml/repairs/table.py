"""The repairs: what each of them repairs, where that is known upstream, and the releases that it was tried with."""

from __future__ import annotations

from typing import NamedTuple


class Repair(NamedTuple):
    """One module of this package."""

    module: str
    library: str
    """The package with the fault, named as in :mod:`hpcml.installed_packages`."""
    tried: str
    """The releases that have the fault and that the repair was tried with, as a specifier: ``==26.10.0``, or
    ``>=26.8.0,<=26.10.0``. With any other release the repair is off.
    """
    fixed_in: str
    """The release that no longer needs the repair; empty: no release so far."""
    fault: str
    upstream: str
    """The pull request that introduced the fault, an issue about it, or the patch in docs/upstream that fixes it."""
    gain: str
    without_dask: bool = False
    """Whether runs without a Dask cluster apply it too."""


REPAIRS = (
    Repair(
        module="finder",
        library="rapids-dask-dependency",
        tried="==26.10.0",
        fixed_in="",
        fault="Two threads that import parts of Dask wait for each other forever",
        upstream="[patch](rapids-dask-dependency.patch)",
        gain="no hang",
        without_dask=True,
    ),
    Repair(
        module="file_names",
        library="cloudpickle",
        tried="==3.1.3",
        fixed_in="",
        fault="The traceback of a task names `<dynamic-code>` instead of the script's file and shows no line",
        upstream="[cloudpickle#560](https://github.com/cloudpipe/cloudpickle/pull/560)",
        gain="tracebacks show file and line",
    ),
    Repair(
        module="closing",
        library="distributed",
        tried="==2026.7.1",
        fixed_in="",
        fault="While the Dask scheduler shuts down, it informs all workers about each worker that leaves",
        upstream="[patch](distributed-close.patch)",
        gain="with 1,000 workers, shutdown takes 0.6 s of processor time instead of 13.8 s",
    ),
    Repair(
        module="switching",
        library="distributed",
        tried="==2026.7.1",
        fixed_in="",
        fault="Tasks that compute in Python slow down encrypted transfers to their worker",
        upstream="[distributed#6325](https://github.com/dask/distributed/issues/6325)",
        gain="transfers are 3 to 9 times as fast",
    ),
    Repair(
        module="spilling",
        library="dask-cuda",
        tried="==26.10.0",
        fixed_in="",
        fault="Each spill of GPU data allocates new host memory, and the chunk that is needed next is spilled first",
        upstream="[patch](dask-cuda-pinned.patch), [patch](dask-cuda-order.patch)",
        gain="passes over the data are 7.6 times as fast on one H100",
    ),
    Repair(
        module="dead_worker_memory",
        library="ucx",
        tried="==1.21.0",
        fixed_in="",
        fault="The GPU memory of a killed worker stays allocated while another worker on the same node runs",
        upstream="no patch yet",
        gain="the killed worker's memory pool is released after 2 to 3 s",
    ),
)
