"""The options that only a run with a Dask cluster has, and their group of the request."""

from __future__ import annotations

from typing import NamedTuple

from hpcml.request.option import CONTINUED, RUNS, KindOptions, Option, flag, joined
from hpcml.request.record import RunRequest

PROFILERS = {"dask": "bokeh", "memray": "memray", "ncu": "", "nsys": "", "rmm": "rmm"}  # with the package of each
_WORKERS = "Set the number of workers on each node with --set workers.per_node=N."
_THREADS = "Set the number of threads of each worker with --set workers.threads=N."


class Dask(NamedTuple):
    """What only Dask's roles are asked for."""

    own_clusters: bool = False  # the script may open Dask clusters beside the run's
    profile: str = ""  # names of profilers, with commas


# fmt: off
OPTIONS = KindOptions(
    {
        "how": (
            Option("profile", "record profiler output: dask, memray, ncu, nsys or rmm", RUNS, read=joined,
                   metavar="TOOL,…", values=tuple(PROFILERS)),
        ),
        "what to do": (
            Option("own_clusters", "let the script open its own Dask clusters, in addition to the run's cluster",
                   CONTINUED | {"jupyter", "run"}, read=flag),
        ),
    },
    {
        "--workers": _WORKERS,
        "--workers-per-node": _WORKERS,
        "--n-workers": _WORKERS,
        "--nworkers": _WORKERS,
        "--threads": _THREADS,
        "--threads-per-worker": _THREADS,
        "--protocol": "Use --set network.protocol=ucx.",
    },
)
# fmt: on


def asked(request: RunRequest) -> Dask:
    """Return the options of a request for Dask."""
    return Dask(**request.of_kind) if request.kind == "dask" else Dask()
