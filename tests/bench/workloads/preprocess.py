"""Prepare a table on a Dask cluster: fill gaps, scale numbers, encode categories and the label, export the encoders.

Reads files (or makes a table with gaps and rare categories) and writes into --out: result.json, preprocess.png,
prepared/ (Parquet: numbers, ready for the other jobs), model/ (scikit-learn's ColumnTransformer, which prepares new
rows on any machine, by tests/bench/workloads/score.py) and labels/ (its LabelEncoder, where there is a --target).

    python tests/bench/workloads/preprocess.py --rare 100                                  a laptop: made data, seconds
    python tests/bench/workloads/preprocess.py --data 'sales/*.csv' --target kind --nulls drop       a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/preprocess.py --rows 500_000_000          a cluster: the same script

All workers find the sums, extremes and category counts; scikit-learn's transformers are then fitted on small tables of
just these, and each worker prepares its own partitions: on CPUs by pandas, on GPUs by cuDF, with the same calls. A
sample is prepared by scikit-learn too, and `portable agrees` says that both did the same.
--nulls mean: gaps in numbers become the column's mean, in categories a category of their own; drop: their rows go.
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
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler

from gallery import backend, charts, datasets, inputs, job, memory, models, picture, tables
from gallery.inputs import Source
from gallery.job import Job, RefusedError

MISSING, RARE = "(missing)", "infrequent_sklearn"  # the second as scikit-learn calls them
MOST = 10_000  # categories of a column; more is an identifier
SAMPLE = 5_000  # rows that scikit-learn prepares too
COPIES = 3  # of the table that live at once: as read, as prepared, as written


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
    rare: int
    fill: dict[str, float] = field(default_factory=dict)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    def kept(self, name: str) -> list[str]:
        """Return the categories that have a column of their own, sorted."""
        return sorted(value for value, number in self.counts[name].items() if number >= self.rare)

    def columns(self, name: str) -> list[str]:
        """Return the categories and, if there are rare ones, what stands for them all."""
        return [*self.kept(name), *([RARE] if len(self.kept(name)) < len(self.counts[name]) else [])]


def choose(source: Source, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the columns of numbers and those of categories."""
    wanted = [name for name in options.columns or source.types if name != options.target]
    numbers = [name for name in wanted if inputs.is_numeric(source.types[name]) and name not in options.categories]
    texts = [name for name in wanted if name in options.categories or is_category(source.types[name])]
    if other := [name for name in wanted if name not in (*numbers, *texts)]:
        kinds = ", ".join(f"{name} ({source.types[name]})" for name in other)
        raise RefusedError(f"{source.where}: neither numbers nor text: {kinds}. Leave them out by --columns.")
    if not wanted:
        raise RefusedError(f"{source.where} has no columns to prepare. Give --columns.")
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
    plan, target = Plan(options.scale, options.rare), [options.target] if options.target else []
    sums = {name: (frame[name].mean(), frame[name].min(), frame[name].max()) for name in numbers}
    counts = {name: (frame[name].value_counts(split_out=1), frame[name].isnull().sum()) for name in (*texts, *target)}
    sums, counts = dask.compute(sums, counts)
    plan.fill = {name: float(mean) for name, (mean, _, _) in sums.items()}
    if empty := [name for name, mean in plan.fill.items() if not np.isfinite(mean)]:
        raise RefusedError(f"{source.where}: no value at all in {', '.join(empty)}. Leave it out by --columns.")
    squares = {name: ((frame[name].fillna(mean) - mean) ** 2).mean() for name, mean in plan.fill.items()}
    (spread,) = dask.compute({name: value**0.5 for name, value in squares.items()})
    for name, (mean, least, most) in sums.items():
        standard = (mean - spread[name], mean + spread[name])
        plan.low[name], plan.high[name] = (
            float(end) for end in (standard if plan.scale == "standard" else (least, most))
        )
    for name, (series, gaps) in counts.items():
        known = {str(value): int(number) for value, number in backend.to_numpy(series).items() if number}
        if len(known) > MOST:
            raise RefusedError(f"{source.where}: {name} has {len(known):,} values: no category. Leave it out.")
        if name == options.target:
            plan.labels = sorted(known)
            continue
        plan.counts[name] = known | ({MISSING: int(gaps)} if gaps else {})
        if not plan.kept(name):
            raise RefusedError(f"{source.where}: no category of {name} is in {plan.rare:,} rows. Lower --rare.")
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
        value = value.where(value.isin(plan.kept(name)), RARE)
        typed = value.astype(library.CategoricalDtype(plan.columns(name)))
        made.append(library.get_dummies(typed, prefix=name, dtype="float64"))
    if target:
        coded = part[target].astype(library.CategoricalDtype(plan.labels)).cat.codes
        made.append(coded.astype("int32").rename(target))
    return library.concat(made, axis=1)


