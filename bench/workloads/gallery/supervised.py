"""What jobs that predict a target share: features and target read and divided, and a sample on the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import numpy.typing as npt

from gallery import inputs, scores, split, tables
from gallery.inputs import Source
from gallery.job import Job, WrongResultError

TEST = 0.2  # the share of rows that a model is tested on
SAMPLE = 20_000  # test rows brought to the driver: for ROC AUC and the agreement of scikit-learn's form of the model
AGREE = 0.95  # of these, at least: a forest's thresholds are rounded, so that a row on one may fall to its other side


@dataclass(frozen=True)
class Divided:
    """A data set with a target, divided into training and test.

    Attributes
    ----------
    names, dtype
        The features and their type.
    labels
        The classes, sorted; None where the target is a number.
    """

    source: Source
    names: list[str]
    dtype: str
    labels: npt.NDArray[np.int32] | None
    x_train: Any
    x_test: Any
    y_train: Any
    y_test: Any


def read(job: Job, *, labelled: bool, dtype: str | None = None) -> Divided:
    """Read features and ``--target`` of ``--data``, and divide the rows by ``--seed``.

    Parameters
    ----------
    labelled
        Whether the target is a class: a whole number.
    dtype
        What the estimator wants features to be; by default what holds them all.
    """
    options = job.options
    source = inputs.survey(job.client, options.data)
    names, found = inputs.numeric(source, leave=(options.target,))
    dtype = dtype or found
    x, y = tables.arrays(job, source, names, dtype, options.target)
    labels = scores.classes(y, source.where) if labelled else None
    divided = Divided(source, names, dtype, labels, *split.split(x, y, options.seed, TEST))
    if labels is not None and (lost := len(labels) - len(scores.classes(divided.y_train, source.where))):
        job.note(f"{lost} of {len(labels)} classes have no row to train on; those rows are of the test.")
    return divided


def sampled(job: Job, *arrays: Any) -> list[Any]:
    """Return the same rows of some arrays on the driver, chosen by global row number."""
    rows = tables.sample_rows(len(arrays[0]), SAMPLE, job.options.seed)
    return list(dask.compute(*(array[rows].to_backend("numpy") for array in arrays)))


def agreement(portable: Any, rows: Any, said: Any) -> float:
    """Return the share of sampled rows that scikit-learn's form of the model answers as the run did, to 0.001 of the spread.

    Raises
    ------
    WrongResultError
        They are fewer than 95 %: one of the two models is wrong.
    """
    again, said = np.asarray(portable.predict(rows), dtype="float64"), said.astype("float64")
    share = float(np.isclose(again, said, rtol=1e-3, atol=1e-3 * float(said.std())).mean())
    if share < AGREE:
        raise WrongResultError(
            f"{type(portable).__name__} answers {share:.1%} of the rows as the run's model does: one of the two is wrong"
        )
    return share


def roc_auc(portable: Any, labels: Any, rows: Any, true: Any) -> dict[str, float]:
    """Return the area under the sample's ROC curve, the mean over classes against all others; none if a class lacks."""
    import sklearn.metrics

    if min(len(np.unique(true)), len(portable.classes_)) < len(labels):
        return {}
    chances = portable.predict_proba(rows)
    chances = chances[:, 1] if len(labels) == 2 else chances
    return {"roc_auc": float(sklearn.metrics.roc_auc_score(true, chances, multi_class="ovr", labels=labels))}
