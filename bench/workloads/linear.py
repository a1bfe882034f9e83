"""Linear models: least squares, Ridge, Lasso, elastic net and logistic regression.

On CPUs the first four are scikit-learn's estimators, on a triangle from Dask's QR of the centred rows and target: its
squared errors differ from the rows' by a constant, so that the same coefficients are best. Logistic regression is
fitted on one worker, whose memory must hold the rows. On GPUs all five are cuML's, on all rows of all GPUs.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from gallery import backend, datasets, job, models, scores, supervised
from gallery.job import Job

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
        data = supervised.read(job, labelled=logistic, dtype=wanted)
        names, labels = data.names, data.labels
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
    with job.phase("write"):
        known["coefficients"], known["intercept"] = coefficients.tolist(), intercepts.tolist()
        truth = datasets.truth(data.source.files[0])
        if labels is None and len(truth.get("coefficients", [])) == len(names):
            far = np.abs(coefficients[0] - truth["coefficients"])
            known["truth_distance"] = float(far.max())


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("linear", __doc__, rows=200_000)
    add = parser.add_argument
    add("--what", choices=list(NAMES), default="ols", help="the model (default ols)")
    add("--target", default="y", help="the column to predict (default y); logistic: whole numbers, one per class")
    add("--features", type=int, help="features of made data (default 8; logistic: 2)")
    add("--alpha", type=float, default=1.0, help="penalty's strength of ridge, lasso, elasticnet (default 1)")
    add("--l1-ratio", type=float, default=0.5, help="elasticnet: share of the absolute values (default 0.5)")
    add("--c", type=float, default=1.0, help="logistic: inverse strength of the squared penalty (default 1)")
    add("--max-iter", type=int, default=1_000, help="most iterations (default 1,000)")
    add("--tol", type=float, default=1e-6, help="when to stop, as the library takes it (default 1e-6)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("linear", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
