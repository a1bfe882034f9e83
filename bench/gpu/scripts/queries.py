"""The same queries on the same Parquet files: by dask_cudf, by cuDF-Polars' DaskEngine, and by Polars on CPUs.

    queries.py make DIR ROWS [--cpu]                        lineitem of so many rows, orders and customers
    queries.py dask|polars|cpu DIR --result FILE [--cpu]    ask each query twice; the second time counts

The tables are after TPC-H's, with whole numbers alone, so that answers are equal to the last digit. With --cpu pandas stands in
for cuDF, and Polars' own engine for DaskEngine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = 16  # of lineitem
DAYS = 2_500
SHARE, ORDERS, CUSTOMERS = 1_250, 4, 40  # of the days; rows of lineitem for each order, for each customer
TOP = 100

Query = Callable[[], list[Any]]


def make(folder: Path, rows: int, *, cpu: bool) -> None:
    """Write the tables, on the GPU where there is one."""
    numbers = importlib.import_module("numpy" if cpu else "cupy")
    frames = importlib.import_module("pandas" if cpu else "cudf")
    orders, customers, each = rows // ORDERS, rows // CUSTOMERS, rows // FILES

    def table(name: str, seed: int, count: int, columns: dict[str, tuple[int, int, str]], **more: Any) -> None:
        rng = numbers.random.default_rng(seed)
        made = {column: rng.integers(low, high, count, dtype=kind) for column, (low, high, kind) in columns.items()}
        frames.DataFrame(more | made).to_parquet(str(folder / f"{name}-{seed:02}.parquet"), index=False)

    for number in range(FILES):
        table("lineitem", number, each, {
            "orderkey": (0, orders, "int64"), "quantity": (1, 51, "int64"), "price": (90_000, 10_500_000, "int64"),
            "discount": (0, 11, "int64"), "shipdate": (0, DAYS, "int32"), "flag": (0, 3, "int32"), "status": (0, 2, "int32"),
        })  # fmt: skip
    for number in range(FILES // ORDERS):
        share = orders // (FILES // ORDERS)
        keys = numbers.arange(number * share, (number + 1) * share)
        columns = {"custkey": (0, customers, "int64"), "orderdate": (0, DAYS, "int32"), "priority": (0, 5, "int32")}
        table("orders", number, share, columns, orderkey=keys)
    columns = {"segment": (0, 5, "int32"), "nation": (0, 25, "int32")}
    table("customer", 0, customers, columns, custkey=numbers.arange(customers))


def by_dask(folder: Path, *, p2p: bool) -> dict[str, Query]:
    """Return the queries of Dask's tables; the large join with P2P too, if that is asked for."""
    import dask
    import dask.dataframe as dd

    def read(name: str) -> Any:
        return dd.read_parquet(f"{folder}/{name}-*.parquet")

    def rows(frame: Any) -> list[Any]:
        found = frame.to_backend("pandas").compute()
        return [list(map(int, row)) for row in found.itertuples(index=False)]

    def revenue(frame: Any) -> Any:
        return frame.assign(revenue=frame["price"] * (100 - frame["discount"]))

    def pricing() -> list[Any]:
        lineitem = read("lineitem")
        found = revenue(lineitem[lineitem["shipdate"] < DAYS - 90])
        named = {"quantity": "sum", "price": "sum", "revenue": "sum", "discount": "count"}
        return sorted(rows(found.groupby(["flag", "status"]).agg(named).reset_index()))

    def best() -> list[Any]:
        lineitem, orders, customer = read("lineitem"), read("orders"), read("customer")
        orders = orders[orders["orderdate"] < SHARE].merge(
            customer[customer["segment"] == 1][["custkey"]], on="custkey"
        )
        found = revenue(lineitem[lineitem["shipdate"] > SHARE]).merge(orders[["orderkey", "orderdate"]], on="orderkey")
        sums = found.groupby("orderkey")["revenue"].sum().reset_index()
        return [row[0] for row in rows(sums.nlargest(TOP, "revenue")[["revenue"]])]

    def nations() -> list[Any]:
        orders = read("orders").merge(read("customer")[["custkey", "nation"]], on="custkey")
        found = revenue(read("lineitem")).merge(orders[["orderkey", "nation"]], on="orderkey")
        return sorted(rows(found.groupby("nation")["revenue"].sum().reset_index()))

    def dearest() -> list[Any]:
        return [row[0] for row in rows(read("lineitem").nlargest(TOP, "price")[["price"]])]

    def join(method: str) -> Query:
        def joined() -> list[Any]:
            with dask.config.set({"dataframe.shuffle.method": method}):
                found = read("lineitem")[["orderkey", "quantity"]].merge(
                    read("orders")[["orderkey", "priority"]], on="orderkey"
                )
                return sorted(rows(found.groupby("priority")["quantity"].sum().reset_index()))

        return joined

    dask.config.set({"dataframe.shuffle.method": "tasks"})
    named = {"pricing": pricing, "best orders": best, "nations": nations, "dearest": dearest}
    return named | {"join": join("tasks")} | ({"join, p2p": join("p2p")} if p2p else {})


