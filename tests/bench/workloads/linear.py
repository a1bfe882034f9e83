"""Linear models on a Dask cluster: least squares, Ridge, Lasso, elastic net and logistic regression.

Reads files (or makes rows from known coefficients), trains on four fifths of the rows, tests on the rest, and writes
into --out: result.json, coefficients.csv, linear.png and model/ (scikit-learn's form, for a machine without a GPU).

    python tests/bench/workloads/linear.py --what lasso --alpha 0.1                      a laptop: made data, seconds
    python tests/bench/workloads/linear.py --what logistic --data 'cells/*.parquet' --target kind  a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/linear.py --what ridge --rows 1_000_000_000       a cluster: the same script

On CPUs, the first four are scikit-learn's estimators, on all rows without moving them: Dask's QR makes of centred rows
and target a triangle of as many lines as columns, whose squared errors differ from the rows' by a constant, so that the
same coefficients are best for both. It reads the data twice. Logistic regression has no such short form: scikit-learn
fits it on one worker, whose memory must hold the rows. On GPUs all five are cuML's, on all rows of all GPUs.
Rows are chosen for the test by global number and seed: partitions and workers make no difference.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd

from gallery import backend, charts, datasets, job, memory, models, picture, scores, supervised
from gallery.job import Job, RefusedError

COPIES = 4  # of the rows that live at once: as read, divided, and centred
COPIES_ON_ONE = 3  # of the training rows on the worker that fits: its partitions, the whole, scikit-learn's own
NAMES = {"ols": "LinearRegression", "ridge": "Ridge", "lasso": "Lasso", "elasticnet": "ElasticNet",
         "logistic": "LogisticRegression"}  # fmt: skip
USES = {"ols": set(), "ridge": {"alpha"}, "lasso": {"alpha", "max_iter", "tol"},
        "elasticnet": {"alpha", "l1_ratio", "max_iter", "tol"}, "logistic": {"c", "max_iter", "tol"}}  # fmt: skip
Floats = npt.NDArray[np.floating[Any]]


def estimator(options: argparse.Namespace) -> Any:
    """Choose the class by what arrays are made of; the objectives of both libraries are the same."""
    name = NAMES[options.what]
    chosen = backend.pick(f"sklearn.linear_model.{name}", f"cuml.dask.linear_model.{name}")
    shape: dict[str, Any] = {} if options.what in ("ols", "logistic") else {"alpha": options.alpha}
    if options.what == "elasticnet":
        shape["l1_ratio"] = options.l1_ratio
    if options.what == "lasso" and backend.on_gpu():
        shape["l1_ratio"] = 1.0  # cuML's Dask Lasso doesn't set it, and its solver's default is 0.15
    if options.what == "logistic":
        shape["C"] = options.c
    if options.what in ("lasso", "elasticnet", "logistic"):
        shape |= {"max_iter": options.max_iter, "tol": options.tol}
    return chosen(**shape)


def by_coefficients(x: Any, coefficients: Floats, intercept: float) -> Any:
    """Return what a linear model says of a Dask array's rows, lazily and by blocks.

    For cuML's Lasso and ElasticNet, whose fit over several GPUs is right, and whose ``predict`` was not (26.10.0,
    blocks of CuPy that lie by rows): its answers were not those of its own coefficients.
    """
    meta = np.empty_like(x._meta, shape=(0,))
    return x.map_blocks(_line, coefficients, intercept, drop_axis=1, meta=meta)


def _line(block: Any, coefficients: Floats, intercept: float) -> Any:
    return block @ np.asarray(coefficients, like=block, dtype=block.dtype) + intercept


def triangle(x: Any, y: Any) -> tuple[Floats, Floats, Floats, float]:
    """Return a small data set with the same best coefficients as the centred rows, and the means.

    With Q R the QR decomposition of [x y], ||x w - y||² = ||R (w, -1)||², and so for every penalty on w. scikit-learn
    divides squares by the number of rows, of which the triangle has fewer: hence the scale.
    """
    means = dask.compute(x.mean(axis=0), y.mean())
    both = da.concatenate([x - means[0], (y - means[1])[:, None]], axis=1).rechunk({1: -1})
    small = np.asarray(da.linalg.qr(both)[1].compute())
    return small[:, :-1], small[:, -1], means[0], float(means[1])


def fit(job: Job, model: Any, x: Any, y: Any) -> Any:
    """Fit and return the model: cuML's on all GPUs, scikit-learn's as the module's first lines say."""
    if backend.on_gpu():
        return model.fit(x, y.astype(x.dtype))
    if job.options.what == "logistic":
        memory.admit_one(job, COPIES_ON_ONE * x.nbytes, "Logistic regression", "Give fewer rows")
        blocks = [list(part.to_delayed().ravel()) for part in (x, y.astype("int32"))]
        return dask.delayed(_fit_whole)(model, *blocks).compute()
    small, answers, x_mean, y_mean = triangle(x.astype("float64"), y.astype("float64"))
    scale = 1.0 if job.options.what == "ridge" else (len(small) / len(x)) ** 0.5  # Ridge's squares are not divided
    model.set_params(fit_intercept=False)
    model.fit(small * scale, answers * scale)
    model.set_params(fit_intercept=True)
    model.intercept_ = y_mean - float(x_mean @ model.coef_)
    return model


def _fit_whole(model: Any, x: list[Any], y: list[Any]) -> Any:
    return model.fit(np.concatenate(x), np.concatenate(y))


