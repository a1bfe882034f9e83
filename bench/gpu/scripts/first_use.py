"""Time what a process pays once: imports, and the first call of each operation, most of which is compiling its kernel.

Prints one line of JSON: seconds of the imports, of the GPU's context, of all first calls, and the slowest three. CuPy
keeps what it compiled in ``CUPY_CACHE_DIR``.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

ROWS, COLUMNS = 100_000, 20


def operations(xp: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give what bench/workloads/gallery does with arrays, by name."""
    x = xp.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    y, mask = x[:, 0] > 0, x[:, 1] > 0
    yield "sum of columns", lambda: x.sum(axis=0)
    yield "sum of all", x.sum
    yield "mean of rows", lambda: x.mean(axis=1)
    yield "deviation of columns", lambda: x.std(axis=0)
    yield "finite rows", lambda: xp.isfinite(x).all(axis=1)
    yield "32 bits", lambda: x.astype("float32")
    yield "centred", lambda: x - x.mean(axis=0)
    yield "product", lambda: x.T @ x
    yield "product, 32 bits", lambda: x.astype("float32").T @ x.astype("float32")
    yield "rows by a mask", lambda: x[mask]
    yield "rows by numbers", lambda: x[xp.arange(0, ROWS, 7)]
    yield "places of a mask", lambda: xp.nonzero(mask)
    yield "concatenated", lambda: xp.concatenate([x, x])
    yield "where", lambda: xp.where(x > 0, x, 0.0)
    yield "unique", lambda: xp.unique(y.astype("int64"))
    yield "counts", lambda: xp.bincount(y.astype("int64"), minlength=3)
    yield "searched", lambda: xp.searchsorted(xp.linspace(0, 1, 9), x[:, 0])
    yield "sorted", lambda: xp.sort(x[:, 0])
    yield "largest of rows", lambda: x.argmax(axis=1)
    yield "of the squares", lambda: xp.sqrt((x**2).sum(axis=0, dtype="float64"))
    yield "exponentials", lambda: xp.log(xp.exp(x) + 1)
    yield "QR", lambda: xp.linalg.qr(x)
    yield "SVD", lambda: xp.linalg.svd(x[:1_000], full_matrices=False)


def tables(xp: Any, frames: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give what they do with data frames."""
    frame = frames.DataFrame({"key": xp.arange(ROWS) % 97, "value": xp.arange(ROWS, dtype="float64")})
    yield "frame: sums by key", lambda: frame.groupby("key").sum()
    yield "frame: sorted", lambda: frame.sort_values("value")
    yield "frame: joined", lambda: frame.merge(frame.groupby("key").sum().reset_index(), on="key")
    yield "frame: to an array", lambda: frame.fillna(0).to_numpy() if xp.__name__ == "numpy" else frame.fillna(0).values


def main(*, cpu_only: bool) -> dict[str, Any]:
    began = time.perf_counter()
    names = ("numpy", "pandas") if cpu_only else ("cupy", "cudf")
    xp, frames = (importlib.import_module(name) for name in names)
    if not cpu_only:
        importlib.import_module("cuml")
    found: dict[str, Any] = {"imports_s": time.perf_counter() - began}
    wait = (lambda: None) if cpu_only else xp.cuda.Device().synchronize
    began = time.perf_counter()
    xp.zeros(1)
    wait()
    found["context_s"] = time.perf_counter() - began
    began = time.perf_counter()
    calls = [*operations(xp), *tables(xp, frames)]
    wait()
    seconds = {"random numbers": time.perf_counter() - began}
    for name, call in calls:
        began = time.perf_counter()
        call()
        wait()
        seconds[name] = time.perf_counter() - began
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:3]
    found |= {"first_calls_s": sum(seconds.values()), "calls": len(seconds), "by_call": seconds}
    found["slowest"] = ", ".join(f"{name} {seconds[name]:.2f}" for name in slowest)
    return found


if __name__ == "__main__":
    print(json.dumps(main(cpu_only="--cpu" in sys.argv)), flush=True)
