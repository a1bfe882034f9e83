"""Models leave the cluster: a folder with a manifest and the model in a form that a machine without a GPU reads.

scikit-learn's estimators are kept by skops, which, unlike pickle, runs no code of the file while it reads; XGBoost's by
its own JSON. cuML's become scikit-learn's first (its ``as_sklearn``).
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from gallery import job as jobs
from gallery.job import Job, RefusedError

MANIFEST, SKLEARN, XGBOOST = "manifest.json", "model.skops", "model.json"


def export(
    job: Job,
    model: Any,
    *,
    features: dict[str, str],
    target: str | None,
    metrics: dict[str, float],
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
    """
    portable = to_portable(model)
    with job.folder(name) as folder:
        if type(portable).__module__.startswith("xgboost"):
            portable.save_model(folder / XGBOOST)
        else:
            import skops.io

            portable.feature_names_in_ = np.array(list(features), dtype=object)  # so that it takes a frame by its names
            skops.io.dump(portable, folder / SKLEARN)
        kept = next(path for path in folder.iterdir())
        manifest = {
            "format": 1, "job": job.name, "estimator": f"{type(portable).__module__}.{type(portable).__qualname__}",
            "fitted_by": f"{type(model).__module__}.{type(model).__qualname__}", "file": kept.name,
            "sha256": hashlib.sha256(kept.read_bytes()).hexdigest(), "features": features, "target": target,
            "metrics": metrics, "seed": job.options.seed, "versions": jobs.versions(),
        }  # fmt: skip
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, default=jobs.plain) + "\n")
    return job.out / name


def to_portable(model: Any) -> Any:
    """Return a model that a machine without a GPU can use: scikit-learn's in place of cuML's."""
    if hasattr(model, "get_combined_model"):
        model = model.get_combined_model()
    return model.as_sklearn() if hasattr(model, "as_sklearn") else model


def load(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """Return a model and its manifest from a folder that :func:`export` wrote.

    Raises
    ------
    RefusedError
        It is no such folder, or the model is not the file that the manifest speaks of.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        path = folder / manifest["file"]
        kept = path.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise RefusedError(
            f"{folder} holds no model that can be read ({error}). Give the folder that a job wrote."
        ) from error
    if hashlib.sha256(kept).hexdigest() != manifest["sha256"]:
        raise RefusedError(f"{path} is not the file that {MANIFEST} describes: its SHA-256 differs. Export it again.")
    if manifest["file"] == XGBOOST:
        import xgboost

        model = xgboost.Booster()
        model.load_model(path)
        return model, manifest
    import skops.io

    unknown = [name for name in skops.io.get_untrusted_types(file=path) if not _trusted(name)]
    if unknown:
        raise RefusedError(f"{path} holds types that this program does not make: {', '.join(unknown)}. Do not load it.")
    return skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path)), manifest


def _trusted(name: str) -> bool:
    """Whether a type is of the libraries whose estimators the jobs export."""
    return name.partition(".")[0] in ("sklearn", "numpy", "scipy")
