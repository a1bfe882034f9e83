"""Multinomial naive Bayes on a Dask cluster: documents by their words' counts, counted by all workers at once.

Reads files of counts (or makes documents: a column per word, `y` the topic), trains on four fifths of the rows, tests
on the rest, and writes into --out: result.json, words.csv, naive_bayes.png and model/ (scikit-learn's form).

    python tests/bench/workloads/naive_bayes.py                                         a laptop: made data, seconds
    python tests/bench/workloads/naive_bayes.py --data 'texts/*.parquet' --target topic           a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/naive_bayes.py --rows 20_000_000 --words 500     a cluster: the same script

All that the model learns are sums: how often each word is in the documents of each class. On CPUs scikit-learn counts
each block of rows (partial_fit), Dask adds the counts, and scikit-learn makes the model of the sums; whole numbers add
up exactly, so it is the model of all rows at once. On GPUs cuML's does the same over all GPUs.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd
import sklearn.naive_bayes

from gallery import backend, charts, datasets, job, models, picture, scores, supervised
from gallery.job import Job, RefusedError

TELLING = 8  # words that tell a class from the others best: in result.json and the picture
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


def telling(names: list[str], chances: Floats) -> list[list[str]]:
    """Return for each class the words that are most its own: most frequent against their mean over classes."""
    own = chances - chances.mean(axis=0)
    return [[names[place] for place in np.argsort(-line)[:TELLING]] for line in own]


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "counts", words=options.words or 200, classes=options.classes or 6)
    with job.phase("read"):
        data = supervised.read(job, labelled=True, dtype="float64")  # counts add up exactly, up to 2**53
        labels = np.asarray(data.labels)
        least = [int(value) for value in (data.x_train.min().compute(), data.x_test.min().compute())]
        if min(least) < 0:
            raise RefusedError(
                f"{data.source.where} holds {min(least)}; counts start at 0. Choose others by --columns."
            )
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
    with job.phase("write", last=True):
        classes = [str(label) for label in portable.classes_]
        known["telling"] = dict(zip(classes, telling(data.names, portable.feature_log_prob_), strict=True))
        chances = pd.DataFrame(np.exp(portable.feature_log_prob_), columns=data.names, index=classes)
        job.write_text("words.csv", chances.to_csv(index_label="class"))
        draw(job, [str(label) for label in labels], chances, table)
        models.export(job, portable, features=dict.fromkeys(data.names, "float64"), target=options.target,
                      metrics=supervised.tested(known["metrics"]))  # fmt: skip


def draw(job: Job, labels: list[str], chances: pd.DataFrame, table: npt.NDArray[np.int64]) -> None:
    """Write naive_bayes.png: the confusion matrix, and how much more frequent the telling words are in their class."""
    title = f"Multinomial naive Bayes, {job.result['rows']:,} documents: {job.result['metrics']['accuracy']:.2%} right"
    drawn, (left, right) = picture.figure(title, panels=2, height=5.2)
    charts.confusion(left, table, labels)
    words = list(dict.fromkeys(word for one in job.result["telling"].values() for word in one[:3]))[:30]
    lift = (chances[words] / chances[words].mean()).to_numpy()
    right.grid(visible=False)
    shown = right.imshow(np.log2(lift), cmap="PuOr_r", vmin=-3, vmax=3, aspect="auto")
    right.set_xticks(range(len(words)), words, rotation=90)
    right.set_yticks(range(len(chances)), list(chances.index))
    right.set(xlabel="the words that tell most", ylabel="class")
    drawn.colorbar(shown, ax=right, label="how much more frequent than on average, log2")
    picture.save(job, "naive_bayes.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("naive_bayes", __doc__, rows=50_000)
    add = parser.add_argument
    add("--target", default="y", help="the class, a whole number (default y)")
    add("--columns", type=job.names, default=[], help="columns of counts: a,b,c (default: all others, if numeric)")
    add("--alpha", type=job.positive, default=1.0, help="added to each count, so that none is 0 (default 1)")
    parser.add_made("--words", type=job.count, help="columns of made data (default 200)")
    parser.add_made("--classes", type=job.count, help="classes of made data (default 6)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("naive_bayes", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
