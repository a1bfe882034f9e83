"""Gradient-boosted trees by xgboost.dask, with early stopping on a validation set.

Rows are divided by global row number. Cuts of the histograms are approximate and depend on how rows lie on the workers,
so metrics agree between cluster sizes to a few per mille. XGBoost opens ports of its own: docs/security.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.array as da
import numpy as np

from gallery import backend, datasets, job, split, supervised, tables
from gallery.job import Job

VALIDATION = 0.2  # of the rows that are not for the test


def loopback_or(address: str) -> str:
    """Return the host that the tracker binds: the scheduler's own address; for one in this process, loopback."""
    from distributed.comm import get_address_host

    return "127.0.0.1" if address.startswith("inproc") else get_address_host(address)


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
    """Train over all workers; return the booster, cut at its best round, and the history."""
    import xgboost.collective
    import xgboost.dask

    options, client = job.options, job.client
    fitted = xgboost.dask.DaskQuantileDMatrix(client, *parts["train"], feature_names=names)
    checked = xgboost.dask.DaskQuantileDMatrix(client, *parts["validation"], feature_names=names, ref=fitted)
    found = xgboost.dask.train(
        client, parameters(options, classes), fitted, num_boost_round=options.rounds,
        evals=[(fitted, "train"), (checked, "validation")], early_stopping_rounds=options.patience, verbose_eval=False,
        coll_cfg=xgboost.collective.Config(tracker_host_ip=loopback_or(client.scheduler.address)),
    )  # fmt: skip
    booster = found["booster"]
    return booster[: booster.best_iteration + 1], found["history"]


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, options.task, features=options.features or 12)
    with job.phase("read"):
        data = supervised.read(job, labelled=options.task == "classification")
        names, x_test, classes = data.names, data.x_test, [] if data.labels is None else data.labels.tolist()
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
    with job.phase("write"):
        values = found
        if classes:
            values, y_test = (
                numbers.map_blocks(_value, classes, meta=numbers._meta.astype("int64"))
                for numbers in (likeliest(found), y_test)
            )
        columns = {tuple(names): x_test, options.target: y_test, "prediction": values}
        tables.write_parquet(job, tables.frame_of(columns), "predictions")
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("xgboost_train", __doc__, rows=50_000)
    add = parser.add_argument
    add("--target", default="y", help="column to predict, numeric (default y)")
    add("--features", type=int, help="features of made data (default 12)")
    add("--task", choices=("regression", "classification"), default="regression", help="default regression")
    add("--rounds", type=int, default=300, help="most rounds (default 300)")
    add("--patience", type=int, default=10, help="rounds without a better validation to stop after (default 10)")
    add("--depth", type=int, default=6, help="greatest depth of a tree (default 6)")
    add("--rate", type=float, default=0.2, help="learning rate (default 0.2)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("xgboost_train", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
