"""Gradient-boosted trees on a Dask cluster with XGBoost: trained over all workers, stopped early, exported as JSON.

Divides rows into training, validation and test by global row number, trains with xgboost.dask (histograms; on GPUs
there), stops when the validation no longer gets better, and writes into --out: result.json, history.parquet (a row per
round), predictions/ (Parquet: the test's rows, the target and `prediction`), importance.csv, xgboost_train.png and
model/ (XGBoost's JSON and a manifest).

    python tests/bench/workloads/xgboost_train.py                                  a laptop: made data, regression
    python tests/bench/workloads/xgboost_train.py --task classification --data 'flights/*.parquet' --target late
    hpcml submit --nodes 4 tests/bench/workloads/xgboost_train.py --rows 50_000_000          a cluster: the same script

While it trains, XGBoost opens TCP ports of its own that ask nobody who they are: docs/gallery/xgboost_train.md says
which, and what a stranger could do. Cuts of the histograms are approximate and depend on how rows lie on the workers,
so metrics agree between cluster sizes to a few per mille, not to the last digit.

A run trains in shares of about a minute and saves each: with hpcml submit --until-done it goes on after the last one,
and has status 92 meanwhile.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
from matplotlib.ticker import LogFormatter

import hpcml
from gallery import backend, datasets, inputs, job, models, picture, split, supervised, tables
from gallery.job import BrokenOffError, Job, RefusedError

COPIES = 4  # of the rows that live at once: as read, divided, a part's copy, and the quantised matrix
VALIDATION = 0.2  # of the rows that are not for the test
MOST_CLASSES = 100
SHOWN = 15  # features in the picture; importance.csv has them all
FIRST, SHARE = 10, 60.0  # rounds of the first share of a training, in a run; seconds of those after it
CHECKED = 10_000  # rows of the test that the exported model is asked for on the driver


def loopback_or(address: str) -> str:
    """Return the host that the tracker binds: the scheduler's own address; for one in this process, loopback."""
    from distributed.comm import get_address_host

    return "127.0.0.1" if address.startswith("inproc") else get_address_host(address)


def classes_of(job: Job, data: supervised.Divided) -> list[int]:
    """Return the classes, none where the target is a number; each is a tree in every round, so they may not be many."""
    classes = [] if data.labels is None else data.labels.tolist()
    if len(classes) > MOST_CLASSES:
        many = f"{job.options.target} has {len(classes):,} classes; this takes {MOST_CLASSES} at most"
        raise RefusedError(f"{data.source.where}: {many}. Give --target another column.")
    return classes


def numbered(y: Any, classes: list[int]) -> Any:
    """Return a target as XGBoost wants it: classes as 0 … k-1."""
    return y.map_blocks(_number, classes, dtype=y.dtype).persist() if classes else y


def _number(block: Any, classes: list[int]) -> Any:
    return np.searchsorted(np.asarray(classes, dtype=block.dtype, like=block), block).astype(block.dtype)


def parameters(options: argparse.Namespace, classes: list[int]) -> dict[str, Any]:
    """Return XGBoost's parameters: its own names, so that its documentation applies."""
    shared = {"tree_method": "hist", "device": "cuda" if backend.on_gpu() else "cpu", "max_depth": options.depth}
    shared |= {"learning_rate": options.rate, "seed": options.seed}
    if options.task == "regression":
        return {**shared, "objective": "reg:squarederror", "eval_metric": "rmse"}
    return {**shared, "objective": "multi:softprob", "num_class": len(classes), "eval_metric": "mlogloss"}