def portable(plan: Plan, unknown: str) -> ColumnTransformer:
    """Return scikit-learn's transformers, fitted on a small table that has just what the workers found.

    A column of numbers alternates between its two ends, which have the mean, spread and extremes that matter; a kept
    category is there twice at least, a rare one once, and twice is what makes it frequent here.
    """
    scalers = {"standard": [("scale", StandardScaler())], "minmax": [("scale", MinMaxScaler())], "none": []}
    rows = 2 * max([1, *(len(found) for found in plan.counts.values())])
    table: dict[str, Any] = {}
    steps: list[Any] = []
    for name, fill in plan.fill.items():
        table[name] = [plan.low[name], plan.high[name]] * (rows // 2)
        filler = SimpleImputer(strategy="constant", fill_value=fill)
        steps.append((f"number {name}", Pipeline([("fill", filler), *scalers[plan.scale]]), [name]))
    handling = "infrequent_if_exist" if unknown == "rare" else unknown
    for name, found in plan.counts.items():
        kept = plan.kept(name)
        values = [*kept, *kept, *(value for value in found if value not in kept)]
        values += kept[:1] * (rows - len(values))
        table[name] = np.array(values, dtype=object)
        encoder = OneHotEncoder(min_frequency=2, handle_unknown=handling, sparse_output=False)
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
        source = inputs.survey(job.client, options.data, [*options.columns, *options.categories, *target])
        numbers, texts = choose(source, options)
        names = [*numbers, *texts]
        numbered = {name: inputs.is_numeric(source.types[name]) for name in (*texts, *target)}
        if source.rows is not None:
            memory.admit(job, COPIES * (source.rows * (8 * len(numbers) + 24 * len(texts))), source.where)
        with tables.reading(source):
            frame = tables.read(source, [*names, *target]).map_partitions(clean, numbers, numbered)
            total = len(frame)
            if gaps := [*(names if options.nulls == "drop" else []), *target]:
                frame = frame.dropna(subset=gaps)
            frame = frame.persist()
            rows = len(frame)
        job.leave_out("rows")  # those asked for; in their place come those that are left, behind those read
        known |= {"files": len(source.files), "rows_read": total, "rows_dropped": total - rows, "rows": rows}
        if not rows:
            raise RefusedError(f"{source.where}: no row without gaps, {total:,} read. Use --nulls mean.")
        if total > rows:
            job.note(f"{total - rows:,} of {total:,} rows have a gap where none may be and are left out.")
    with job.phase("learn"):
        missing = dask.compute({name: frame[name].isnull().sum() for name in names})[0]
        known["missing"] = {name: int(number) for name, number in missing.items()}
        plan = learn(frame, source, numbers, texts, options)
        known |= {"fill": plan.fill, "categories": {name: len(plan.counts[name]) for name in texts}}
        known["rare_categories"] = {name: len(plan.counts[name]) - len(plan.kept(name)) for name in texts}
        known["labels"] = plan.labels
    with job.phase("prepare"):
        library = backend.tables()
        blank = prepare(frame._meta, plan, options.target, library)
        prepared = frame.map_partitions(prepare, plan, options.target, library, meta=blank)
        tables.write_parquet(job, prepared, "prepared")
        known["columns"] = [str(name) for name in blank.columns]
    with job.phase("write", last=True):
        model = portable(plan, options.unknown)
        sample = backend.to_numpy(frame.head(SAMPLE, npartitions=-1, compute=False).compute())
        here = prepare(sample, plan, options.target, pd)[list(model.get_feature_names_out())]
        known["portable_agrees"] = float(np.isclose(model.transform(sample[names]), here, atol=1e-9).all(axis=1).mean())
        features = {**dict.fromkeys(numbers, "float64"), **dict.fromkeys(texts, "str")}
        models.export(job, model, features=features, target=options.target, metrics={},
                      numbered=[name for name in texts if numbered[name]])  # fmt: skip
        if options.target:
            labels = LabelEncoder().fit(np.array(plan.labels, dtype=object))
            models.export(job, labels, features={options.target: "str"}, target=None, metrics={}, name="labels",
                          numbered=[name for name in target if numbered[name]])  # fmt: skip
        draw(job, plan, here)


def draw(job: Job, plan: Plan, here: pd.DataFrame) -> None:
    """Write preprocess.png: the categories of the column that has most, rare ones apart, and the prepared numbers."""
    drawn, (left, right) = picture.figure(
        f"{job.result['rows']:,} rows prepared: {len(plan.fill)} columns of numbers, {len(plan.counts)} of categories",
        panels=2, height=5.2,
    )  # fmt: skip
    if plan.counts:
        name = max(plan.counts, key=lambda name: len(plan.counts[name]))
        found = plan.counts[name]
        charts.bars(left, list(found), np.array(list(found.values()), dtype=float), f"rows by {name}", most=40)
        left.axvline(plan.rare, color="black", linewidth=1, linestyle="--", label=f"--rare {plan.rare}")
        left.set_xscale("log")
        left.set_xlim(left=1)
        left.tick_params(axis="y", labelsize=7)
        left.legend(frameon=False, fontsize=9, loc="lower right")
    for number in plan.fill:
        ends = np.histogram_bin_edges(here[list(plan.fill)], bins=40).tolist()  # of one width for all
        right.hist(here[number], bins=ends, histtype="step", linewidth=1.6, label=number)
    right.set(xlabel=f"prepared value (--scale {plan.scale})", ylabel="rows of the sample", yscale="log")
    right.legend(frameon=False, fontsize=9)
    picture.save(job, "preprocess.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("preprocess", __doc__, rows=200_000)
    add = parser.add_argument
    add("--target", help="a column of labels, to be numbered 0, 1 … (default: none; made data: label)")
    add("--columns", type=job.names, default=[], help="columns to prepare: a,b,c (default: all)")
    add("--categories", type=job.names, default=[], help="columns of numbers that stand for categories: a,b,c")
    add("--scale", choices=("standard", "minmax", "none"), default="standard", help="numbers (default standard)")
    add("--nulls", choices=("mean", "drop"), default="mean", help="what becomes of gaps (default mean)")
    add("--rare", type=job.count, default=1, help="categories of fewer rows share one column (default 1: none)")
    unmet = "a category that the exported model has not met: refused, all columns 0, or as a rare one (default ignore)"
    add("--unknown", choices=("error", "ignore", "rare"), default="ignore", help=unmet)
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("preprocess", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
