"""A CRISP-DM pass over a mixed table: understand, prepare, model, tune, evaluate and score.

Medians, categories and scales are learnt from a sample of up to 200,000 training rows, and models are fitted on one
worker each (as in search.py). A time is given to the model as seconds since 1970.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import sklearn.compose
import sklearn.impute
import sklearn.model_selection
import sklearn.pipeline
import sklearn.preprocessing
from distributed import wait

import search
from gallery import backend, datasets, inputs, job, models, moments, scores, split, tables, trials
from gallery.job import Job

SAMPLE = 200_000
TEST, FOLDS = 0.2, 3
CATEGORIES = 30  # columns a category becomes at most; rarer values share one
DAY, WEEK = 86_400.0, 604_800.0  # seconds
TUNED: dict[str, dict[str, list[Any]]] = {
    "ridge": {"alpha": [0.1, 1.0, 10.0, 100.0]},
    "forest": {"max_depth": [6, 10, 14], "max_features": [0.4, 0.8]},
}


def kinds_of(source: inputs.Source, columns: list[str]) -> dict[str, list[str]]:
    """Sort columns by what is done to them.

    Raises
    ------
    RefusedError
        A column is of no kind that is known here.
    """
    tests = {"number": lambda kind: inputs.is_numeric(kind) or pa.types.is_boolean(kind), "time": pa.types.is_timestamp,
             "category": inputs.is_text}  # fmt: skip
    found: dict[str, list[str]] = {name: [] for name in tests}
    for column in columns:
        kind = next(name for name, fits in tests.items() if fits(source.types[column]))
        found[kind].append(column)
    return found


def raw(part: Any, kinds: dict[str, list[str]]) -> pd.DataFrame:
    """Return a partition as the model takes it, in pandas: times as seconds since 1970, gaps as NaN everywhere."""
    frame = backend.to_numpy(part).copy()
    for name in kinds["time"]:
        frame[name] = models.seconds(frame[name])
    for name in kinds["category"]:
        frame[name] = frame[name].astype(object).where(frame[name].notna(), np.nan)
    return frame.astype(dict.fromkeys(kinds["number"], "float64"))


def preparation(kinds: dict[str, list[str]]) -> Any:
    """Return the unfitted steps before the model, all scikit-learn's own, so that the export needs no code of ours.

    Numbers: median for a gap, then scaled. Categories: a column each, a gap being one. Times: periodic splines over the
    day and the week.
    """
    numbers = sklearn.pipeline.make_pipeline(
        sklearn.impute.SimpleImputer(strategy="median"), sklearn.preprocessing.StandardScaler()
    )
    encoder = sklearn.preprocessing.OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=CATEGORIES, sparse_output=False
    )
    steps = [("numbers", numbers, kinds["number"]), ("categories", encoder, kinds["category"])]
    for name, period, knots in (("day", DAY, 9), ("week", WEEK, 8)):
        spline = sklearn.preprocessing.SplineTransformer(
            knots=np.linspace(0, period, knots)[:, None].repeat(len(kinds["time"]), axis=1), extrapolation="periodic"
        )
        filled = sklearn.pipeline.make_pipeline(sklearn.impute.SimpleImputer(strategy="median"), spline)
        steps.append((name, filled, kinds["time"]))
    return sklearn.compose.ColumnTransformer([step for step in steps if step[2]])


def work(job: Job) -> None:
    options, known, client = job.options, job.result, job.client
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "trips")
    with job.phase("understand"):
        source = inputs.survey(client, options.data)
        features = [name for name in source.types if name != options.target]
        kinds = kinds_of(source, features)
        frame = tables.read(source, [*features, options.target]).dropna(subset=[options.target]).persist()
        lengths = [int(size) for size in frame.map_partitions(len).compute()]
        total = sum(lengths)
        known |= {"rows": total, "features": features, "partitions": len(lengths)}
        understand(job, frame, kinds)
    with job.phase("prepare"):
        starts = np.cumsum([0, *lengths])
        raws = [dask.delayed(raw)(part, kinds) for part in frame.to_delayed()]
        raws = client.compute(raws)
        chosen = [split.is_test(int(a), int(b), total, options.seed, TEST) for a, b in itertools.pairwise(starts)]
        picked = np.flatnonzero(~np.concatenate(chosen))
        picked = picked[tables.sample_rows(len(picked), SAMPLE, options.seed)]
        places = [picked[(picked >= a) & (picked < b)] - a for a, b in itertools.pairwise(starts)]
        sample = pd.concat(client.gather(client.map(pd.DataFrame.take, raws, places, pure=False)), ignore_index=True)
        steps = preparation(kinds).fit(sample[features])
        x, y = prepared(client, raws, steps, options.target, [~mask for mask in chosen])
        x_test, y_test = prepared(client, raws, steps, options.target, chosen)
        known |= {"rows_train": len(x), "rows_test": len(x_test), "prepared_columns": x.shape[1]}
    fold = trials.folds(len(x), FOLDS, options.seed)
    with trials.placed(client, x, y, fold) as rows:
        with job.phase("model"):
            estimators = {name: search.estimator(argparse.Namespace(model=name, trees=options.trees, seed=options.seed))
                          for name in TUNED}  # fmt: skip
            reached = {name: trials.run(client, rows, one, [{}], FOLDS) for name, one in estimators.items()}
            compared = pd.DataFrame({name: [trial.score for trial in found] for name, found in reached.items()}).T
            compared.columns = [f"fold {number}" for number in range(FOLDS)]
            compared.insert(0, "mean R²", compared.mean(axis=1))
            chosen_model = str(compared["mean R²"].idxmax())
            known["model"] = chosen_model
        with job.phase("tune"):
            tried = list(sklearn.model_selection.ParameterGrid(TUNED[chosen_model]))
            found = trials.run(client, rows, estimators[chosen_model], tried, FOLDS)
            table = pd.DataFrame(trials.table(tried, found, FOLDS))
            best = tried[int(table["mean_score"].argmax())]
            known |= {"best": best, "best_score": float(table["mean_score"].max())}
            fitted = client.submit(trials.refit, rows, estimators[chosen_model], best, pure=False).result()
    with job.phase("evaluate"):
        predicted = models.predict(fitted, x_test.to_backend("numpy")).persist()
        y_host = y_test.to_backend("numpy")
        known["metrics"] = scores.regression(y_host, predicted)
        naive = y_host.map_blocks(np.full_like, float(y.mean().compute()))  # on the host, as y_host is
        known["baseline"] = scores.regression(y_host, naive)
        known["better_than_baseline"] = known["metrics"]["rmse"] < known["baseline"]["rmse"]
        if not known["better_than_baseline"]:
            job.note("The model is no better than the mean of the training rows. Do not use it.")
    with job.phase("score"):
        whole = client.scatter(sklearn.pipeline.Pipeline([("prepare", steps), ("model", fitted)]), broadcast=True)
        batches = client.map(score_batch, raws, model=whole, features=features, pure=False)
        meta = {**{name: sample[name].dtype for name in features}, "prediction": "float64"}
        blank = pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in meta.items()})
        tables.write_parquet(job, dd.from_delayed(batches, meta=blank, verify_meta=False), "predictions")


def score_batch(part: pd.DataFrame, model: Any, features: list[str]) -> pd.DataFrame:
    """Predict for a partition; it runs on the worker."""
    rows = part[features]
    return rows.assign(prediction=model.predict(rows) if len(rows) else np.empty(0))


def understand(job: Job, frame: Any, kinds: dict[str, list[str]]) -> None:
    """Describe columns, gaps, correlations and categories."""
    numbers = [*kinds["number"], job.options.target]
    found = moments.of(frame, numbers)
    moments.described(frame, found)
    found.correlation()
    _, gaps = dask.compute(
        [frame[name].value_counts(split_out=1) for name in kinds["category"]],
        {name: frame[name].isnull().sum() for name in frame.columns},
    )
    job.result["missing"] = {name: int(rows) for name, rows in gaps.items()}


def prepared(client: Any, raws: list[Any], steps: Any, target: str, masks: list[Any]) -> tuple[Any, Any]:
    """Return features and target of the rows that masks choose, as Dask arrays (on GPUs CuPy's), a block each."""
    kept = [(part, mask) for part, mask in zip(raws, masks, strict=True) if mask.any()]
    blocks = [client.submit(transform, part, mask, steps, target, pure=False) for part, mask in kept]
    wait(blocks)
    width = client.submit(np.shape, blocks[0]).result()[1]
    shapes = [(int(mask.sum()), width) for _, mask in kept]
    arrays = [da.from_delayed(block, shape, "float64") for block, shape in zip(blocks, shapes, strict=True)]
    both = da.concatenate(arrays).to_backend("cupy" if backend.on_gpu() else "numpy").persist()
    return both[:, :-1], both[:, -1]


def transform(part: pd.DataFrame, mask: Any, steps: Any, target: str) -> Any:
    """Return the chosen rows as an array: the prepared columns, then the target; it runs on the worker."""
    rows = part[mask]
    return np.column_stack([steps.transform(rows.drop(columns=target)), rows[target].to_numpy("float64")])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("pipeline", __doc__, rows=20_000)
    add = parser.add_argument
    add("--target", default="fare", help="column to predict, a number (default fare)")
    add("--trees", type=int, default=30, help="of a forest (default 30)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("pipeline", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
