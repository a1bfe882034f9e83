"""The roles of a run with a Dask cluster."""

from __future__ import annotations

from hpcml.kind import Role

NEEDS = ("dask", "distributed", "cryptography")  # modules that a cluster needs in the run's Python
SCHEDULER = Role("scheduler", every_node=False, title="the scheduler", log="Dask's scheduler")
WORKER = Role("worker", every_node=True, title="the workers", log="Dask's workers")
