"""The examples' estimators on GPUs, each beside scikit-learn or plain Dask on this host's CPUs: ``estimators.py ROUNDS CASE [--small]``.

Both work on the same rows, in turns; a round before the first loads libraries and compiles kernels. The figures are in out/rounds.json: a list of
rows with a name, the seconds of each round, and how far the answers are apart, relative to the CPUs' largest. Without GPUs
scikit-learn and dask-ml do the work of cuML: this tries the script, and measures nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import sklearn.datasets
import sklearn.linear_model
import sklearn.model_selection
import sklearn.neighbors
import sklearn.preprocessing
import threadpoolctl
from distributed import default_client, futures_of, wait

import hpcml

CPUS = len(os.sched_getaffinity(0))
EXACT = {"tol": 1e-6, "max_iter": 10_000}
ALPHAS, FOLDS = np.logspace(-2, 6, 10).tolist(), 5  # the published grid: ten candidates on five folds
Row = dict[str, Any]
Way = Callable[[], Any]
done_rows: list[Row] = []


def in_turns(name: str, rounds: int, ours: Way, theirs: Way | None, **more: Any) -> Row:
    """Return a row: the seconds of both ways in turns, and how far their answers are apart."""
    seconds: dict[str, list[float]] = {"gpu": [], "cpu": []}
    answers: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for way, work in (("gpu", ours), ("cpu", theirs)):
            if work is None or (way == "cpu" and not turn):
                continue
            start = time.perf_counter()
            try:
                answers[way] = work()
            except Exception as error:  # noqa: BLE001 - the other rows are measured
                return {"name": name, "error": f"{way}: {type(error).__name__}: {error}"[:600]}
            seconds[way] += [round(time.perf_counter() - start, 6)] if turn else []
    row: Row = {"name": name, "rounds": rounds, "each": seconds, **more}
    row |= {f"{way}_s": statistics.median(all_of_it) for way, all_of_it in seconds.items() if all_of_it}
    if theirs is not None and answers["cpu"] is not None:
        ours_array, others = (np.asarray(host(answers[way]), dtype="float64") for way in ("gpu", "cpu"))
        row["apart"] = float(np.abs(ours_array - others).max() / max(np.abs(others).max(), 1e-12))
    print(json.dumps({key: value for key, value in row.items() if key != "each"}), flush=True)
    done_rows.append(row)
    (hpcml.run.out / "rounds.json").write_text(json.dumps({"rows": done_rows}))  # a later row may take too long
    return row


def host(value: Any) -> Any:
    """Return an array, series or Dask collection as NumPy's."""
    value = value.compute() if hasattr(value, "compute") else value
    value = value.to_pandas() if hasattr(value, "to_pandas") else value
    return np.asarray(value.get() if hasattr(value, "get") and not isinstance(value, pd.Series) else value)


def done(*collections: Any) -> None:
    """Wait until persisted collections are computed."""
    wait([future for one in collections for future in futures_of(one)])


