"""ETL: an aggregate straight from the files, a description, cleaning by rules, counts, correlation, encoding, groups.

The aggregate is timed by itself: its rate is the files' bytes (of Parquet the columns' uncompressed bytes) by the
phase's seconds. Rows with a missing value or one that a rule calls impossible are left out; a row can break several.
"""

from __future__ import annotations

import argparse
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

from gallery import backend, datasets, inputs, job, moments, tables
from gallery.inputs import Source
from gallery.job import Job

BINS, TOP, DRAWN = 40, 12, 3  # of a histogram; values in a count; histograms
CATEGORIES = 1_000  # distinct texts that are encoded, at most
TIMES = ["pickup", "dropoff"]


class Rule(NamedTuple):
    """What is impossible: a name, the columns it looks at, and the test, true for a bad row."""

    name: str
    columns: tuple[str, ...]
    broken: Callable[[Any], Any]


RULES = (
    Rule("dropoff not after pickup", ("pickup", "dropoff"), lambda trips: trips["dropoff"] <= trips["pickup"]),
    Rule("no distance", ("trip_distance",), lambda trips: trips["trip_distance"] <= 0),
    Rule("distance above 200 miles", ("trip_distance",), lambda trips: trips["trip_distance"] > 200),
    Rule("fare not above 0", ("fare",), lambda trips: trips["fare"] <= 0),
)


def aggregate(job: Job, source: Source, by: str, value: str) -> Any:
    """Return the mean of a column by the values of another, straight from the files; nothing is kept.

    The driver takes the groups whole, so they are brought together as a tree, without a shuffle.
    """
    frame = tables.read(source, list(dict.fromkeys([by, value])), job=job)
    return backend.to_numpy(frame.groupby(by, dropna=True)[value].mean(split_out=1).compute()).sort_index()


def bytes_read(source: Source, columns: list[str]) -> int:
    return sum(source.columns_bytes.get(name, 0) for name in columns) or source.bytes


def read_all(job: Job, source: Source) -> Any:
    """Return all columns, kept by the workers; moments that came as text become moments."""
    frame = tables.read(source, list(source.types), job=job)
    for name in TIMES:
        if name in source.types and inputs.is_text(source.types[name]):
            frame[name] = frame[name].astype("datetime64[us]")
    return frame.persist()


def describe(frame: Any, rows: int, numeric: list[str]) -> pd.DataFrame:
    """Return a line per column: rows that have a value, and of numbers their moments and (approximate) quantiles."""
    missing = dask.compute({name: frame[name].isnull().sum() for name in frame.columns})[0]
    count = {name: rows - int(gaps) for name, gaps in missing.items()}
    table = moments.described(frame, moments.of(frame, numeric)).drop(columns="count").reindex(list(count))
    table.insert(0, "count", pd.Series(count))
    return table.rename_axis("column")


def clean(frame: Any) -> tuple[Any, dict[str, int]]:
    """Return the rows that break no rule, kept by the workers, and how many break each."""
    columns = set(frame.columns)
    rules = [Rule(f"{name} missing", (name,), functools.partial(_missing, name)) for name in frame.columns]
    rules += [rule for rule in RULES if columns.issuperset(rule.columns)]
    broken = [rule.broken(frame).fillna(value=False) for rule in rules]  # cuDF's nulls compare to null
    kept = frame[~functools.reduce(operator.or_, broken)].persist()
    counts = dask.compute(*(one.sum() for one in broken))
    return kept, {rule.name: int(count) for rule, count in zip(rules, counts, strict=True) if count}


def _missing(name: str, frame: Any) -> Any:
    return frame[name].isnull()


def count(frame: Any, by: str, texts: list[str]) -> dict[str, dict[str, int]]:
    """Return the most frequent values with their rows, of texts one more than would be encoded."""
    most = {by: TOP} | dict.fromkeys(texts, CATEGORIES + 1)
    lazy = {name: frame[name].value_counts(split_out=1).nlargest(rows) for name, rows in most.items()}
    found = dict(zip(lazy, dask.compute(*lazy.values()), strict=True))
    return {name: {str(key): int(rows) for key, rows in backend.to_numpy(some).items()} for name, some in found.items()}


