"""Preprocessing of a table: impute gaps, scale numbers, one-hot encode categories, encode the label.

All workers find the sums, extremes and category counts; each prepares its own partitions, by pandas or cuDF with the
same calls. A sample is prepared by scikit-learn too: ``portable_agrees`` is the share of rows that are the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from gallery import backend, datasets, inputs, job, models, tables
from gallery.inputs import Source
from gallery.job import Job, RefusedError

MISSING = "(missing)"
MOST = 10_000  # categories of a column; more is an identifier
SAMPLE = 5_000  # rows that scikit-learn prepares too


@dataclass
class Plan:
    """What all workers found.

    Attributes
    ----------
    fill, low, high
        Of each column of numbers: what fills gaps, and the two values that scaling maps to -1 and 1 (standard) or to
        0 and 1 (minmax).
    counts
        Of each column of categories, how many rows hold each, gaps as "(missing)".
    """

    scale: str
    fill: dict[str, float] = field(default_factory=dict)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    def columns(self, name: str) -> list[str]:
        """Return the categories, sorted."""
        return sorted(self.counts[name])


def choose(source: Source, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the columns of numbers and those of categories."""
    wanted = [name for name in source.types if name != options.target]
    numbers = [name for name in wanted if inputs.is_numeric(source.types[name])]
    texts = [name for name in wanted if is_category(source.types[name])]
    if other := [name for name in wanted if name not in (*numbers, *texts)]:
        kinds = ", ".join(f"{name} ({source.types[name]})" for name in other)
        raise RefusedError(f"{source.where}: neither numbers nor text: {kinds}. Leave them out by --columns.")
    return numbers, texts


def is_category(kind: pa.DataType) -> bool:
    return inputs.is_text(kind) or bool(pa.types.is_dictionary(kind))


def clean(frame: Any, numbers: list[str], numbered: dict[str, bool]) -> Any:
    """Return the frame with numbers as float64, an infinite one as a gap, and categories as text.

    ``numbered`` has every category and the label, and whether the data holds numbers for it.
    """
    for name in numbers:
        values = frame[name].astype("float64")
        frame[name] = values.where(values.abs() < np.inf)
    for name, number in numbered.items():
        frame[name] = models.as_category(frame[name], numbered=number)
    return frame


def learn(frame: Any, source: Source, numbers: list[str], texts: list[str], options: argparse.Namespace) -> Plan:
    """Return what all workers find, in two passes: sums, extremes and counts, then squares about the means."""
    plan, target = Plan(options.scale), [options.target] if options.target else []
    sums = {name: (frame[name].mean(), frame[name].min(), frame[name].max()) for name in numbers}
    counts = {name: (frame[name].value_counts(split_out=1), frame[name].isnull().sum()) for name in (*texts, *target)}
    sums, counts = dask.compute(sums, counts)
    plan.fill = {name: float(mean) for name, (mean, _, _) in sums.items()}
    squares = {name: ((frame[name].fillna(mean) - mean) ** 2).mean() for name, mean in plan.fill.items()}
    (spread,) = dask.compute({name: value**0.5 for name, value in squares.items()})
    for name, (mean, least, most) in sums.items():
        standard = (mean - spread[name], mean + spread[name])
        plan.low[name], plan.high[name] = (
            float(end) for end in (standard if plan.scale == "standard" else (least, most))
        )
    for name, (series, gaps) in counts.items():
        known = {str(value): int(number) for value, number in backend.to_numpy(series).items() if number}
        if name == options.target:
            plan.labels = sorted(known)
            continue
        plan.counts[name] = known | ({MISSING: int(gaps)} if gaps else {})
    return plan


def prepare(part: Any, plan: Plan, target: str | None, library: Any) -> Any:
    """Return a partition prepared; by pandas or cuDF, whose calls are the same. This runs on a worker."""
    made = []
    for name, fill in plan.fill.items():
        filled, low, high = part[name].fillna(fill), plan.low[name], plan.high[name]
        zero, one = {"standard": ((low + high) / 2, (high - low) / 2), "minmax": (low, high - low)}.get(
            plan.scale, (0, 1)
        )
        made.append(((filled - zero) / (one or 1.0)).rename(name))  # a constant column becomes 0
    for name in plan.counts:
        value = part[name].fillna(MISSING)
        typed = value.astype(library.CategoricalDtype(plan.columns(name)))
        made.append(library.get_dummies(typed, prefix=name, dtype="float64"))
    if target:
        coded = part[target].astype(library.CategoricalDtype(plan.labels)).cat.codes
        made.append(coded.astype("int32").rename(target))
    return library.concat(made, axis=1)


