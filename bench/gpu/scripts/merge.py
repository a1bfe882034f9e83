"""Run dask-cuda's merge benchmark on a cluster of its own (``local``) or on that of the run (``run``).

The code is dask_cuda.benchmarks.local_cudf_merge's own; several sizes share one cluster, and the throughputs and the
median bandwidth between workers go into a JSON file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GIB = 1024**3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("where", choices=("local", "run"))
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--rows", type=lambda text: [int(word) for word in text.split(",")], required=True)
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--devices", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pool", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="wait for so many")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def benchmark_arguments(options: argparse.Namespace, rows: int) -> list[str]:
    """Return the benchmark's own command line; it makes its memory pools for the first size, and they are kept."""
    words = [
        "--chunk-size",
        str(rows),
        "--devs",
        options.devices,
        "--protocol",
        options.protocol,
        "--runs",
        str(options.runs),
    ]
    words += ["--type", "cpu"] if options.cpu else ["--rmm-pool-size", str(options.pool)]
    if options.where == "run":
        words += ["--scheduler-address", os.environ["DASK_SCHEDULER_ADDRESS"]]
    elif rows != options.rows[0]:
        words += ["--disable-rmm"]
    return words


def clear_log(dask_worker: Any) -> None:
    dask_worker.transfer_incoming_log.clear()


@contextlib.contextmanager
def client_of(options: argparse.Namespace, arguments: argparse.Namespace) -> Iterator[Any]:
    """Give a client of the run's cluster, or of a cluster as the benchmark makes it."""
    from distributed import Client, LocalCluster

    if options.where == "run":
        with Client() as client:
            if options.workers:
                client.wait_for_workers(options.workers, timeout=120)
            yield client
        return
    from dask_cuda.benchmarks.utils import get_cluster_options

    if options.cpu:
        count = len(options.devices.split(","))
        with LocalCluster(n_workers=count, threads_per_worker=1, protocol=options.protocol, dashboard_address=None) as cluster, \
                Client(cluster) as client:  # fmt: skip
            yield client
        return
    chosen = get_cluster_options(arguments)
    with chosen["class"](*chosen["args"], **chosen["kwargs"]) as cluster, Client(cluster) as client:
        yield client


def main() -> None:
    options = parse()
    from dask_cuda.benchmarks import common, local_cudf_merge, utils

    found: dict[str, Any] = {}

    def keep(arguments: argparse.Namespace, _index: Any, bandwidths: Any, results: Any, client: Any = None) -> None:
        median = utils.BandwidthStats._fields.index("median")
        between = [float(value) for value in bandwidths[..., median].reshape(-1) if value > 0]
        throughputs = [size / seconds / GIB for size, seconds in results]
        found[str(arguments.chunk_size)] = {
            "gib_s": len(throughputs) / sum(1 / value for value in throughputs), "runs_gib_s": throughputs,
            "wall_s": statistics.median(seconds for _, seconds in results), "bytes": int(results[0][0]),
            "pair_gib_s": statistics.median(between) / GIB if between else 0.0,
        }  # fmt: skip
        local_cudf_merge.pretty_print_results(arguments, _index, bandwidths, results, client=client)

    def parsed(rows: int) -> argparse.Namespace:
        sys.argv[1:] = benchmark_arguments(options, rows)
        arguments: argparse.Namespace = local_cudf_merge.parse_args()
        return arguments

    with client_of(options, parsed(options.rows[0])) as client:
        for rows in options.rows:
            client.run(clear_log)
            config = common.Config(args=parsed(rows), bench_once=local_cudf_merge.bench_once,
                                   create_tidy_results=local_cudf_merge.create_tidy_results, pretty_print_results=keep)  # fmt: skip
            common.run(client, config.args, config)
            new = options.result.with_suffix(".new")  # what is measured stays, also if the cluster's end goes wrong
            new.write_text(json.dumps(found))
            new.rename(options.result)


if __name__ == "__main__":
    main()
