"""Every workload in one line: its options, and the figures that are the same on CPUs and GPUs."""

from __future__ import annotations

from typing import Any, NamedTuple


class Listed(NamedTuple):
    """How a workload is run, and what is compared.

    Attributes
    ----------
    small
        Options of a run on data of its own making that takes a second or two.
    same
        Figures of result.json, by dotted name, that are equal wherever it runs.
    kind
        The kind of data set that it reads with --data, and its shape: "blobs features=2"; empty if it reads none.
    reads
        Options besides --data.
    tolerance, gpu_tolerance
        Relative, of ``same``: wherever CPUs do the work, and of GPUs against CPUs, whose algorithms may differ.
    """

    small: str
    same: tuple[str, ...]
    kind: str = ""
    reads: str = ""
    tolerance: float = 1e-6
    gpu_tolerance: float = 1e-3


JOBS = {
    "kmeans": Listed("--rows 4000 --k 4", ("rows", "inertia", "silhouette"), "blobs features=2", "--k 4"),
    "dbscan": Listed("--rows 2000", ("rows", "clusters", "noise"), "moons"),
    "forest": Listed("--rows 2000 --trees 10", ("rows", "metrics.accuracy"), "classification features=4", "--trees 10", gpu_tolerance=0.05),
    "etl": Listed("--rows 20000", ("rows_read", "rows", "means"), "taxi"),
    "join": Listed("--rows 40000", ("rows_joined", "sums")),
    "arrays": Listed("--rows 1000 --columns 2000", ("bytes",)),
    "naive_bayes": Listed("--rows 2000 --words 20", ("rows", "metrics.accuracy"), "counts words=20"),
    "pca_svd": Listed("--rows 2500 --columns 60 --k 4", ("rows", "singular_values"), "blobs features=8", "--k 2"),
    "preprocess": Listed("--rows 2000", ("rows", "rows_read"), "table"),
    "xgboost_train": Listed("--rows 2000 --rounds 20", ("rows_train", "rows_test"), "regression features=4", "--rounds 20"),
    "pipeline": Listed("--rows 3000", ("rows", "metrics.r2"), "trips", "--trees 10", gpu_tolerance=0.02),
    "search": Listed("--rows 2000", ("candidates", "best_score"), "regression features=4"),
}  # fmt: skip
# More of what the jobs can do, compared on GPUs and CPUs only (bench/gpu); what comes after the bar is a name.
VARIANTS = {
    "forest/regressor": Listed("", ("metrics.r2",), "regression features=4", "--what regressor --trees 10", gpu_tolerance=0.03),
    "pca_svd/pca": Listed("", ("singular_values",), "blobs features=8", "--what pca --k 2"),
    "pca_svd/truncated": Listed("", ("singular_values",), "blobs features=8", "--what truncated --k 2"),
    "kmeans/elbow": Listed("", ("elbow.suggested_k",), "blobs features=2", "--k 4 --elbow 2-6"),
    "preprocess/drop": Listed("", ("rows",), "table", "--nulls drop --scale minmax"),
    "join/broadcast": Listed("--rows 40000 --how broadcast", ("rows_joined", "sums")),
    "etl/csv": Listed("--rows 20000 --form csv", ("rows_read", "rows", "means")),
}  # fmt: skip
TOOLS = ("make_data",)  # no workload of its own


def shape(kind: str) -> tuple[str, dict[str, Any]]:
    """Return a kind's name and its shape: ``blobs features=2`` is ("blobs", {"features": 2})."""
    name, *pairs = kind.split()
    return name, {
        key: float(value) if "." in value else int(value) for key, _, value in (pair.partition("=") for pair in pairs)
    }


def figure(result: dict[str, object], dotted: str) -> object:
    """Return a figure of result.json by its dotted name."""
    value: object = result
    for part in dotted.split("."):
        assert isinstance(value, dict), f"{dotted} is not in the result"
        value = value[part]
    return value
