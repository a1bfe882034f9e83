"""The headline workloads, as one writes them by hand: on a LocalCUDACluster of their own (``local``) or on a run (``run``).

    by_hand.py local svd --result FILE --sizes '{"rows": 1250000, "columns": 20000}' --devices 0,1 --pool 70000000000

The code is the same on both, so that what differs is the cluster. Seconds are of the work alone: data is made, and lies
where it belongs, before the clock starts, except for ``array``, whose making is part of the work. The work is done three
times: ``first`` loads libraries and compiles kernels, ``seconds`` is the second time, and the third is watched by Dask's
task stream, which tells what the workers' threads did (``profile``). With ``--limit`` each of the three has so many seconds: what has
not ended then is written down with the stacks of script and workers (``hung``), and the script ends.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask.utils import key_split
from distributed import Client, LocalCluster, get_task_stream, wait


def xp() -> Any:
    if dask.config.get("array.backend", None) == "cupy":
        import cupy

        return cupy
    return np


def frames() -> Any:
    if dask.config.get("dataframe.backend", None) == "cudf":
        import cudf

        return cudf
    import pandas as pd

    return pd


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


HUNG = 3  # the exit status after a time that did not end
LAST = 6  # lines of each thread's stack
limit: dict[str, Any] = {}  # the seconds for each time, and where a hang is written


def stacks() -> str:
    """Return where each thread of this process is: the names and the last lines."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-LAST:])}"
                     for ident, frame in sys._current_frames().items())  # fmt: skip