def portable(plan: Plan) -> ColumnTransformer:
    """Return scikit-learn's transformers, fitted on a small table that has just what the workers found.

    A column of numbers alternates between its two ends, which have its mean, spread and extremes.
    A column of categories has each of them.
    """
    scalers = {"standard": [("scale", StandardScaler())], "minmax": [("scale", MinMaxScaler())], "none": []}
    rows = 2 * max([1, *(len(found) for found in plan.counts.values())])
    table: dict[str, Any] = {}
    steps: list[Any] = []
    for name, fill in plan.fill.items():
        table[name] = [plan.low[name], plan.high[name]] * (rows // 2)
        filler = SimpleImputer(strategy="constant", fill_value=fill)
        steps.append((f"number {name}", Pipeline([("fill", filler), *scalers[plan.scale]]), [name]))
    for name, found in plan.counts.items():
        table[name] = np.array([*found, *[next(iter(found))] * (rows - len(found))], dtype=object)
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        filler = SimpleImputer(strategy="constant", fill_value=MISSING)
        steps.append((f"category {name}", Pipeline([("fill", filler), ("encode", encoder)]), [name]))
    return ColumnTransformer(steps, verbose_feature_names_out=False).fit(pd.DataFrame(table))


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.data is None:
        with job.phase("generate"):
            options.data, options.target = datasets.made(job, "table"), options.target or "label"
    with job.phase("read"):
        target = [options.target] if options.target else []
        source = inputs.survey(job.client, options.data)
        numbers, texts = choose(source, options)
        names = [*numbers, *texts]
        numbered = {name: inputs.is_numeric(source.types[name]) for name in (*texts, *target)}
        frame = tables.read(source, [*names, *target]).map_partitions(clean, numbers, numbered)
        total = len(frame)
        if gaps := [*(names if options.nulls == "drop" else []), *target]:
            frame = frame.dropna(subset=gaps)
        frame = frame.persist()
        rows = len(frame)
        job.leave_out("rows")  # those asked for; in their place come those that are left, behind those read
        known |= {"files": len(source.files), "rows_read": total, "rows_dropped": total - rows, "rows": rows}
        if total > rows:
            job.note(f"{total - rows:,} of {total:,} rows have a gap where none may be and are left out.")
    with job.phase("learn"):
        missing = dask.compute({name: frame[name].isnull().sum() for name in names})[0]
        known["missing"] = {name: int(number) for name, number in missing.items()}
        plan = learn(frame, source, numbers, texts, options)
        known |= {"fill": plan.fill, "categories": {name: len(plan.counts[name]) for name in texts}}
        known["labels"] = plan.labels
    with job.phase("prepare"):
        library = backend.tables()
        blank = prepare(frame._meta, plan, options.target, library)
        prepared = frame.map_partitions(prepare, plan, options.target, library, meta=blank)
        tables.write_parquet(job, prepared, "prepared")
        known["columns"] = [str(name) for name in blank.columns]
    with job.phase("write"):
        model = portable(plan)
        sample = backend.to_numpy(frame.head(SAMPLE, npartitions=-1, compute=False).compute())
        here = prepare(sample, plan, options.target, pd)[list(model.get_feature_names_out())]
        known["portable_agrees"] = float(np.isclose(model.transform(sample[names]), here, atol=1e-9).all(axis=1).mean())


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("preprocess", __doc__, rows=200_000)
    add = parser.add_argument
    add("--target", help="a column of labels, to be numbered 0, 1 … (default: none; made data: label)")
    add("--scale", choices=("standard", "minmax", "none"), default="standard", help="numbers (default standard)")
    add("--nulls", choices=("mean", "drop"), default="mean", help="what becomes of gaps (default mean)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("preprocess", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
