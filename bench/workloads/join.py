"""Join of two tables that are made in the workers' memory, by a shuffle of both or by a broadcast of the right one.

A row is a function of its number and --seed alone, on CPUs and GPUs. The joined rows are summed where they arise, and
the sums are compared with those that the keys' counts give. Bytes per second are those of both tables.
"""

from __future__ import annotations

import argparse
import logging
import math
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from distributed import wait

from gallery import backend, exchange, memory, partitions
from gallery import job as jobs
from gallery.inputs import chunks_of
from gallery.job import Job, WrongResultError
from hpcml.units import format_bytes

ROW = 16  # bytes: key and payload, int64 each
PAYLOADS = 1_000  # distinct ones
CHECKED = 50_000_000  # keys, at most, whose counts the driver holds
DIRECT = "direct"
DIRECT_SHARE = 8  # a part of the result has at most this part of a worker's memory
MOST_ROWS = 2**31 - 1  # of a cuDF frame
LEFT, RIGHT = "left", "right"
SUMS = ("rows", "keys", "left", "right", "products")


def mixed(numbers: Any, salt: int) -> Any:
    """Return well-mixed 64-bit numbers, one for each number: SplitMix64 (Steele, Lea and Flood, 2014) on any array."""
    word = numbers.dtype.type
    x = numbers * word(0x9E3779B97F4A7C15) + word(salt * 0xD1342543DE82EF95 % 2**64)
    x = (x ^ (x >> word(30))) * word(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> word(27))) * word(0x94D049BB133111EB)
    return x ^ (x >> word(31))


def part(span: tuple[int, int], side: str, keys: int, seed: int) -> Any:
    """Return some rows of a table, made of their numbers."""
    rows = backend.arrays().arange(*span, dtype="uint64")
    salt = 4 * seed + 2 * (side == RIGHT)
    columns = {
        "key": mixed(rows, salt) % rows.dtype.type(keys),
        side: mixed(rows, salt + 1) % rows.dtype.type(PAYLOADS),
    }
    return backend.tables().DataFrame({name: values.astype("int64") for name, values in columns.items()})


def rows_out(job: Job, rows: dict[str, int]) -> float:
    """Return about how many rows the join gives."""
    return rows[LEFT] * rows[RIGHT] / int(job.options.keys)


def direct_parts(job: Job, rows: dict[str, int]) -> int:
    """Return a multiple of the threads: of so many, each has its share of a worker and no more rows than cuDF can."""
    has, out = memory.capacity(job.client), rows_out(job, rows)
    share = has.memory / max(has.workers, 1) / DIRECT_SHARE
    workers = job.client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
    # Dask refuses a task that takes in more than the limit, also where that lies on a GPU.
    taken = sum(rows.values()) * ROW / min(limits, default=math.inf)
    least = max(out * (ROW + 8) / share, out / MOST_ROWS, max(rows.values()) / MOST_ROWS, 2 * taken)
    each = least / max(job.threads, 1)
    return max(job.threads, 1) * max(math.ceil(each), 1)


