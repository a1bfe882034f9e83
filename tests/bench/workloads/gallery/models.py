"""Models leave the cluster: a folder with a manifest and the model in a form that a machine without a GPU reads.

scikit-learn's estimators are kept by skops, which, unlike pickle, runs no code of the file while it reads; XGBoost's by
its own JSON. cuML's become scikit-learn's first: by ``as_sklearn`` (a forest's trees go through treelite there), or,
where cuML has none, by their fitted attributes. Nothing needs a GPU, cuML or treelite to be loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import dask.array as da
import distributed
import numpy as np
import pandas as pd

from gallery import backend
from gallery import job as jobs
from gallery.job import Job, RefusedError
from hpcml import files

MANIFEST, SKLEARN, XGBOOST = "manifest.json", "model.skops", "model.json"
DAMAGED = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, ImportError, RecursionError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
LARGEST = 1 << 40  # bytes of a model
# What skops does not trust of itself though the jobs' estimators hold it. Names in full: a module of functions that
# write files or start processes is of numpy or scikit-learn too.
TRUSTED = {
    "numpy.dtype", "sklearn.metrics._dist_metrics.EuclideanDistance64", "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.model_selection._split.KFold", "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree", "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    # SplineTransformer's, in scipy up to 1.17 and since
    "scipy.interpolate._bsplines.BSpline", "scipy.interpolate._bsplines._BSpline",
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
}  # fmt: skip
# cuML's classes without as_sklearn, or where it fails (RidgeMG's asks for an n_iter_ that it has not): scikit-learn's
# class and its fitted attributes, one as wide as the features first.
BY_ATTRIBUTES = {
    "RidgeMG": ("sklearn.linear_model.Ridge", ("coef_", "intercept_")),
    "CDMG": ("sklearn.linear_model.ElasticNet", ("coef_", "intercept_", "n_iter_")),
    "MultinomialNB": ("sklearn.naive_bayes.MultinomialNB",
                      ("feature_log_prob_", "class_log_prior_", "feature_count_", "class_count_", "classes_")),
}  # fmt: skip
COMPARED = ("scikit-learn", "xgboost", "xgboost-cpu", "numpy", "skops")  # what predictions may depend on


def export(
    job: Job,
    model: Any,
    *,
    features: dict[str, str],
    target: str | None,
    metrics: dict[str, float],
    times: Sequence[str] = (),
    numbered: Sequence[str] = (),
    name: str = "model",
) -> pathlib.Path:
    """Write a fitted model and its manifest as a folder of the results, and return it.

    Parameters
    ----------
    model
        An estimator of scikit-learn, of cuML (one GPU's, or Dask's with ``get_combined_model``) or an XGBoost booster.
    features
        Name and NumPy type of each column, in the order in which ``predict`` takes them.
    metrics
        What it reached, and on what: ``{"r2_test": 0.93}``.
    times
        Those of the features that are times, which the model is given as :func:`seconds` makes them.
    numbered
        Those that are numbers in the data and texts to the model: categories, as :func:`as_category` makes them.
    """
    portable = to_portable(model)
    with job.folder(name) as folder:
        if type(portable).__module__.startswith("xgboost"):
            portable.save_model(folder / XGBOOST)
        else:
            import skops.io

            if not hasattr(portable, "feature_names_in_"):  # so that it takes a frame by its names
                portable.feature_names_in_ = np.array(list(features), dtype=object)
            skops.io.dump(portable, folder / SKLEARN)
        kept = next(path for path in folder.iterdir())
        manifest = {
            "format": 1, "job": job.name, "estimator": f"{type(portable).__module__}.{type(portable).__qualname__}",
            "fitted_by": f"{type(model).__module__}.{type(model).__qualname__}", "file": kept.name,
            "sha256": hashlib.sha256(kept.read_bytes()).hexdigest(), "features": features, "target": target,
            "times": list(times), "numbered": list(numbered), "metrics": metrics, "seed": job.options.seed,
            "versions": jobs.versions(),
        }  # fmt: skip
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, default=jobs.plain) + "\n")
    return job.out / name


def seconds(times: Any) -> Any:
    """Return a pandas series of times, in any zone, as models are given it: seconds since 1970, NaN for a gap."""
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
    held = vars(model).get("solver")  # cuML's Lasso and ElasticNet over several GPUs; of others it is a word or none
    model = held if hasattr(held, "get_combined_model") else model
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


def load(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """Return a model and its manifest from a folder that :func:`export` wrote; no code of the file is run.

    Raises
    ------
    RefusedError
        It is no such folder, the model is not the file that the manifest speaks of, or holds types of its own.
    """
    try:
        manifest = files.read_json(folder / MANIFEST, ours=False, follow=True)
        path = folder / {SKLEARN: SKLEARN, XGBOOST: XGBOOST}[manifest["file"]]
        kept = files.read(path, LARGEST, ours=False, follow=True)
        same = hashlib.sha256(kept).hexdigest() == manifest["sha256"]
        _check(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(
            f"{folder} holds no model that can be read ({error}). Give the folder that a job wrote."
        ) from error
    if not same:
        raise RefusedError(f"{path} is not the file that {MANIFEST} describes: its SHA-256 differs. Export it again.")
    try:
        if manifest["file"] == XGBOOST:
            return _xgboost(manifest["estimator"], kept), manifest
        import skops.io

        needed = skops.io.get_untrusted_types(data=kept)
        if unknown := sorted(set(needed) - TRUSTED):
            raise RefusedError(f"{path} holds what no job exports: {', '.join(unknown)}. Do not load it.")
        return skops.io.loads(kept, trusted=needed), manifest
    except DAMAGED as error:
        raise RefusedError(f"{path} is damaged ({_words(error)}). Export it again.") from error


def _check(manifest: dict[str, Any]) -> None:
    """Raise TypeError or KeyError for a manifest whose facts are of another kind than :func:`export` writes."""
    tables = (manifest["features"], manifest["versions"])
    lists = (manifest.get("times", []), manifest.get("numbered", []))
    right = (
        all(isinstance(table, dict) and all(isinstance(value, str) for value in table.values()) for table in tables)
        and all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists)
        and isinstance(manifest["estimator"], str)
        and isinstance(manifest.get("target"), str | None)
    )
    if not right:
        raise TypeError("its facts are of another kind")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(".: ")


def _xgboost(estimator: str, kept: bytes) -> Any:
    """Return the booster, or the class with scikit-learn's methods that was exported.

    Python reads the file first: at some that are none (an empty one) XGBoost ends the process.
    """
    import xgboost

    read = files.parsed(json.loads, kept.decode())
    if not isinstance(read, dict) or not isinstance(read.get("learner"), dict) or "version" not in read:
        raise ValueError("it is no model of XGBoost")
    del read  # of a large forest it takes as much memory as the model
    name = estimator.rpartition(".")[2].removeprefix("Dask")
    model = getattr(xgboost, name if name in ("XGBClassifier", "XGBRegressor", "XGBRanker") else "Booster")()
    model.load_model(bytearray(kept))
    return model


def differences(manifest: dict[str, Any]) -> list[str]:
    """Return a sentence per library whose version here is another than the one that the model was made with."""
    here, said = jobs.versions(), []
    for name in COMPARED:
        then, now = manifest["versions"].get(name), here.get(name)
        if then and now and then != now:
            said.append(f"The model was made with {name} {then}, here is {now}: predictions may differ.")
    return said
