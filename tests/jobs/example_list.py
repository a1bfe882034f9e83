"""Every example of jobs/: the figures of its result.json that are the same wherever it runs (no test framework here)."""

from __future__ import annotations

# By figure, how far GPUs may be from CPUs, relative to the CPUs': other algorithms, float32, and random numbers of CuPy's.
# The smallest coefficient of logistic is a five-hundredth of the largest: L-BFGS stops 2 % from it.
EXAMPLES: dict[str, dict[str, float]] = {
    "arrays": {"shape": 0, "mean": 0.02, "noise": 0.001, "error": 0.02},
    "dask_dataframe": {"rows": 0, "sum": 1e-9, "counts": 0, "rivers": 1e-9, "mean": 1e-9, "rise": 1e-9},
    "dbscan": {"rows": 0, "clusters": 0, "eps": 0.001, "noise": 0.01},
    "encode": {"rows": 0, "classes": 0, "counts": 0, "back": 0},
    "etl": {"read": 0, "kept": 0, "hours": 0, "mean_fare": 1e-9},
    "forest": {"rows": 0, "accuracy": 0.05},
    "join": {"rows": 0, "sums": 0},
    "kmeans": {"rows": 0, "sizes": 0.005, "centres": 0.01},
    "linear": {"rows": 0, "coefficients": 1e-5, "r2": 1e-6},
    "logistic": {"rows": 0, "coefficients": 0.05, "accuracy": 0.005, "roc_auc": 0.002},
    "minimal": {},
    "naive_bayes": {"documents": 0, "accuracy": 0.005},
    "nearest": {"known": 0, "asked": 0, "r2": 0.001, "mean_distance": 0.001},
    "neighbors": {"known": 0, "asked": 0, "accuracy": 0.005},
    "pca_svd": {"shape": 0, "shares": 0.005, "singular_values": 0.05},
    "pipeline": {"read": 0, "used": 0, "data": 1e-9, "model": 1e-5, "error": 1e-6},
    "preprocess": {"rows": 0, "columns": 0, "scales": 1e-9, "categories": 0},
    "query": {"regions": 0, "best": 0},
    "regularized": {"rows": 0, "r2": 1e-4, "zeros": 0},
    "resume": {"rows": 0, "centres": 1e-6},
    "score": {"rows": 0, "files": 0, "error": 1e-9},
    "search": {"fits": 0, "r2": 0.001},
    "svd": {"shape": 0, "singular_values": 1e-5},
    "to_torch": {"rows": 0, "blocks": 0, "without_copy": 0, "r2": 0.02},
    "xgboost_train": {"rows": 0, "r2": 0.01},
    "zarr_svd": {"shape": 0, "disk_bytes": 0, "singular_values": 0.01},
}
# Examples for --ranks, each with the package that it needs.
RANKS = {"ddp": "torch", "jax_train": "jax"}
