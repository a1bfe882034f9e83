"""Which libraries do the work: cuDF, CuPy and cuML on GPUs, pandas, NumPy, dask-ml and scikit-learn on CPUs.

``hpcml.connect(backend="auto")`` decides by the run's workers (it sets Dask's ``array.backend`` and
``dataframe.backend``); a job asks here and nowhere else.
"""

from __future__ import annotations

import importlib
from typing import Any

import dask


def on_gpu() -> bool:
    """Whether arrays lie on GPUs."""
    return bool(dask.config.get("array.backend") == "cupy")


def arrays() -> Any:
    """Return the module of the arrays' parts: cupy or numpy."""
    return importlib.import_module("cupy" if on_gpu() else "numpy")


def tables() -> Any:
    """Return the module of the data frames' parts: cudf or pandas."""
    return importlib.import_module("cudf" if dask.config.get("dataframe.backend") == "cudf" else "pandas")


def pick(cpu: str, gpu: str) -> Any:
    """Return the class that its dotted name says, of the library that fits; both have scikit-learn's methods."""
    module, _, name = (gpu if on_gpu() else cpu).rpartition(".")
    return getattr(importlib.import_module(module), name)


def library(value: Any) -> str:
    """Return the name of the library that an array, a series or a frame is of: numpy, cupy, pandas or cudf."""
    return type(value).__module__.partition(".")[0]


def to_numpy(value: Any) -> Any:
    """Return an array, a series or a frame in the host's memory (NumPy, pandas), wherever it lies."""
    return value.to_pandas() if library(value) == "cudf" else value.get() if library(value) == "cupy" else value


def import_everywhere(client: Any, *modules: str) -> None:
    """Import modules on all workers now, so that seconds of imports are no part of what is timed next."""
    client.run(_import, modules)


def _import(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)
