"""Models on both sides: predictions of any fitted model over a Dask array, and cuML's models as scikit-learn's."""

from __future__ import annotations

import importlib
from typing import Any

import dask.array as da
import distributed
import numpy as np
import pandas as pd

from gallery import backend

# cuML's classes without as_sklearn: scikit-learn's class and its fitted attributes, one as wide as the features first.
BY_ATTRIBUTES = {
    "MultinomialNB": ("sklearn.naive_bayes.MultinomialNB",
                      ("feature_log_prob_", "class_log_prior_", "feature_count_", "class_count_", "classes_")),
}  # fmt: skip


def seconds(times: Any) -> Any:
    """Return a pandas series of times as seconds since 1970, NaN for a gap."""
    return (times - pd.Timestamp(0, tz=times.dt.tz)) / pd.Timedelta(seconds=1)


def as_category(values: Any, *, numbered: bool) -> Any:
    """Return a series of pandas or cuDF as texts, with its gaps; of ``numbered`` ones whole numbers without a point."""
    text = values.astype("str")
    if numbered:  # floats too, which gaps make of integers
        text = text.str.replace(r"\.0$", "", regex=True)
    return text.where(values.notnull())


def to_portable(model: Any) -> Any:
    """Return a model that a machine without a GPU can use: scikit-learn's in place of cuML's.

    Raises
    ------
    TypeError
        cuML's class has neither ``as_sklearn`` nor a form that is known here.
    """
    if not type(model).__module__.startswith("cuml"):
        return model
    if hasattr(model, "get_combined_model"):
        model = model.get_combined_model()
    name = type(model).__name__
    if name not in BY_ATTRIBUTES:
        if not hasattr(model, "as_sklearn"):
            raise TypeError(f"{type(model).__module__}.{name} has no form without a GPU")
        return model.as_sklearn()
    dotted, attributes = BY_ATTRIBUTES[name]
    module, _, wanted = dotted.rpartition(".")
    portable = getattr(importlib.import_module(module), wanted)()
    for attribute in attributes:
        setattr(portable, attribute, backend.to_numpy(getattr(model, attribute)))
    portable.n_features_in_ = np.shape(getattr(portable, attributes[0]))[-1]
    return portable


def predict(model: Any, x: Any, method: str = "predict") -> Any:
    """Return what a fitted model says of a Dask array's rows, as a lazy Dask array that is chunked alike.

    cuML's Dask estimators work on their GPUs; any other model is taken to the blocks, where NumPy's lie.
    """
    if type(model).__module__.startswith("cuml"):
        found = getattr(model, method)(x)
        found._chunks = (x.chunks[0], *found.chunks[1:])
        return found
    blank = getattr(model, method)(np.zeros((1, x.shape[1]), x.dtype))
    chunks = (x.chunks[0], *((size,) for size in blank.shape[1:]))
    drop = [1] if blank.ndim == 1 else []
    sent = distributed.default_client().scatter(model, hash=False)  # a forest is too large for a graph
    return da.map_blocks(_predict, x, sent, method, chunks=chunks, drop_axis=drop, meta=blank[:0])


def _predict(block: Any, model: Any, method: str) -> Any:
    return getattr(model, method)(block)