def encode(part: Any, categories: dict[str, list[str]], library: Any) -> Any:
    """Return a partition with texts as codes, in the texts' order, and with what models want to know of moments.

    By pandas or cuDF, whose calls are the same. This runs on a worker.
    """
    made = {
        name: part[name].astype(library.CategoricalDtype(values)).cat.codes.astype("int32")
        for name, values in categories.items()
    }
    if set(TIMES) <= set(part.columns):
        start, stop = (part[name] for name in TIMES)
        made |= {"hour": start.dt.hour.astype("int32"), "weekday": start.dt.weekday.astype("int32")}
        made["minutes"] = (stop - start).astype("timedelta64[us]").astype("int64") / 60e6
    return part.assign(**made)


def histograms(frame: Any, ends: pd.DataFrame) -> Any:
    """Return rows by bin of each column, between its ends; what is above goes into the last."""
    names, (low, high) = list(ends.columns), ends.to_numpy()
    parts = [dask.delayed(_binned)(part, names, low, high) for part in frame[names].to_delayed()]
    return sum(dask.compute(*parts))


def _binned(part: Any, names: list[str], low: Any, high: Any) -> Any:
    found = np.zeros((len(names), BINS), dtype="int64")
    for column, name in enumerate(names if len(part) else []):
        values, (least, most) = part[name].astype("float64").values, (float(low[column]), float(high[column]))
        place = (values.clip(least, most) - least) * ((BINS - 1) / max(most - least, 1e-300))
        found[column] = backend.to_numpy(np.bincount(place.astype("int64"), minlength=BINS))
    return found


def work(job: Job) -> None:
    options, known = job.options, job.result
    by, value = options.by, options.value
    if options.data:
        job.leave_out("form")
    else:
        with job.phase("generate"):
            options.data = datasets.made(job, "taxi", form=options.form)
    with job.phase("look"):
        source = inputs.survey(job.client, options.data)
        numeric = [name for name, kind in source.types.items() if inputs.is_numeric(kind)]
        backend.import_everywhere(job.client, backend.tables().__name__)
    with job.phase("aggregate"):
        means = aggregate(job, source, by, value)
        known["means"] = {
            f"{group:g}" if isinstance(group, float) else str(group): mean for group, mean in means.items()
        }
    with job.phase("read"):
        frame = read_all(job, source)
        known |= {"files": len(source.files), "input_bytes": source.bytes, "rows_read": len(frame)}
    with job.phase("describe"):
        describe(frame, known["rows_read"], numeric)
    with job.phase("clean"):
        frame, known["broken"] = clean(frame)
        job.leave_out("rows")  # those asked for; in their place come those that are left, behind those read
        known |= {"rows_dropped": known["rows_read"] - len(frame), "rows": len(frame)}
    with job.phase("count"):
        texts = [name for name, kind in source.types.items() if inputs.is_text(kind) and name not in TIMES]
        counted = count(frame, by, texts)
        known["counts"] = {name: dict(list(found.items())[:TOP]) for name, found in counted.items()}
    with job.phase("correlate"):
        moments.of(frame, numeric).correlation()
    with job.phase("encode"):
        known["categories"] = {name: sorted(counted[name]) for name in texts if len(counted[name]) <= CATEGORIES}
        blank = encode(frame._meta, known["categories"], backend.tables())
        frame = frame.map_partitions(encode, known["categories"], backend.tables(), meta=blank)
        key = "hour" if "hour" in frame.columns else by
        whole = [name for name in numeric if pa.types.is_integer(source.types[name])]  # numbers of things, most often
        drawn = list(dict.fromkeys([value, *(name for name in numeric if name not in (*whole, by)), *numeric]))[:DRAWN]
        frame.groupby(key)[value].agg(["count", "mean", "min", "max"], split_out=1).compute()
        ends = moments.quantiles(frame, drawn, (0.0, 0.99))
        histograms(frame, ends)
    with job.phase("write"):
        tables.write_parquet(job, frame, "clean")
    seconds = known["seconds"]
    rates = {"aggregate": bytes_read(source, [by, value]), "read": source.bytes}
    known["gigabytes_per_second"] = {name: round(size / 1e9 / seconds[name], 9) for name, size in rates.items()}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("etl", __doc__, rows=200_000)
    add = parser.add_argument
    add("--by", default="passenger_count", help="the aggregate's groups (default passenger_count)")
    add("--value", default="trip_distance", help="the column whose mean it is (default trip_distance)")
    add("--form", choices=datasets.FORMATS, default="csv", help="format of made data (default csv)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("etl", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
