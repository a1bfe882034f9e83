"""Futures in most of their forms, with functions and classes that only the script has."""

import contextlib
import io
import os
from concurrent.futures import as_completed as first_ended
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.bag
from dask.distributed import (
    Client,
    WorkerPlugin,
    as_completed,
    get_client,
    get_worker,
    performance_report,
    progress,
    wait,
    worker_client,
)

MODULE = "def triple(x):\n    return 3 * x\n"


@dataclass
class Point:
    x: int
    y: int

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


class Counter:
    """An actor."""

    def __init__(self):
        self.count = 0

    def add(self, number):
        self.count += number
        return self.count


class Table(WorkerPlugin):
    name = "table"

    def setup(self, worker):
        worker.table = {"a": 1}


def on_diagonal(x):
    return Point(x, x)


def square(x):
    return x * x


def total(numbers):
    return get_client().submit(sum, numbers, pure=False).result()


def nested(n):
    with worker_client() as client:
        return sum(client.gather(client.map(square, range(n))))


def looked_up(key):
    return get_worker().table[key]


def imported(x):
    import uploaded

    return uploaded.triple(x)


def of_its_own_client():
    with Client(n_workers=2) as client:
        return client.submit(sum, [20, 1], pure=False).result()


def main():
    found = {}
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        client.wait_for_workers(2)
        futures = client.map(on_diagonal, range(10))
        found["class"] = client.submit(sum, futures, Point(0, 0)).result().x
        found["as_completed"] = sorted(future.result() for future in as_completed(client.map(square, range(8))))
        found["get_client"] = client.submit(total, [1, 2, 3]).result()
        found["worker_client"] = client.submit(nested, 5).result()
        client.register_plugin(Table())
        found["plugin"] = client.submit(looked_up, "a", pure=False).result()
        Path("uploaded.py").write_text(MODULE)
        client.upload_file("uploaded.py")
        found["upload_file"] = client.gather(client.map(imported, range(4)))
        counter = client.submit(Counter, actor=True).result()
        found["actor"] = [counter.add(number).result() for number in (1, 2, 3)]
        with client.get_executor() as pool:
            found["executor"] = sorted(one.result() for one in first_ended([pool.submit(square, n) for n in range(5)]))
        found["concurrent map"] = list(client.get_executor().map(square, range(3)))
        with performance_report("report.html"):
            found["bag"] = dask.bag.range(100, npartitions=8).map(square).sum().compute()
        found["report"] = Path("report.html").stat().st_size > 10_000
        with dask.config.set({"optimization.fuse.active": False}):
            found["config"] = dask.delayed(square)(dask.delayed(square)(3)).compute()
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            progress(later := client.map(square, range(20, 30)), notebook=False)
            wait(later)
        found["progress"] = client.submit(sum, later).result()
        scattered = client.scatter(list(range(6)), broadcast=True)
        found["scatter"] = sum(client.gather(scattered))
        found["run"] = len(set(client.run(os.getpid).values()))
    found["nested"] = of_its_own_client()
    print("result", found == FOUND or found)


FOUND = {
    "class": 45,
    "as_completed": [0, 1, 4, 9, 16, 25, 36, 49],
    "get_client": 6,
    "worker_client": 30,
    "plugin": 1,
    "upload_file": [0, 3, 6, 9],
    "actor": [1, 3, 6],
    "executor": [0, 1, 4, 9, 16],
    "concurrent map": [0, 1, 4],
    "bag": 328350,
    "report": True,
    "config": 81,
    "progress": 6085,
    "scatter": 15,
    "run": 2,
    "nested": 21,
}


if __name__ == "__main__":
    main()