def by_polars(folder: Path, engine: Any) -> dict[str, Query]:
    """Return the same queries of Polars'."""
    import polars as pl

    def read(name: str) -> Any:
        return pl.scan_parquet(f"{folder}/{name}-*.parquet")

    def rows(frame: Any) -> list[Any]:
        return [list(map(int, row)) for row in frame.collect(engine=engine).rows()]

    revenue = (pl.col("price") * (100 - pl.col("discount"))).alias("revenue")

    def pricing() -> list[Any]:
        found = read("lineitem").filter(pl.col("shipdate") < DAYS - 90).with_columns(revenue).group_by("flag", "status")
        return sorted(rows(found.agg(pl.col("quantity", "price", "revenue").sum(), pl.col("discount").count())))

    def best() -> list[Any]:
        known = read("customer").filter(pl.col("segment") == 1).select("custkey")
        orders = read("orders").filter(pl.col("orderdate") < SHARE).join(known, on="custkey").select("orderkey")
        found = read("lineitem").filter(pl.col("shipdate") > SHARE).join(orders, on="orderkey").with_columns(revenue)
        sums = found.group_by("orderkey").agg(pl.col("revenue").sum())
        return [row[0] for row in rows(sums.select("revenue").sort("revenue", descending=True).head(TOP))]

    def nations() -> list[Any]:
        orders = (
            read("orders").join(read("customer").select("custkey", "nation"), on="custkey").select("orderkey", "nation")
        )
        found = read("lineitem").join(orders, on="orderkey").with_columns(revenue)
        return sorted(rows(found.group_by("nation").agg(pl.col("revenue").sum())))

    def dearest() -> list[Any]:
        return [row[0] for row in rows(read("lineitem").select("price").sort("price", descending=True).head(TOP))]

    def join() -> list[Any]:
        orders = read("orders").select("orderkey", "priority")
        found = read("lineitem").select("orderkey", "quantity").join(orders, on="orderkey")
        return sorted(rows(found.group_by("priority").agg(pl.col("quantity").sum())))

    def sink() -> list[Any]:
        """Each row once: a file of many ranks' rows has as many, and the same sums, as CPUs find."""
        orders = read("orders").select("orderkey", "priority")
        found = read("lineitem").select("orderkey", "quantity").join(orders, on="orderkey")
        path = folder / f"sunk-{os.getpid()}-{time.time_ns()}"
        found.sink_parquet(path, engine=engine)
        files = pl.scan_parquet(f"{path}/**/*.parquet" if path.is_dir() else path)
        sums = files.select(pl.len(), pl.col("quantity").sum(), pl.col("orderkey").sum()).collect()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return [list(map(int, row)) for row in sums.rows()]

    return {"pricing": pricing, "best orders": best, "nations": nations, "dearest": dearest, "join": join, "sink": sink}


def asked(queries: dict[str, Query], times: int) -> dict[str, Any]:
    """Return each query's answer, the seconds of each time, and the error of those that failed."""
    found: dict[str, Any] = {}
    for name, query in queries.items():
        print(f"queries: {name}", flush=True)
        seconds: list[float] = []
        try:
            for _ in range(times):
                began = time.perf_counter()
                answer = query()
                seconds.append(round(time.perf_counter() - began, 4))
            found[name] = {"answer": answer, "seconds": seconds, "error": ""}
        except Exception as error:  # noqa: BLE001 - the next query is asked whatever happens
            found[name] = {"answer": None, "seconds": seconds, "error": f"{type(error).__name__}: {error}"[:600]}
            print(f"queries: {name}: {found[name]['error']}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("by", choices=("make", "dask", "polars", "cpu"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int, nargs="?", default=0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--p2p", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.by == "make":
        make(options.folder, options.rows, cpu=options.cpu)
        return
    if options.by == "cpu":
        options.result.write_text(json.dumps(asked(by_polars(options.folder, "streaming"), 1)))
        return
    import hpcml

    client = hpcml.connect(backend="auto")
    began = time.perf_counter()
    facts: dict[str, Any] = {"workers": len(client.scheduler_info(n_workers=-1)["workers"])}
    if options.by == "dask":
        facts["queries"] = asked(by_dask(options.folder, p2p=options.p2p), options.times)
    elif options.cpu:
        facts["queries"] = asked(by_polars(options.folder, "streaming"), options.times)
    else:
        with hpcml.polars_engine(client) as engine:
            facts["engine_s"] = round(time.perf_counter() - began, 3)
            facts["ranks"] = engine.nranks
            facts["queries"] = asked(by_polars(options.folder, engine), options.times)
    options.result.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
