"""Futures in most of their forms, with functions and classes that only the script has."""

from dataclasses import dataclass
from pathlib import Path

from dask.distributed import Client, WorkerPlugin, get_client, get_worker, performance_report, worker_client


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


def total(numbers):
    return get_client().submit(sum, numbers, pure=False).result()


def nested(n):
    with worker_client() as client:
        return sum(client.gather(client.map(abs, range(n))))


def looked_up(key):
    return get_worker().table[key]


def imported(x):
    import uploaded

    return uploaded.triple(x)


def of_its_own_client():
    with Client(n_workers=2) as client:
        return client.submit(sum, [20, 1], pure=False).result()


if __name__ == "__main__":
    found = {}
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        client.wait_for_workers(2)
        found["class"] = client.submit(sum, client.map(on_diagonal, range(10)), Point(0, 0)).result().x
        found["get_client"] = client.submit(total, [1, 2, 3]).result()
        found["worker_client"] = client.submit(nested, 5).result()
        client.register_plugin(Table())
        found["plugin"] = client.submit(looked_up, "a", pure=False).result()
        Path("uploaded.py").write_text("def triple(x):\n    return 3 * x\n")
        client.upload_file("uploaded.py")
        found["upload_file"] = client.submit(imported, 3).result()
        counter = client.submit(Counter, actor=True).result()
        found["actor"] = [counter.add(number).result() for number in (1, 2, 3)]
        with performance_report("report.html"):
            found["executor"] = list(client.get_executor().map(abs, range(3)))
        found["report"] = Path("report.html").stat().st_size > 10_000
    found["nested"] = of_its_own_client()
    expected = {
        "class": 45, "get_client": 6, "worker_client": 10, "plugin": 1, "upload_file": 9, "actor": [1, 3, 6],
        "executor": [0, 1, 2], "report": True, "nested": 21,
    }  # fmt: skip
    print("result", found == expected or found)
