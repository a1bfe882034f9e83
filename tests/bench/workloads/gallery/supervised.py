"""What jobs that predict a target share: features and target read and divided, and a sample on the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import numpy.typing as npt

from gallery import charts, inputs, memory, scores, split, tables
from gallery.inputs import Source
from gallery.job import BrokenOffError, Job, RefusedError

TEST = 0.2  # the share of rows that a model is tested on
SAMPLE = 20_000  # test rows brought to the driver: for ROC AUC, the picture and the exported model's agreement
CURVES = 8  # classes whose ROC curves are drawn
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


def read(job: Job, *, labelled: bool, dtype: str | None = None, copies: int = 4, by_partition: bool = False) -> Divided:
    """Read ``--columns`` and ``--target`` of ``--data``, and divide the rows by ``--seed``.

    Parameters
    ----------
    labelled
        Whether the target is a class: a whole number.
    dtype
        What the estimator wants features to be; by default what holds them all.
    copies
        Of the features that live at once.
    by_partition
        Whether the estimator takes a partition at a time, so that the others may be spilled.

    Raises
    ------
    RefusedError
        A column is missing or no number, the target is no class or all one, too few rows, or too large.
    """
    options = job.options
    needed = [*options.columns, options.target] if options.columns else []  # of none named, every file must have all
    source = inputs.survey(job.client, options.data, needed)
    if options.target not in source.types:
        known = ", ".join(list(source.types)[: inputs.SHOWN])
        raise RefusedError(
            f"{source.where} has no column {options.target}. It has: {known}. Give --target one of them."
        )
    names, found = inputs.numeric(source, options.columns, leave=(options.target,))
    dtype = dtype or found
    kind = source.types[options.target]
    if not inputs.is_numeric(kind):
        raise RefusedError(f"{source.where}: target {options.target} is {kind}, no number. Number its classes first.")
    whole = memory.table(source, [*names, options.target], dtype)
    memory.admit(job, copies * whole, source.where, at_once=0 if by_partition else whole)
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
    """Return the share of sampled rows that the exported model answers as the run did, to 0.001 of the spread.

    Raises
    ------
    BrokenOffError
        They are fewer than 95 %: one of the two models is wrong.
    """
    again, said = np.asarray(portable.predict(rows), dtype="float64"), said.astype("float64")
    share = float(np.isclose(again, said, rtol=1e-3, atol=1e-3 * float(said.std())).mean())
    if share < AGREE:
        raise BrokenOffError(
            f"the model that would be exported, {type(portable).__name__}, answers {share:.1%} of the rows as the "
            "run's model does: one of the two is wrong. Do not use either; report it with result.json."
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


def draw_roc(axes: Any, portable: Any, labels: Any, rows: Any, true: Any) -> None:
    """Draw the ROC curves of the sample: of two classes the second's, of many the first eight."""
    chances = portable.predict_proba(rows)
    shown = [1] if len(labels) == 2 else range(min(len(labels), CURVES))
    charts.roc(axes, {str(labels[place]): true == labels[place] for place in shown},
               {str(labels[place]): chances[:, place] for place in shown})  # fmt: skip


def tested(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics with names that say what they were measured on, for a model's manifest."""
    return {f"{name}_test": value for name, value in metrics.items()}
