"""A whole CRISP-DM pass over a mixed table: understand, prepare, model, tune, evaluate, export and score in batches.

Takes columns of numbers with gaps, categories and times, and a numeric target (or makes taxi trips, and predicts the
fare). Writes into --out: report.html, one page with tables and pictures of every phase; result.json; pipeline.png;
model/, one scikit-learn pipeline that takes the columns as they are; and predictions/, what the exported model says of
all rows.

    python tests/bench/workloads/pipeline.py                                       a laptop: made data
    python tests/bench/workloads/pipeline.py --data 'trips/*.parquet' --target total_amount  a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/pipeline.py --rows 2_000_000      a cluster: the same script

Every phase works by partitions on all workers but two: medians, categories and scales are learnt from a sample of up to
200,000 training rows, and models are fitted on one worker each (as in search.py), so the prepared rows must fit one.
The test's rows are drawn by global row number and seed. A time is given to the model as seconds since 1970.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pathlib
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
from gallery import backend, datasets, inputs, job, models, moments, pages, picture, scores, split, tables, trials
from gallery.job import Job, RefusedError

SAMPLE, DRAWN = 200_000, 5_000
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
        kind = next((name for name, fits in tests.items() if fits(source.types[column])), None)
        if kind is None:
            raise RefusedError(f"{source.where}: {column} is {source.types[column]}, not a number, text or a time. "
                               "Leave it out of --columns.")  # fmt: skip
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
    page = pages.Page("From a table to a model in service", "Written by tests/bench/workloads/pipeline.py.")
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "trips")
    with job.phase("understand"):
        needed = [*options.columns, options.target] if options.columns else []
        source = inputs.survey(client, options.data, needed)
        search.check_target(source, options.target)
        features = [name for name in options.columns or source.types if name != options.target]
        kinds = kinds_of(source, features)
        with tables.reading(source):
            frame = tables.read(source, [*features, options.target]).dropna(subset=[options.target]).persist()
            lengths = [int(size) for size in frame.map_partitions(len).compute()]
        if (total := sum(lengths)) < 10 * FOLDS:
            raise RefusedError(f"{source.where}: {total} rows have a {options.target}; {10 * FOLDS} are needed.")
        known |= {"rows": total, "features": features, "partitions": len(lengths)}
        understand(job, page, frame, kinds, total)
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
        trials.admit_whole(job, x.nbytes + y.nbytes, source.where)
        page.heading("Prepare")
        page.words(f"{total:,} rows: {len(x):,} to train on, {len(x_test):,} kept apart, drawn by row number and seed. "
                   f"{len(features)} columns become {x.shape[1]}: gaps filled with the median, categories a column "
                   "each, times as periodic splines over the day and the week, numbers scaled.")  # fmt: skip
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
            page.heading("Model")
            page.table(compared, "R² of two models with their usual parameters, on folds that they were not fitted on")
        with job.phase("tune"):
            tried = list(sklearn.model_selection.ParameterGrid(TUNED[chosen_model]))
            found = trials.run(client, rows, estimators[chosen_model], tried, FOLDS)
            table = pd.DataFrame(trials.table(tried, found, FOLDS))
            best = tried[int(table["mean_score"].argmax())]
            known |= {"best": best, "best_score": float(table["mean_score"].max())}
            page.heading("Tune")
            page.table(
                table.sort_values("rank").drop(columns="fit_seconds").set_index("rank"),
                f"{chosen_model}: all that was tried",
            )
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
        page.heading("Evaluate")
        both = pd.DataFrame(
            {f"tuned {chosen_model}": known["metrics"], "mean of the training rows": known["baseline"]}
        ).T
        page.table(both, "on the rows kept apart")
        drawn = evaluation(job, *(part[: min(DRAWN, len(y_host))].compute() for part in (y_host, predicted)))
        page.picture(drawn, "predicted against true values, and the errors")
        picture.save(job, "pipeline.png", drawn)
    with job.phase("export"):
        whole = sklearn.pipeline.Pipeline([("prepare", steps), ("model", fitted)])
        types = {name: str(sample[name].dtype) if name not in kinds["category"] else "object" for name in features}
        given = {"features": types, "target": options.target, "metrics": known["metrics"], "times": kinds["time"]}
        folder = models.export(job, whole, **given)
    with job.phase("score", last=True):
        batches = client.map(score_batch, raws, folder=str(folder), features=features, pure=False)
        meta = {**{name: sample[name].dtype for name in features}, "prediction": "float64"}
        scored = dd.from_delayed(
            batches, meta=pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in meta.items()}), verify_meta=False
        )
        tables.write_parquet(job, scored, "predictions")
        again = np.concatenate([part["prediction"].to_numpy() for part in client.gather(batches)])[
            np.concatenate(chosen)
        ]
        known["export_difference"] = float(np.abs(again - predicted.compute()).max())
        page.heading("Export and score")
        page.words(f"One scikit-learn pipeline, read back from its folder by every worker, scored {total:,} rows in "
                   f"{len(raws)} batches. On the rows kept apart it differs from the run's own predictions by at most "
                   f"{known['export_difference']:.2g}.")  # fmt: skip
        page.table(pd.Series(known["seconds"], name="seconds").to_frame(), "time by phase")
        job.write_text("report.html", page.html())
        job.pictures["report.html"] = job.pictures["pipeline.png"]


def understand(job: Job, page: pages.Page, frame: Any, kinds: dict[str, list[str]], total: int) -> None:
    """Describe columns, gaps, correlations and categories."""
    numbers = [*kinds["number"], job.options.target]
    found = moments.of(frame, numbers)
    described, related = moments.described(frame, found), found.correlation()
    counts, gaps = dask.compute(
        [frame[name].value_counts(split_out=1) for name in kinds["category"]],
        {name: frame[name].isnull().sum() for name in frame.columns},
    )
    gaps = pd.Series({name: int(rows) for name, rows in gaps.items()})
    job.result["missing"] = gaps.to_dict()
    page.heading("Understand")
    page.words(f"{total:,} rows with a {job.options.target}, {len(gaps)} columns.")
    page.table(described, "numbers")
    page.table(pd.DataFrame({"missing": gaps, "share": gaps / total}), "gaps")
    for name, found in zip(kinds["category"], counts, strict=True):
        few = backend.to_numpy(found).sort_values(ascending=False).head(8).rename("rows")
        page.table(few.to_frame(), f"{name}: the most frequent of {len(found)}")
    drawn, (left, right) = picture.figure("Gaps, and correlation between numbers", panels=2, height=4.2)
    left.barh(range(len(gaps)), gaps / total)
    left.set_yticks(range(len(gaps)), gaps.index)
    left.set(xlabel="share of the rows that is missing")
    image = right.imshow(related, vmin=-1, vmax=1, cmap="RdBu_r")
    right.set_xticks(range(len(numbers)), numbers, rotation=30, ha="right")
    right.set_yticks(range(len(numbers)), numbers)
    right.grid(visible=False)
    for (row, column), value in np.ndenumerate(related.to_numpy()):
        right.annotate(
            f"{value:.2f}", (column, row), ha="center", va="center", color="white" if abs(value) > 0.6 else "black"
        )
    drawn.colorbar(image, label="Pearson's r")
    page.picture(drawn, "share of missing values by column, and correlations")


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


def score_batch(part: pd.DataFrame, folder: str, features: list[str]) -> pd.DataFrame:
    """Load the exported model as any machine would, and score a partition; it runs on the worker."""
    model, _ = models.load(pathlib.Path(folder))
    rows = part[features]
    return rows.assign(prediction=model.predict(rows) if len(rows) else np.empty(0))


def evaluation(job: Job, true: Any, predicted: Any) -> Any:
    """Return the picture of the test: predicted against true values, and the errors beside the baseline's."""
    known = job.result
    r2, rmse, naive = known["metrics"]["r2"], known["metrics"]["rmse"], known["baseline"]["rmse"]
    title = f"{job.options.target} by {known['model']}: R² {r2:.4f}, RMSE {rmse:.4g} (the mean: {naive:.4g})"
    drawn, (left, right) = picture.figure(title, panels=2, height=4.6)
    image = left.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1, cmap="viridis")
    ends = [float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))]
    left.plot(ends, ends, color="#D55E00", linewidth=1)
    left.set(xlabel=f"true {job.options.target}", ylabel="predicted")
    drawn.colorbar(image, label="rows")
    spread = 4 * math.sqrt(np.mean((predicted - true) ** 2)) or 1.0
    shared = {"bins": 60, "range": (-spread, spread), "alpha": 0.7}
    right.hist(true - true.mean(), label="the mean", color="#bbbbbb", **shared)
    right.hist(true - predicted, label=known["model"], **shared)
    outside = [int((abs(one) > spread).sum()) for one in (true - true.mean(), true - predicted)]
    beyond = f"beyond the ends: {outside[0]:,} of {len(true):,} rows by the mean, {outside[1]:,} by {known['model']}"
    right.set(xlabel=f"error\n{beyond}", ylabel="rows")
    right.legend(frameon=False)
    return drawn


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("pipeline", __doc__, rows=20_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all but the target)")
    add("--target", default="fare", help="column to predict, a number (default fare)")
    add("--trees", type=job.count, default=30, help="of a forest (default 30)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("pipeline", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
