"""Multinomial naive Bayes: documents by their words' counts.

On CPUs scikit-learn counts each block of rows (partial_fit), and makes the model of the sums: whole numbers add up
exactly, so it is the model of all rows at once. On GPUs cuML's does the same over all GPUs.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import sklearn.naive_bayes

from gallery import backend, datasets, job, models, scores, supervised
from gallery.job import Job

Floats = npt.NDArray[np.floating[Any]]


def fit(options: argparse.Namespace, x: Any, y: Any, labels: npt.NDArray[np.int32]) -> Any:
    """Return the fitted model: cuML's over all GPUs, or scikit-learn's of the sums of all blocks' counts."""
    if backend.on_gpu():
        chosen = backend.pick("", "cuml.dask.naive_bayes.MultinomialNB")
        return chosen(alpha=options.alpha).fit(x, y, classes=labels)
    blocks = zip(x.to_delayed().ravel(), y.to_delayed().ravel(), strict=True)
    counted = [dask.delayed(_count, nout=2)(*block, labels) for block in blocks]
    sums = dask.compute(dask.delayed(sum)([words for words, _ in counted]), dask.delayed(sum)([n for _, n in counted]))
    words, documents = (np.asarray(found) for found in sums)
    met = documents > 0  # a class may have all its rows in the test
    prior = documents[met] / documents.sum()
    model = sklearn.naive_bayes.MultinomialNB(alpha=options.alpha, class_prior=prior).fit(words[met], labels[met])
    model.class_count_ = documents[met]
    return model


def _count(x: Floats, y: npt.NDArray[np.int32], labels: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
    """Return the sums of words by class, and the documents by class, of a block of rows."""
    with np.errstate(divide="ignore"):  # the logarithm of a class that is not in this block; it is not used
        model = sklearn.naive_bayes.MultinomialNB().partial_fit(x, y, classes=labels)
    return model.feature_count_, model.class_count_


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "counts", words=options.words or 200, classes=options.classes or 6)
    with job.phase("read"):
        data = supervised.read(job, labelled=True, dtype="float64")  # counts add up exactly, up to 2**53
        labels = np.asarray(data.labels)
        y_train, y_test = data.y_train.astype("int32"), data.y_test.astype("int32")
    with job.phase("fit"):
        model = fit(options, data.x_train, y_train, labels)
    with job.phase("test"):
        portable = models.to_portable(model)
        told = models.predict(model, data.x_test).persist()
        rows, true, said = supervised.sampled(job, data.x_test, y_test, told)
        table = scores.confusion(y_test, told, labels)
        known |= {"metrics": {"accuracy": scores.accuracy(table)}, "confusion": table.tolist()}
        known["metrics"] |= supervised.roc_auc(portable, labels, rows, true)
        known["portable_agrees"] = supervised.agreement(portable, rows, said)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("naive_bayes", __doc__, rows=50_000)
    add = parser.add_argument
    add("--target", default="y", help="the class, a whole number (default y)")
    add("--alpha", type=float, default=1.0, help="added to each count, so that none is 0 (default 1)")
    add("--words", type=int, help="columns of made data (default 200)")
    add("--classes", type=int, help="classes of made data (default 6)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("naive_bayes", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
