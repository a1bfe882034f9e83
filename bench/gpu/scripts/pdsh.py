"""cuDF-Polars' own benchmark of 22 queries on the GPUs of a run: by its workers, or by ranks.

    pdsh.py dask|spmd WORDS…    the words are those of ``python -m cudf_polars.streaming.benchmarks.pdsh``

Only the engine is the run's; queries, options and clock are upstream's.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def main() -> None:
    frontend, *words = sys.argv[1:]
    if frontend == "spmd":  # rapidsmpf uses the first GPU that it sees
        local, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        visible = visible or [str(number) for number in range(size)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[local:] + visible[:local])
    os.environ |= {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}  # as upstream's main program does
    import cudf_polars.engine.dask as upstream
    from cudf_polars.streaming.benchmarks import pdsh, utils

    import hpcml

    original = upstream.DaskEngine

    def of_the_run(*, dask_client: Any, **options: Any) -> Any:
        upstream.DaskEngine = original
        return hpcml.polars_engine(dask_client, **options)

    upstream.DaskEngine = of_the_run
    utils.run_polars(pdsh.PDSHQueries, utils.parse_args([*words, "--frontend", frontend]))


if __name__ == "__main__":
    main()