@contextlib.contextmanager
def bounded(client: Client, name: str, done: list[float]) -> Iterator[None]:
    """End the script, with the stacks of all written down, if the block does not end within its seconds."""

    def give_up() -> None:
        faulthandler.dump_traceback(all_threads=True)
        asker = threading.Thread(target=ask, daemon=True)  # a worker that holds Python's lock never answers
        asker.start()
        asker.join(20)
        print("\n".join(f"== {at}\n{text}" for at, text in told.items()), flush=True)
        what = {"hung": name, "limit": limit["seconds"], "done": done, "stacks": told}
        limit["file"].write_text(json.dumps(what))
        os._exit(HUNG)

    def ask() -> None:
        told["tasks"] = str(client.processing())
        told.update({at: str(text) for at, text in client.run(stacks, on_error="return").items()})

    told: dict[str, str] = {}
    timer = threading.Timer(limit.get("seconds", 0), give_up)
    timer.daemon = True
    if limit:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def measured(client: Client, work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Do the work three times; return the seconds of the first and the second, and what the third one's time went to."""
    with bounded(client, "the first time", []):
        first, _ = timed(work)
    with bounded(client, "the second time", [first]):
        seconds, value = timed(work)
    with bounded(client, "the third time", [first, seconds]), get_task_stream(client) as stream:
        watched, _ = timed(work)
    return {"seconds": seconds, "first": first, "profile": profile(stream.data, watched, client)}, value


def profile(tasks: list[dict[str, Any]], seconds: float, client: Client) -> dict[str, Any]:
    """Return seconds by what the workers' threads did, and of the computing by name of task, mean of all threads."""
    threads = sum(client.nthreads().values())
    actions: dict[str, float] = {}
    names: dict[str, float] = {}
    for task in tasks:
        for span in task["startstops"]:
            took = (span["stop"] - span["start"]) / threads
            actions[span["action"]] = actions.get(span["action"], 0.0) + took
            if span["action"] == "compute":
                name = key_split(task["key"])
                names[name] = names.get(name, 0.0) + took
    actions["nothing"] = max(seconds - actions.get("compute", 0.0), 0.0)
    longest = sorted(names, key=lambda name: -names[name])[:5]
    return {"seconds": round(seconds, 3), "tasks": len(tasks), "threads": threads,
            "actions": {name: round(value, 3) for name, value in sorted(actions.items())},
            "compute": {name: round(names[name], 3) for name in longest}}  # fmt: skip


def genotypes(library: Any, block_info: Any) -> Any:
    place = block_info[None]
    return library.random.RandomState(sum(place["chunk-location"])).randint(0, 3, place["chunk-shape"]).astype("uint8")


def svd(client: Client, sizes: dict[str, int]) -> dict[str, Any]:
    """Ten singular values of 0, 1 and 2 as uint8, 20 kB a row: genotypes."""
    shape, step = (sizes["rows"], sizes["columns"]), (sizes["chunk"], max(sizes["columns"] // 4, 1))
    library = xp()
    chunks = da.core.normalize_chunks(step, shape)
    x = da.map_blocks(
        genotypes, library, chunks=chunks, dtype="uint8", meta=library.empty((0, 0), dtype="uint8")
    ).persist()
    wait(x)

    def work() -> Any:
        u, s, v = da.linalg.svd_compressed(x, k=10, seed=1)
        u, s, v = dask.persist(u, s, v)
        wait([u, s, v])
        return [float(value) for value in s.compute()]

    found, values = measured(client, work)
    return {**found, "gib": x.nbytes / 2**30, "answer": values[0]}


def csv(client: Client, sizes: dict[str, int]) -> dict[str, Any]:
    """Mean distance by number of passengers, from CSV files that were just written: they are in the page cache."""
    folder = pathlib.Path(sizes["folder"])  # type: ignore[arg-type]
    paths = [str(path) for path in sorted(folder.glob("*.csv"))]

    def work() -> Any:
        frame = dd.read_csv(paths, blocksize=sizes["block"])
        return frame.groupby("passenger_count").trip_distance.mean(split_out=1).compute()  # few groups: no shuffle

    found, means = measured(client, work)
    return {**found, "gib": sum(pathlib.Path(path).stat().st_size for path in paths) / 2**30,
            "answer": float(means.sort_index().iloc[0])}  # fmt: skip


def array(client: Client, sizes: dict[str, int]) -> dict[str, Any]:
    """Create a normal array, and sum every other element of every other row, plus one."""

    def work() -> float:
        shape = (sizes["rows"], sizes["columns"])
        x = da.random.default_rng(1).standard_normal(shape, chunks=sizes["chunk"])  # CuPy has no normal()
        return float((x + 1)[::2, ::2].sum().compute())

    found, total = measured(client, work)
    cells = sizes["rows"] * sizes["columns"]
    return {
        **found,
        "gib": cells * 8 / 2**30,
        "answer": total / (-(-sizes["rows"] // 2) * -(-sizes["columns"] // 2)),
    }


def keyed(number: int, rows: int, keys: int, name: str, arrays: Any, tables: Any) -> Any:
    """Return a partition; a worker of a run does not know what the script chose as Dask's backends."""
    state = arrays.random.RandomState(number)
    return tables.DataFrame({"key": state.randint(0, keys, rows), name: state.random_sample(rows)})


def keyed_frame(rows: int, parts: int, keys: int, name: str, first: int) -> Any:
    """Return a lazy table whose partitions' numbers, which are their seeds, begin with ``first``."""
    libraries = {"arrays": xp(), "tables": frames()}
    return dd.from_map(keyed, range(first, first + parts), rows=rows // parts, keys=keys, name=name, **libraries,
                       meta=keyed(0, 2, 2, name, **libraries))  # fmt: skip


def join(client: Client, sizes: dict[str, int]) -> dict[str, Any]:
    """Join many rows with a hundredth as many on keys of which each has two on the right."""
    parts = sizes["parts"]

    def made(rows: int, name: str, first: int) -> Any:
        frame = keyed_frame(rows, parts, sizes["right"] // 2, name, first).persist()
        wait(frame)
        return frame

    left, right = made(sizes["left"], "a", 0), made(sizes["right"], "b", 1_000_000)

    def work() -> int:
        joined = left.merge(right, on="key", how="inner", broadcast=False, shuffle_method="tasks")
        return int(joined.map_partitions(len, meta=(None, "int64")).sum().compute())

    found, rows = measured(client, work)
    return {**found, "gib": sizes["left"] * 16 / 2**30, "answer": rows / sizes["left"]}


def kmeans(client: Client, sizes: dict[str, int]) -> dict[str, Any]:
    """Fit with so many rows for each worker: on more workers it should take as long."""
    workers = len(client.nthreads())
    library, features = xp(), sizes["features"]
    x = da.map_blocks(points, library, features, chunks=((sizes["rows"],) * workers, (features,)), dtype="float32",
                      meta=library.empty((0, 0), dtype="float32")).persist()  # fmt: skip
    wait(x)
    start = np.random.default_rng(0).normal(size=(sizes["k"], features)).astype("float32")
    if library is np:
        from dask_ml.cluster import KMeans
    else:
        from cuml.dask.cluster import KMeans
    model = KMeans(n_clusters=sizes["k"], init=start, n_init=1, max_iter=20, tol=1e-9, random_state=0)
    found, _ = measured(client, lambda: model.fit(x))
    return {**found, "gib": x.nbytes / 2**30, "answer": int(model.n_iter_), "workers": workers}


def points(library: Any, features: int, block_info: Any) -> Any:
    place = block_info[None]
    state = library.random.RandomState(place["chunk-location"][0])
    return state.standard_normal(place["chunk-shape"]).astype("float32")


WORK: dict[str, Callable[[Client, dict[str, int]], dict[str, Any]]] = {
    "svd": svd, "csv": csv, "array": array, "join": join, "kmeans": kmeans}  # fmt: skip


@contextlib.contextmanager
def client_of(options: argparse.Namespace) -> Iterator[Client]:
    if not options.cpu:
        dask.config.set({"array.backend": "cupy", "dataframe.backend": "cudf"})
    if options.where == "run":
        with Client() as client:
            yield client
        return
    count = len(options.devices.split(","))
    if options.cpu:
        made: Any = LocalCluster(n_workers=count, threads_per_worker=1, protocol="tcp", dashboard_address="127.0.0.1:0")
    else:
        from dask_cuda import LocalCUDACluster

        made = LocalCUDACluster(CUDA_VISIBLE_DEVICES=options.devices, protocol=options.protocol,
                                rmm_pool_size=options.pool, dashboard_address="127.0.0.1:0")  # fmt: skip
    with made as cluster, Client(cluster) as client:
        yield client


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("where", choices=("local", "run"))
    parser.add_argument("what", choices=sorted(WORK))
    parser.add_argument("--result", type=pathlib.Path, required=True)
    parser.add_argument("--sizes", type=json.loads, required=True)
    parser.add_argument("--devices", default="0")
    parser.add_argument("--protocol", default="ucx")
    parser.add_argument("--pool", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit", type=float, default=0, metavar="SECONDS", help="for each of the three times")
    options = parser.parse_args()
    if options.limit:
        limit.update(seconds=options.limit, file=options.result)
    with client_of(options) as client:
        found = WORK[options.what](client, options.sizes)
        new = options.result.with_suffix(".new")  # what is measured stays, also if the cluster's end goes wrong
        new.write_text(json.dumps(found))
        new.rename(options.result)


if __name__ == "__main__":
    main()