def work(job: Job) -> None:
    options, known = job.options, job.result
    logistic = options.what == "logistic"
    job.leave_out(*set().union(*USES.values()) - USES[options.what])
    if options.data is None:
        with job.phase("generate"):
            kind, features = ("classification", 2) if logistic else ("regression", 8)
            options.data = datasets.made(job, kind, features=options.features or features)
    with job.phase("read"):
        wanted = "float32" if logistic and backend.on_gpu() else None  # as cuML takes labels
        data = supervised.read(job, labelled=logistic, dtype=wanted, copies=COPIES)
        names, labels = data.names, data.labels
        if len(data.x_train) <= len(names):
            raise RefusedError(f"{data.source.where}: {len(names)} features need more than {len(data.x_train)} rows "
                               "to train on.")  # fmt: skip
    with job.phase("fit"):
        model = estimator(options)
        backend.import_everywhere(job.client, type(model).__module__)
        model = fit(job, model, data.x_train, data.y_train)
        portable = models.to_portable(model)
        coefficients = np.atleast_2d(portable.coef_)
        intercepts = np.atleast_1d(portable.intercept_)
        if labels is not None:
            portable.classes_ = portable.classes_.astype("int32")  # cuML tells them as floats
        if getattr(portable, "n_iter_", None) is not None:
            known["iterations"] = int(np.max(portable.n_iter_))
            if known["iterations"] >= options.max_iter:
                job.note(f"Not converged after {options.max_iter} iterations. Raise --max-iter, or scale the features.")
    with job.phase("test"):
        if backend.on_gpu() and options.what in ("lasso", "elasticnet"):
            told = by_coefficients(data.x_test, coefficients[0], float(intercepts[0])).persist()
        else:
            told = models.predict(model, data.x_test).persist()
        rows, true, said = supervised.sampled(job, data.x_test, data.y_test, told)
        if labels is None:
            metrics = scores.regression(data.y_test, told)
        else:
            table = scores.confusion(data.y_test, told, labels)
            metrics = {"accuracy": scores.accuracy(table), **supervised.roc_auc(portable, labels, rows, true)}
            known["confusion"] = table.tolist()
        known |= {"metrics": metrics, "portable_agrees": supervised.agreement(portable, rows, said)}
    with job.phase("write", last=True):
        known["coefficients"], known["intercept"] = coefficients.tolist(), intercepts.tolist()
        lines = [str(label) for label in portable.classes_] if len(coefficients) > 1 else [options.target]
        out = pd.DataFrame(coefficients, columns=names, index=pd.Index(lines, name="of")).assign(intercept=intercepts)
        job.write_text("coefficients.csv", out.to_csv())
        truth = datasets.truth(data.source.files[0])
        if labels is None and len(truth.get("coefficients", [])) == len(names):
            far = np.abs(coefficients[0] - truth["coefficients"])
            known["truth_distance"] = float(far.max())
        draw(job, names, coefficients, truth.get("coefficients"), portable, labels, rows, true)
        models.export(
            job,
            portable,
            features=dict.fromkeys(names, data.dtype),
            target=options.target,
            metrics=supervised.tested(metrics),
        )


def draw(
    job: Job, names: list[str], found: Floats, truth: Any, portable: Any, labels: Any, rows: Floats, true: Floats
) -> None:
    """Write linear.png: coefficients beside the truth where it is known; predictions or ROC curves."""
    what, metrics = NAMES[job.options.what], job.result["metrics"]
    told = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    title = f"{what}, {job.result['rows']:,} rows: {told}"
    drawn, (left, right) = picture.figure(title, panels=2, height=5.2)
    places = np.arange(min(len(names), 40))
    width = 0.8 / len(found)
    for number, line in enumerate(found):
        label = "estimated" if len(found) == 1 else f"class {portable.classes_[number]}"
        left.bar(places + (number - (len(found) - 1) / 2) * width, line[: len(places)], width, label=label)
    if truth is not None and len(truth) == len(names):
        left.scatter(places, truth[: len(places)], marker="_", s=300, color="black", zorder=3, label="truth")
    left.set_xticks(places, names[: len(places)], rotation=90 if len(places) > 8 else 0)
    left.set(ylabel="coefficient")
    left.legend(frameon=False, fontsize=9)
    if labels is None:
        charts.predicted(right, true, portable.predict(rows))
    elif "roc_auc" in metrics:
        supervised.draw_roc(right, portable, labels, rows, true)
    picture.save(job, "linear.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("linear", __doc__, rows=200_000)
    add = parser.add_argument
    add("--what", choices=list(NAMES), default="ols", help="the model (default ols)")
    add("--target", default="y", help="the column to predict (default y); logistic: whole numbers, one per class")
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all others, if numeric)")
    parser.add_made("--features", type=job.count, help="features of made data (default 8; logistic: 2)")
    add("--alpha", type=job.positive, default=1.0, help="penalty's strength of ridge, lasso, elasticnet (default 1)")
    ratio = job.value(float, "a number from 0 to 1", lambda number: 0 <= number <= 1)
    add("--l1-ratio", type=ratio, default=0.5, help="elasticnet: share of the absolute values (default 0.5)")
    add("--c", type=job.positive, default=1.0, help="logistic: inverse strength of the squared penalty (default 1)")
    add("--max-iter", type=job.count, default=1_000, help="most iterations (default 1,000)")
    add("--tol", type=job.positive, default=1e-6, help="when to stop, as the library takes it (default 1e-6)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("linear", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