def train(job: Job, parts: dict[str, tuple[Any, Any]], names: list[str], classes: list[int]) -> tuple[Any, Any]:
    """Train over all workers; return the booster, cut at its best round, and the history.

    In a run it trains in shares, each of which is saved: an attempt that follows goes on after the last.
    """
    import xgboost.collective
    import xgboost.dask

    options, client = job.options, job.client
    host = loopback_or(client.scheduler.address)
    job.result["tracker_host"] = host
    job.note("While it trains, XGBoost listens on ports that ask nobody who connects: docs/gallery/xgboost_train.md.")
    fitted = xgboost.dask.DaskQuantileDMatrix(client, *parts["train"], feature_names=names)
    checked = xgboost.dask.DaskQuantileDMatrix(client, *parts["validation"], feature_names=names, ref=fitted)
    booster, history = resumed(job)
    job.on_stop(lambda: None)  # what a share has cost is lost, and no more
    share = options.rounds if hpcml.run.directory is None else FIRST
    while (rounds := stopping_round(history, options)) is None:
        begun, start = len(validation(history)), time.perf_counter()
        asked = min(share, options.rounds - begun)
        try:
            found = xgboost.dask.train(
                client, parameters(options, classes), fitted, num_boost_round=asked, xgb_model=booster,
                evals=[(fitted, "train"), (checked, "validation")], early_stopping_rounds=options.patience,
                verbose_eval=False, coll_cfg=xgboost.collective.Config(tracker_host_ip=host),
            )  # fmt: skip
        except xgboost.core.XGBoostError as error:
            raise BrokenOffError(
                f"XGBoost ended the training: {inputs.first_line(error)}. A worker was lost, or somebody else reached "
                "its ports; see the workers' logs, and submit again."
            ) from error
        booster, new = found["booster"], found["history"]
        history = {
            part: {metric: [*history.get(part, {}).get(metric, ()), *curve] for metric, curve in curves.items()}
            for part, curves in new.items()
        }
        booster.set_attr(hpcml_history=json.dumps(history))  # one file, so that they belong together
        job.save("booster.ubj", booster)
        took = (time.perf_counter() - start) / max(len(validation(history)) - begun, 1)
        share = max(FIRST, int(SHARE / took))
    cut = {part: {metric: curve[:rounds] for metric, curve in by.items()} for part, by in history.items()}
    booster.set_attr(hpcml_history=None, best_iteration=None, best_score=None)
    return booster[: int(np.argmin(validation(cut))) + 1], cut


def resumed(job: Job) -> tuple[Any, dict[str, dict[str, list[float]]]]:
    """Return the booster and the history that an earlier attempt of this run has saved; None and nothing at first."""
    import xgboost

    if (path := job.saved("booster.ubj")) is None:
        return None, {}
    booster = xgboost.Booster(model_file=path)
    job.note(f"{booster.num_boosted_rounds():,} rounds were trained by an earlier attempt of this run.")
    return booster, json.loads(booster.attr("hpcml_history") or "{}")


def validation(history: dict[str, dict[str, list[float]]]) -> list[float]:
    """Return the curve that the training is judged by."""
    return next(iter(history.get("validation", {}).values()), [])


def stopping_round(history: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> int | None:
    """Return after how many rounds the training ends, by XGBoost's own rule of early stopping; None if it goes on."""
    curve, best = validation(history), 0
    for place, value in enumerate(curve):
        if value < curve[best]:
            best = place
        elif place - best >= options.patience:
            return place + 1
    return options.rounds if len(curve) >= options.rounds else None


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, options.task, features=options.features or 12)
    with job.phase("read"):
        data = supervised.read(job, labelled=options.task == "classification", copies=COPIES)
        names, x_test, classes = data.names, data.x_test, classes_of(job, data)
        if classes:
            known["classes"] = classes
        y_rest, y_test = (numbered(y, classes) for y in (data.y_train, data.y_test))
        x_train, x_valid, y_train, y_valid = split.split(data.x_train, y_rest, options.seed + 1, VALIDATION)
        known |= {"rows_train": len(x_train), "rows_validation": len(x_valid), "rows_test": len(x_test)}
    with job.phase("train"):
        backend.import_everywhere(job.client, "xgboost")
        parts = {"train": (x_train, y_train), "validation": (x_valid, y_valid)}
        booster, history = train(job, parts, names, classes)
        rounds = len(next(iter(history["train"].values())))
        known |= {"rounds": rounds, "rounds_kept": booster.num_boosted_rounds()}
        known["stopped_early"] = rounds < options.rounds
    with job.phase("test"):
        import xgboost.dask

        matrix = xgboost.dask.DaskDMatrix(job.client, x_test, feature_names=names)
        found = xgboost.dask.predict(job.client, booster, matrix)
        found._chunks = (x_test.chunks[0], *found.chunks[1:])
        found = found.to_backend().persist()  # XGBoost predicts into NumPy's blocks, on GPUs too
        known["metrics"] = metrics(y_train, y_test, found, classes)
    with job.phase("export"):
        given = {"features": dict.fromkeys(names, data.dtype), "target": options.target, "metrics": known["metrics"]}
        folder = models.export(job, booster, **given)
        known["export_difference"] = difference(folder, x_test, found)
    with job.phase("write", last=True):
        values = found
        if classes:
            values, y_test = (
                numbers.map_blocks(_value, classes, meta=numbers._meta.astype("int64"))
                for numbers in (likeliest(found), y_test)
            )
        columns = {tuple(names): x_test, options.target: y_test, "prediction": values}
        tables.write_parquet(job, tables.frame_of(columns), "predictions")
        curves = {f"{part}_{metric}": curve for part, by in history.items() for metric, curve in by.items()}
        with job.file("history.parquet") as path:
            pd.DataFrame(curves).rename_axis("round").reset_index().to_parquet(path)
        gain = booster.get_score(importance_type="total_gain")
        shares = pd.Series({name: gain.get(name, 0.0) for name in names}).sort_values(ascending=False)
        shares /= max(shares.sum(), 1e-300)
        job.write_text("importance.csv", shares.rename_axis("feature").rename("share_of_gain").to_csv())
        draw(job, curves, shares)
    known["rows_per_second"] = {"train": round(len(x_train) * rounds / known["seconds"]["train"])}


