"""What people write for GPUs, on the cluster that the script opens itself: alone a LocalCUDACluster, in a run the run's.

idioms.py RESULT.json: the figures of each idiom, or its error.
"""

import json
import os
import sys
import time
from pathlib import Path

import dask
import numpy as np
from dask.distributed import Client, get_client


def arrays():
    """CuPy arrays of dask.array, asked for by their module."""
    import cupy
    import dask.array as da

    x = da.random.RandomState(7, RandomState=cupy.random.RandomState).random((4000, 4000), chunks=(1000, 1000))
    total = (x + x.T).sum().compute()
    return {"kind": type(total).__module__.partition(".")[0], "figure": round(float(total), -1)}


def numpy_on_dask_ml():
    """Dask-ML on NumPy data, where a backend of GPUs would break it."""
    import dask.array as da
    from dask_ml.cluster import KMeans
    from dask_ml.preprocessing import StandardScaler

    rng = np.random.default_rng(3)
    centres = np.array([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]])
    data = np.concatenate([rng.normal(centre, 1.0, (1000, 2)) for centre in centres]).astype(np.float32)
    x = da.from_array(data, chunks=(500, 2))
    scaled = StandardScaler().fit_transform(x)
    model = KMeans(n_clusters=3, random_state=0, init_max_iter=2).fit(scaled)
    return {"kind": type(scaled.compute()).__module__, "figure": round(float(model.inertia_), 1)}


def blobs():
    """cuML's make_blobs and KMeans."""
    from cuml.dask.cluster import KMeans
    from cuml.dask.datasets import make_blobs

    x, _ = make_blobs(n_samples=20000, n_features=4, centers=5, cluster_std=0.1, random_state=10, n_parts=4)
    model = KMeans(n_clusters=5, random_state=1).fit(x)
    labels = model.predict(x).compute()
    return {"kind": type(labels).__module__.partition(".")[0], "figure": len(set(labels.get().tolist()))}


def regression():
    """cuML's make_regression and LinearRegression."""
    from cuml.dask.datasets import make_regression
    from cuml.dask.linear_model import LinearRegression

    x, y = make_regression(n_samples=20000, n_features=8, n_informative=8, noise=0.0, random_state=5, n_parts=4)
    x, y = x.persist(), y.persist()
    model = LinearRegression().fit(x, y)
    error = abs(model.predict(x).compute() - y.compute()).max()
    return {"kind": type(x._meta).__module__.partition(".")[0], "figure": bool(float(error) < 0.1)}


def classification():
    """cuML's make_classification and a random forest."""
    from cuml.dask.datasets.classification import make_classification
    from cuml.dask.ensemble import RandomForestClassifier

    x, y = make_classification(
        n_samples=8000, n_features=10, n_informative=6, random_state=2, n_parts=4, dtype="float32"
    )
    x, y = x.persist(), y.astype("int32").persist()
    model = RandomForestClassifier(n_estimators=20, max_depth=8, random_state=1).fit(x, y)
    right = (model.predict(x).compute() == y.compute()).mean()
    return {"kind": type(y._meta).__module__.partition(".")[0], "figure": bool(float(right) > 0.8)}


def frames():
    """dask_cudf, asked for by its module."""
    import cudf
    import dask_cudf

    frame = cudf.DataFrame({"key": np.arange(10000) % 7, "value": np.arange(10000.0)})
    means = dask_cudf.from_cudf(frame, npartitions=4).groupby("key").value.mean().compute()
    return {"kind": type(means).__module__.partition(".")[0], "figure": round(float(means.sum()), 3)}


def pandas_frames():
    """Plain dask.dataframe, which stays pandas."""
    import dask.dataframe as dd
    import pandas as pd

    frame = pd.DataFrame({"key": np.arange(1000) % 5, "value": np.arange(1000.0)})
    means = dd.from_pandas(frame, npartitions=4).groupby("key").value.mean().compute()
    return {"kind": type(means).__module__.partition(".")[0], "figure": round(float(means.sum()), 3)}


def _seen():
    """Return what a task finds of what the script set before it opened its cluster."""
    return (
        os.environ.get("SCALE"),
        "/set/by/the/script" in sys.path,
        str(Path.cwd()),
        dask.config.get("of-the-script", None),
    )


def surroundings():
    """Variables, module path, working folder and settings of Dask that the script set before it opened its cluster."""
    found = {str(one) for one in get_client().run(_seen).values()}
    return {"kind": "workers", "figure": " ".join(sorted(found))}


IDIOMS = (surroundings, arrays, numpy_on_dask_ml, blobs, regression, classification, frames, pandas_frames)


def main():
    """Run each idiom and write what came out."""
    from dask_cuda import LocalCUDACluster

    os.environ["SCALE"] = "10"
    sys.path.insert(0, "/set/by/the/script")
    os.chdir("/usr")
    dask.config.set({"of-the-script": 7})
    began = time.monotonic()
    with (
        LocalCUDACluster(protocol="tcp", rmm_pool_size="4GiB", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        found = {"workers": len(client.scheduler_info()["workers"]), "open_s": round(time.monotonic() - began, 2)}
        for idiom in IDIOMS:
            began = time.monotonic()
            try:
                found[idiom.__name__] = idiom() | {"seconds": round(time.monotonic() - began, 2)}
            except Exception as error:  # noqa: BLE001 - the next is tried whatever happens
                found[idiom.__name__] = {"error": f"{type(error).__name__}: {error}"[:300]}
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