def regression(rows: int, features: int) -> tuple[Any, Any]:
    """Return features and a target as Dask arrays on the workers, in blocks of 1/8."""
    rng = da.random.default_rng(0)
    x = rng.standard_normal((rows, features), chunks=(-(-rows // 8), features)).persist()
    weights = np.where(np.arange(features) % 4, 0.0, np.arange(features) + 1.0)
    noise = rng.standard_normal(rows, chunks=-(-rows // 8))
    line = x.map_blocks(lambda block: block @ np.asarray(weights, like=block), drop_axis=1, meta=noise._meta)
    y = (line + noise).persist()
    done(x, y)
    return x, y


def on_host(model: Any, x: Any, y: Any) -> Any:
    """Return the coefficients that scikit-learn finds."""
    return model.fit(x, y).coef_


def linear(rounds: int, *, small: bool) -> list[Row]:
    """Ridge, Lasso and elastic net; and what predict(delayed=…) changes."""
    x, y = regression(4_000 if small else 1_000_000, 16 if small else 64)
    whole = host(x), host(y)
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "Ridge": ({"alpha": 1000.0}, {}),
        "Lasso": ({"alpha": 0.1, **EXACT}, {"l1_ratio": 1.0}),
        "ElasticNet": ({"alpha": 0.1, "l1_ratio": 0.5, **EXACT}, {}),
    }
    found = []
    for name, (options, of_cuml) in kinds.items():
        theirs = getattr(sklearn.linear_model, name)(**options)

        def ours(name: str = name, options: dict[str, Any] = options | of_cuml, theirs: Any = theirs) -> Any:
            if not hpcml.run.gpus:
                return on_host(theirs, *whole)
            from cuml.dask import linear_model

            model = getattr(linear_model, name)(**options).fit(x, y)
            whole_model = vars(model).get("solver") or model.get_combined_model()  # of cuml.dask's Ridge coef_ is None
            return whole_model.coef_

        size = f"{x.shape[0]:,} × {x.shape[1]}, {whole[0].nbytes / 1e9:.2f} GB"
        found.append(in_turns(name, rounds, ours, partial(on_host, theirs, *whole), size=size, library="cuml.dask"))
    return [*found, *predictions(rounds, x, y)]


def predictions(rounds: int, x: Any, y: Any) -> list[Row]:
    """Return how long the call of predict takes, and how long until all is predicted, delayed and not."""
    if not hpcml.run.gpus:
        return []
    from cuml.dask.linear_model import LinearRegression

    model, rows = LinearRegression().fit(x, y), []
    for delayed in (True, False):
        calls: list[float] = []

        def ours(delayed: bool = delayed, calls: list[float] = calls) -> None:
            start = time.perf_counter()
            predicted = model.predict(x, delayed=delayed)
            calls.append(round(time.perf_counter() - start, 6))
            done(predicted.persist())

        row = in_turns(f"predict(delayed={delayed})", rounds, ours, None, size=f"{len(x):,} rows", library="cuml.dask")
        rows.append(row if "error" in row else row | {"call_s": statistics.median(calls[1:]), "calls": calls[1:]})
    return rows


def neighbors(rounds: int, *, small: bool) -> list[Row]:
    """Nearest neighbours: the search, and regression."""
    many, few, k = (2_000, 200, 10) if small else (400_000, 20_000, 10)
    rng = da.random.default_rng(1)
    x, asked = (
        rng.standard_normal((rows, 16), chunks=(-(-rows // 8), 16)).astype("float32").persist() for rows in (many, few)
    )
    y = x.sum(axis=1).astype("float32").persist()
    done(x, asked, y)
    whole, queries, target = host(x), host(asked), host(y)
    size = f"{few:,} of {many:,} × 16"

    def search() -> Any:
        if not hpcml.run.gpus:
            return sklearn.neighbors.NearestNeighbors(n_neighbors=k).fit(whole).kneighbors(queries)[0]
        from cuml.dask.neighbors import NearestNeighbors

        distances, rows = (host(part) for part in NearestNeighbors(n_neighbors=k).fit(x).kneighbors(asked))
        again = np.sqrt(
            ((whole[rows[:500].astype(int)] - queries[:500, None]) ** 2).sum(axis=2)
        )  # are the row numbers right?
        assert np.allclose(again, distances[:500], atol=1e-2), "the row numbers are not those of the rows"
        return distances

    def regress() -> Any:
        if not hpcml.run.gpus:
            return sklearn.neighbors.KNeighborsRegressor(k).fit(whole, target).predict(queries)
        from cuml.dask.neighbors import KNeighborsRegressor

        return host(KNeighborsRegressor(n_neighbors=k).fit(x, y).predict(asked)).ravel()

    find = sklearn.neighbors.NearestNeighbors(n_neighbors=k, n_jobs=CPUS)
    mean = sklearn.neighbors.KNeighborsRegressor(k, n_jobs=CPUS)
    return [
        in_turns("NearestNeighbors", rounds, search, lambda: find.fit(whole).kneighbors(queries)[0], size=size, library="cuml.dask"),
        in_turns("KNeighborsRegressor", rounds, regress, lambda: mean.fit(whole, target).predict(queries), size=size, library="cuml.dask"),
    ]  # fmt: skip


def by_numpy(work: Any, plain: Any, k: int) -> Any:
    """Return the first singular values by plain Dask on this host's cores, without a cluster; u and v are computed too."""
    with (
        dask.config.set({"scheduler": "threads", "num_workers": CPUS, "array.backend": "numpy"}),
        threadpoolctl.threadpool_limits(1),
    ):
        return dask.compute(*work(plain))[1][:k]


def svd(rounds: int, *, small: bool) -> list[Row]:
    """The exact SVD of a tall array, cuML's truncated one, and the compressed one, beside plain Dask on NumPy."""
    shapes = [(400, 20)] if small else [(10_000, 1_000), (2_000_000, 100)]
    k, found = 10, []
    for rows, columns in shapes:
        rng = da.random.default_rng(2)
        chunks = (max(-(-rows // 8), columns), columns)
        hidden = rng.standard_normal((rows, k), chunks=(chunks[0], k)) * 100
        mix = np.random.default_rng(3).normal(size=(k, columns)) * 1.3 ** -np.arange(k)[:, None]
        noise = rng.standard_normal((rows, columns), chunks=chunks)
        x = (hidden.map_blocks(lambda block, mix: block @ np.asarray(mix, like=block), mix=mix, chunks=(hidden.chunks[0], (columns,)), meta=noise._meta) + noise).persist()  # fmt: skip
        done(x)
        plain = da.from_array(host(x), chunks=chunks)

        def exact(x: Any = x) -> Any:
            u, singular, v = dask.persist(*da.linalg.svd(x))
            done(u, singular, v)
            return singular[:k]

        def truncated(x: Any = x) -> Any:
            if hpcml.run.gpus:
                from cuml.dask.decomposition import TruncatedSVD
            else:
                from dask_ml.decomposition import TruncatedSVD
            return TruncatedSVD(n_components=k).fit(x).singular_values_

        def compressed(x: Any = x) -> Any:
            u, singular, v = dask.persist(*da.linalg.svd_compressed(x, k=k, n_power_iter=2, seed=0))
            done(u, singular, v)
            return singular

        cpu_exact = partial(by_numpy, da.linalg.svd, plain, k)
        cpu_compressed = partial(by_numpy, partial(da.linalg.svd_compressed, k=k, n_power_iter=2, seed=0), plain, k)
        size = f"{rows:,} × {columns:,}, {plain.nbytes / 1e9:.2f} GB"
        found += [
            in_turns(
                f"da.linalg.svd, {columns:,} columns", rounds, exact, cpu_exact, size=size, library="Dask on CuPy"
            ),
            in_turns(
                f"TruncatedSVD, {columns:,} columns", rounds, truncated, cpu_exact, size=size, library="cuml.dask"
            ),
            in_turns(
                f"da.linalg.svd_compressed, {columns:,} columns",
                rounds,
                compressed,
                cpu_compressed,
                size=size,
                library="Dask on CuPy",
            ),
        ]
    return found


def encode(rounds: int, *, small: bool) -> list[Row]:
    """LabelEncoder on texts."""
    rows = 4_000 if small else 4_000_000
    texts = (
        pd.Series([f"class {number:04}" for number in range(1_000)])
        .take(np.random.default_rng(0).integers(0, 1_000, rows))
        .reset_index(drop=True)
    )
    column = dd.from_pandas(pd.DataFrame({"text": texts}), npartitions=8).to_backend()["text"].persist()
    done(column)
    objects = texts.to_numpy(dtype=object)

    def ours() -> Any:
        if hpcml.run.gpus:
            from cuml.dask.preprocessing import LabelEncoder
        else:
            from dask_ml.preprocessing import LabelEncoder
        encoder = LabelEncoder().fit(column)
        numbers = encoder.transform(column)
        assert (host(encoder.inverse_transform(numbers))[:1_000] == objects[:1_000]).all(), (
            "texts are not what they were"
        )
        return host(numbers)

    def theirs() -> Any:
        encoder = sklearn.preprocessing.LabelEncoder().fit(objects)
        numbers = encoder.transform(objects)
        encoder.inverse_transform(numbers)
        return numbers

    return [in_turns("LabelEncoder", rounds, ours, theirs, size=f"{rows:,} texts, 1,000 classes", library="cuml.dask")]


def ridge_fit(rows: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of moving rows to the GPU, of cuML's fit there, and of scikit-learn's; a task, on a worker."""
    x, y = sklearn.datasets.load_diabetes(return_X_y=True)
    times = -(-rows // len(x))
    x, y = np.tile(x, (times, 1))[:rows], np.tile(y, times)[:rows]
    seconds: dict[str, list[float]] = {"move": [], "fit": [], "sklearn": []}
    for turn in range(rounds + 1):
        steps = [time.perf_counter()]
        if importlib.util.find_spec("cuml"):
            import cupy
            from cuml.linear_model import Ridge

            there = cupy.asarray(x), cupy.asarray(y)
            cupy.cuda.Device().synchronize()
            steps.append(time.perf_counter())
            model = Ridge(alpha=1.0, solver="eig").fit(*there)
            cupy.cuda.Device().synchronize()
            steps.append(time.perf_counter())
            del there
        else:
            model = None
            steps += [time.perf_counter()] * 2
        with threadpoolctl.threadpool_limits(CPUS):
            other = sklearn.linear_model.Ridge(alpha=1.0).fit(x, y)
        steps.append(time.perf_counter())
        for number, name in enumerate(seconds):
            seconds[name] += [steps[number + 1] - steps[number]] if turn else []
    apart = 0.0 if model is None else float(np.abs(host(model.coef_) - other.coef_).max() / np.abs(other.coef_).max())
    medians = {f"{name}_s": statistics.median(all_of_it) for name, all_of_it in seconds.items()}
    return {"each": seconds, "gigabytes": x.nbytes / 1e9, "apart": apart, **medians}


def place(x: Any, y: Any) -> tuple[Any, Any]:
    """Move rows to this worker's GPU."""
    if importlib.util.find_spec("cuml"):
        import cupy

        return cupy.asarray(x), cupy.asarray(y)
    return x, y


def score(rows: tuple[Any, Any], alpha: float, fold: int, copied: bool) -> float:
    """Fit without one fold and return R² on this fold, of rows on the GPU, or (not ``copied``) in the host's memory."""
    if importlib.util.find_spec("cuml"):
        from cuml.linear_model import Ridge
    else:
        from sklearn.linear_model import Ridge
    x, y = rows
    fit, test = (
        np.asarray(part, like=x) for part in list(sklearn.model_selection.KFold(FOLDS).split(range(len(y))))[fold]
    )
    parts = x[fit], y[fit], x[test], y[test]
    if not copied:
        parts = *place(*parts[:2]), *place(*parts[2:])
    return float(Ridge(alpha=alpha).fit(*parts[:2]).score(*parts[2:]))


def search(rounds: int, *, small: bool) -> list[Row]:
    """The published figures of the search: one fit, small and 2.8 GB, with the move to the GPU; and grids of ten alphas on five folds."""
    client, found = default_client(), []
    for rows in (442, 4_420 if small else 35_000_000):
        one = client.submit(ridge_fit, rows, rounds, pure=False).result()
        size = f"{rows:,} × 10, {one['gigabytes']:.3g} GB"
        found.append({"name": f"Ridge, one fit, {rows:,} rows", "rounds": rounds, "size": size, "library": "cuML", "gpu_s": one["move_s"] + one["fit_s"],
                      "move_s": one["move_s"], "fit_s": one["fit_s"], "cpu_s": one["sklearn_s"], "each": one["each"], "apart": one["apart"]})  # fmt: skip
        print(json.dumps({key: value for key, value in found[-1].items() if key != "each"}), flush=True)
    for rows in (442, 4_420 if small else 350_000):
        x, y = sklearn.datasets.load_diabetes(return_X_y=True)
        times = -(-rows // len(x))
        order = np.random.default_rng(0).permutation(rows)
        x, y = np.tile(x, (times, 1))[:rows][order], np.tile(y, times)[:rows][order]
        size = f"{rows:,} × 10, {x.nbytes / 1e6:.3g} MB"
        there = client.scatter((x, y), broadcast=True, hash=False)

        def tried(rows: Any, copied: bool) -> Any:
            tasks = [
                client.submit(score, rows, alpha, fold, copied, pure=False) for alpha in ALPHAS for fold in range(FOLDS)
            ]
            return np.reshape(client.gather(tasks), (len(ALPHAS), FOLDS)).mean(axis=1)

        def each(there: Any = there, tried: Any = tried) -> Any:
            return tried(there, False)

        def once(x: Any = x, y: Any = y, tried: Any = tried) -> Any:
            placed = client.submit(place, x, y, pure=False)
            client.replicate(placed)
            return tried(placed, True)

        def grid(jobs: int, x: Any = x, y: Any = y) -> Any:
            search = sklearn.model_selection.GridSearchCV(sklearn.linear_model.Ridge(), {"alpha": ALPHAS},
                                                          cv=sklearn.model_selection.KFold(FOLDS), n_jobs=jobs, refit=False)  # fmt: skip
            return search.fit(x, y).cv_results_["mean_test_score"]

        for name, ours, jobs in (
            ("moved for every fit", each, 1),
            ("moved once", once, 1),
            ("moved once, all cores", once, CPUS),
        ):
            found.append(
                in_turns(
                    f"grid of {rows:,} rows, {name}",
                    rounds,
                    ours,
                    partial(grid, jobs),
                    size=size,
                    library="cuML",
                )
            )
    return found


def hand_over(rounds: int, megabytes: int) -> dict[str, Any]:
    """Return the seconds of giving an array to torch and back by DLPack, and by the host's memory; a task, on a worker."""
    import torch

    if importlib.util.find_spec("cupy") and torch.cuda.is_available():
        import cupy as library
    else:
        library = np
    block = library.ones((megabytes, 250_000), dtype="float32")
    seconds: dict[str, list[float]] = {"dlpack": [], "host": []}
    for turn in range(rounds + 1):
        start = time.perf_counter()
        tensor = torch.from_dlpack(block)
        back = library.from_dlpack(tensor)
        middle = time.perf_counter()
        other = torch.from_numpy(host(block).copy()).to(tensor.device)
        library.asarray(other.cpu().numpy())
        end = time.perf_counter()
        seconds["dlpack"] += [middle - start] if turn else []
        seconds["host"] += [end - middle] if turn else []
    places = [array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data for array in (block, back)]
    medians = {name: statistics.median(all_of_it) for name, all_of_it in seconds.items()}
    return {
        "each": seconds,
        "gpu_s": medians["dlpack"],
        "cpu_s": medians["host"],
        "shared": places == [tensor.data_ptr()] * 2,
    }


def to_torch(rounds: int, *, small: bool) -> list[Row]:
    """An array given to torch and back without a copy, beside the way through the host's memory."""
    if importlib.util.find_spec("torch") is None:
        return [{"name": "to torch and back", "skipped": "PyTorch is not here"}]
    megabytes = 1 if small else 2_000
    one = default_client().submit(hand_over, rounds, megabytes, pure=False).result()
    assert one.pop("shared"), "the memory was copied"
    return [
        {
            "name": "to torch and back",
            "rounds": rounds,
            "size": f"{megabytes / 1000:g} GB",
            "library": "DLPack",
            "apart": 0.0,
            **one,
        }
    ]


def constraints(rounds: int, *, small: bool) -> list[Row]:
    """What cuML's KMeans on several GPUs refuses, and in which words."""
    if not hpcml.run.gpus:
        return []
    from cuml.dask.cluster import KMeans

    x, _ = regression(1_000, 2)
    found = []
    refused: dict[str, dict[str, Any]] = {
        "init='k-means++'": {"init": "k-means++"},
        "oversampling_factor=0": {"oversampling_factor": 0},
        "2,000 clusters of 1,000 rows": {"n_clusters": 2_000},
        "random_state=0": {"random_state": 0},
    }
    for name, options in refused.items():
        start = time.perf_counter()
        try:
            KMeans(**{"n_clusters": 3, **options}).fit(x)
            words = "accepted"
        except Exception as error:  # noqa: BLE001 - the words are what is asked for
            words = f"{type(error).__name__}: {error}"[:300]
        found.append(
            {"name": f"KMeans, {name}", "library": "cuml.dask", "words": words, "gpu_s": time.perf_counter() - start}
        )
    return found


CASES = {"linear": linear, "neighbors": neighbors, "svd": svd, "encode": encode, "search": search, "to_torch": to_torch, "constraints": constraints}  # fmt: skip


def main(rounds: int, case: str, small: str = "") -> None:
    hpcml.connect(backend="auto")
    with threadpoolctl.threadpool_limits(CPUS):
        rows = CASES[case](rounds, small=bool(small))
    (hpcml.run.out / "rounds.json").write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