def metrics(y_train: Any, y: Any, found: Any, classes: list[int]) -> dict[str, float]:
    """Return what the model reaches on the test, beside the baseline: the mean, or the most frequent class."""
    if classes:
        counts = da.bincount(y_train.astype("int64"), minlength=len(classes)).compute()
        common, chosen = int(backend.to_numpy(counts).argmax()), likeliest(found)
        sure = found.map_blocks(_of_truth, y[:, None], drop_axis=1, meta=y._meta.astype(found.dtype))
        known = {"accuracy": (chosen == y).mean(), "logloss": -da.log(da.maximum(sure, 1e-15)).mean()}
        known["baseline_accuracy"] = (y == common).mean()
    else:
        residual, middle = ((found - y) ** 2).mean(), y_train.mean()
        known = {"rmse": da.sqrt(residual), "mae": abs(found - y).mean(), "r2": 1 - residual / y.var()}
        known["baseline_rmse"] = da.sqrt(((y - middle) ** 2).mean())
    return {name: float(value.compute()) for name, value in known.items()}


def _of_truth(found: Any, y: Any) -> Any:
    return np.take_along_axis(found, y.astype("int64"), axis=1)[:, 0]


def likeliest(found: Any) -> Any:
    """Return the number of each row's likeliest class; the meta is given, as an empty block has no such number."""
    meta = np.empty_like(found._meta, shape=(0,), dtype="int64")
    return found.map_blocks(_likeliest, drop_axis=1, meta=meta)


def _likeliest(block: Any) -> Any:
    return block.argmax(axis=1)


def _value(block: Any, classes: list[int]) -> Any:
    return np.asarray(classes, like=block)[block.astype("int64")]


def difference(folder: Any, x: Any, found: Any) -> float:
    """Return how far the exported model, loaded here on the CPU, is from the run's predictions: the largest."""
    import xgboost

    model, _ = models.load(folder)
    model.set_param({"device": "cpu"})
    rows = backend.to_numpy(x[:CHECKED].compute())
    again = model.predict(xgboost.DMatrix(rows, feature_names=model.feature_names))
    return float(np.abs(again - backend.to_numpy(found[:CHECKED].compute())).max())


def draw(job: Job, curves: dict[str, list[float]], shares: pd.Series) -> None:
    """Write the picture: both histories, and the share of the gain by feature."""
    known = job.result
    named = "  ".join(f"{name} {value:.4g}" for name, value in known["metrics"].items())
    drawn, (left, right) = picture.figure(f"XGBoost, {known['rows_train']:,} rows; test: {named}", panels=2, height=4.6)
    for name, curve in curves.items():
        left.plot(range(1, len(curve) + 1), curve, label=name.replace("_", ", "))
    left.axvline(known["rounds_kept"], color="#888888", linestyle="--", linewidth=1, label="kept")
    left.set(xlabel="round", ylabel="error (lower is better)", yscale="log")
    for formatted in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
        formatted(LogFormatter())  # 2 and not 2 × 10⁰
    left.legend(frameon=False)
    few = shares.head(SHOWN)[::-1]
    right.barh(range(len(few)), few)
    right.set_yticks(range(len(few)), few.index)
    right.set(xlabel="share of the gain", ylabel="feature")
    picture.save(job, "xgboost_train.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("xgboost_train", __doc__, rows=50_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all but the target, if numeric)")
    add("--target", default="y", help="column to predict, numeric (default y)")
    parser.add_made("--features", type=job.count, help="features of made data (default 12)")
    add("--task", choices=("regression", "classification"), default="regression", help="default regression")
    add("--rounds", type=job.count, default=300, help="most rounds (default 300)")
    add("--patience", type=job.count, default=10, help="rounds without a better validation to stop after (default 10)")
    add("--depth", type=job.count, default=6, help="greatest depth of a tree (default 6)")
    add("--rate", type=job.rate, default=0.2, help="learning rate (default 0.2)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("xgboost_train", parse(arguments), work, resumes=True)


if __name__ == "__main__":
    raise SystemExit(main())
