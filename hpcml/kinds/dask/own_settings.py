"""The decisions of the plan that only this kind's code asks for: in plan.json under ``inside.of_kind``."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
from typing import NamedTuple


class Own(NamedTuple):
    """What Dask's processes and the script need beside the settings of every kind."""

    on_loss: str = "fail"  # with a worker lost for good: continue or fail
    resources: tuple[tuple[str, float], ...] = ()  # Dask's abstract resources of each worker: name and amount
    own_clusters: bool = True  # a Dask cluster that the script opens is one beside the run's
    restart_on_cuda_error: bool = True  # a worker whose process can use no GPU any more ends and is replaced