def parts_of(job: Job, rows: dict[str, int], method: str) -> dict[str, int]:
    """Return how many partitions each table has: of a size that suits the workers, and two at least for each thread.

    What is exchanged directly has as few as there may be. A right table of one partition is sent to all as it is,
    whatever is asked of Dask; so a shuffle has it divided as the left one, and a broadcast has as few partitions as can
    be.
    """
    if method == DIRECT:
        count = direct_parts(job, rows)
        return {side: min(count, rows[side]) for side in rows}
    size = partitions.wanted(job.client)
    full = {side: -(-count * ROW // size) for side, count in rows.items()}
    left = min(rows[LEFT], max(partitions.TASKS * job.threads, full[LEFT]))
    return {LEFT: left, RIGHT: full[RIGHT] if job.options.how == "broadcast" else min(left, rows[RIGHT])}


def table(job: Job, side: str, rows: int, parts: int) -> Any:
    """Return a table as a lazy Dask frame of so many partitions."""
    spans = list(chunks_of(rows, parts))
    keys, seed = job.options.keys, job.options.seed
    return dd.from_map(part, spans, side=side, keys=keys, seed=seed, meta=part((0, 0), side, keys, seed))


def summary(joined: Any) -> Any:
    """Return a row with sums that say what was joined, whatever the order; products tell which row met which."""
    found = [
        len(joined),
        joined["key"].sum(),
        joined[LEFT].sum(),
        joined[RIGHT].sum(),
        (joined[LEFT] * joined[RIGHT]).sum(),
    ]
    return pd.DataFrame([[int(number) for number in found]], columns=list(SUMS))


def expected(left: Any, right: Any) -> dict[str, int]:
    """Return the same sums without a join: from each key's rows and payload sums in both tables."""
    lazy = [side.groupby("key")[name].agg(["count", "sum"]) for side, name in ((left, LEFT), (right, RIGHT))]
    one, other = (backend.to_numpy(found) for found in dask.compute(*lazy))
    both = one.index.intersection(other.index)
    n, s, m, t = one["count"][both], one["sum"][both], other["count"][both], other["sum"][both]
    sums = (n * m).sum(), (both * n * m).sum(), (s * m).sum(), (n * t).sum(), (s * t).sum()
    return {name: int(number) for name, number in zip(SUMS, sums, strict=True)}


def joined_sums(job: Job, left: Any, right: Any, method: str) -> Any:
    """Join both tables and return the sums of each partition of the result."""
    if job.options.how == "shuffle" and method == DIRECT:
        parts = exchange.joined(job.client, left, right, "key", left.npartitions, summary)
        return pd.concat(dask.compute(*parts), ignore_index=True)
    joined = left.merge(right, on="key", how="inner", shuffle_method=method, broadcast=job.options.how == "broadcast")
    return joined.map_partitions(summary, meta=pd.DataFrame(columns=list(SUMS), dtype="int64")).compute()


def sent(dask_worker: Any) -> int:
    """Return the bytes that a worker has sent to others so far; P2P also counts what it sends to itself."""
    p2p = [value for key, value in dask_worker.digests_total.items()
           if isinstance(key, tuple) and key[-3:] == ("background-comms", "process", "bytes")]  # fmt: skip
    return int(dask_worker.transfer_outgoing_bytes_total + sum(p2p))


def shuffle_method(asked: str | None) -> str:
    """Return how rows are exchanged. Dask's P2P turns every partition into an Arrow table in the host's memory and
    writes it to disk (distributed.shuffle), so cuDF's stay on GPUs only directly or by tasks.
    """  # noqa: D205
    return asked or (DIRECT if backend.tables().__name__ == "cudf" else "p2p")


def work(job: Job) -> None:
    options, known = job.options, job.result
    rows = {LEFT: job.rows, RIGHT: options.right}
    method = shuffle_method(options.shuffle)
    bytes_of = {side: count * ROW for side, count in rows.items()}
    out_rows = rows_out(job, rows)
    known |= {"rows_left": rows[LEFT], "rows_right": rows[RIGHT], "bytes": sum(bytes_of.values()), "shuffle": method}
    if options.how == "broadcast":
        job.leave_out("shuffle")
    # It warns of the start and the end of every shuffle: noise where the scheduler is in this process.
    logging.getLogger("distributed.shuffle._scheduler_plugin").setLevel(logging.ERROR)
    with job.phase("make"):
        backend.import_everywhere(job.client, backend.tables().__name__, backend.arrays().__name__)
        parts = parts_of(job, rows, method if options.how == "shuffle" else "")
        left, right = (table(job, side, count, parts[side]).persist() for side, count in rows.items())
        wait([left, right])
        known["partitions"] = parts
        crowded = out_rows * (ROW + 8) / left.npartitions
        if method != DIRECT and crowded > 4 * partitions.wanted(job.client):
            job.note(
                f"A partition becomes {format_bytes(crowded)} by the join: {out_rows:,.0f} rows come out. "
                "More --keys would make fewer."
            )
    before = sum(job.client.run(sent).values())
    with (
        job.phase("join"),
        dask.config.set({"dataframe.shuffle.method": method}),
    ):
        sums = joined_sums(job, left, right, method)
        known["sums"] = {name: int(sums[name].sum()) for name in SUMS}
        known["rows_joined"] = known["sums"]["rows"]
    known["bytes_moved"] = sum(job.client.run(sent).values()) - before
    with job.phase("check"):
        known["right_result"] = None
        if options.keys <= CHECKED:
            known["right_result"] = known["sums"] == expected(left, right)
        else:
            job.note(f"{options.keys:,} keys are too many for the driver: the result was not checked.")
    seconds = known["seconds"]["join"]
    known["gigabytes_per_second"] = round(known["bytes"] / 1e9 / seconds, 9)
    known["gigabytes_moved_per_second"] = round(known["bytes_moved"] / 1e9 / seconds, 9)
    known["rows_per_second"] = {"left": round(rows[LEFT] / seconds), "joined": round(known["rows_joined"] / seconds)}
    if known["right_result"] is False:
        raise WrongResultError(
            "the join is wrong: its sums are not those that the keys' counts give. Do not trust joins of these "
            "versions; report it with result.json."
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = jobs.Parser("join", __doc__, rows=2_000_000, data=False)
    add = parser.add_argument
    add("--right", type=int, help="rows of the right table (default a hundredth of --rows)")
    add("--keys", type=int, help="distinct keys (default half of --right)")
    add("--how", choices=("shuffle", "broadcast"), default="shuffle", help="what is sent where (default shuffle)")
    add(
        "--shuffle",
        choices=("tasks", "p2p", DIRECT),
        help="Dask's ways, or the fewest tasks (default: direct on GPUs, p2p on CPUs)",
    )
    options = parser.parse_args(arguments)
    options.right = options.right or max(options.rows // 100, 1)
    options.keys = options.keys or max(options.right // 2, 1)
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    return jobs.run("join", options, work)


if __name__ == "__main__":
    raise SystemExit(main())
