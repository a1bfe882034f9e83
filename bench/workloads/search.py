"""Grid search by cross-validation, with the data moved once and not for every fit.

A copy of all rows, with each row's fold, is laid on every worker; a task fits some candidates on a fold. --compare runs
scikit-learn's GridSearchCV on this host's CPUs, with the same rows and folds. The score is R².
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import joblib
import numpy as np
import pandas as pd
import sklearn.ensemble
import sklearn.linear_model
import sklearn.model_selection

from gallery import backend, datasets, inputs, job, tables, trials
from gallery.job import Job

CPU = {"ridge": "sklearn.linear_model.Ridge", "forest": "sklearn.ensemble.RandomForestRegressor"}
GPU = {"ridge": "cuml.linear_model.Ridge", "forest": "cuml.ensemble.RandomForestRegressor"}
GRID: dict[str, dict[str, list[Any]]] = {
    "ridge": {"alpha": [float(f"{alpha:.3g}") for alpha in np.logspace(-2, 6, 25)]},
    "forest": {"max_depth": [3, 6, 9, 12], "max_features": [0.25, 0.5, 0.75, 1.0]},
}
TREES = 20


def estimator(options: argparse.Namespace, *, on_cpu: bool = False) -> Any:
    """Return what is searched: a fit takes one thread, or one GPU; the seed is the fit's too."""
    gpu = backend.on_gpu() and not on_cpu
    kind = backend.pick(CPU[options.model], CPU[options.model] if on_cpu else GPU[options.model])
    if options.model == "ridge":
        return kind()
    return kind(n_estimators=options.trees, random_state=options.seed, **({"n_streams": 1} if gpu else {}))


def compare(job: Job, rows: trials.Rows, tried: list[trials.Parameters], found: pd.DataFrame) -> dict[str, Any]:
    """Run scikit-learn's own search on this host, on the same rows and folds; return its time and the difference."""
    x, y, fold = (backend.to_numpy(part) for part in rows)
    cpus = len(os.sched_getaffinity(0))
    points = [{name: [value] for name, value in one.items()} for one in tried]
    search = sklearn.model_selection.GridSearchCV(
        estimator(job.options, on_cpu=True), points, cv=trials.splits(fold), n_jobs=cpus, refit=False
    )
    start = time.perf_counter()
    with joblib.parallel_config(backend="threading"):  # shares the rows
        search.fit(x, y)
    seconds = time.perf_counter() - start
    columns = [f"fold{number}_score" for number in range(job.options.folds)]
    theirs = np.array([search.cv_results_[f"split{number}_test_score"] for number in range(job.options.folds)]).T
    return {
        "seconds": seconds, "threads": cpus, "ratio": seconds / job.result["seconds"]["search"],
        "largest_difference": float(np.abs(theirs - found[columns].to_numpy()).max()),
    }  # fmt: skip


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.model != "forest":
        job.leave_out("trees")
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "regression", features=options.features or 20, noise=8.0)
    with job.phase("read"):
        source = inputs.survey(job.client, options.data)
        names, _ = inputs.numeric(source, leave=(options.target,))
        dtype = inputs.float_type(source, [*names, options.target])
        row = (len(names) + 1) * np.dtype(dtype).itemsize + 1
        y: Any
        x, y = tables.arrays(job, source, names, dtype, options.target)
    model, tried = estimator(options), list(sklearn.model_selection.ParameterGrid(GRID[options.model]))
    backend.import_everywhere(job.client, type(model).__module__)
    start = trials.sent(job.client)
    fold = trials.folds(len(x), options.folds, options.seed)
    began = time.perf_counter()
    with trials.placed(job.client, x, y, fold) as rows:
        known["seconds"]["place"] = round(time.perf_counter() - began, 4)
        placed = trials.sent(job.client)
        with job.phase("search"):
            found = trials.run(job.client, rows, model, tried, options.folds)
        known |= {"candidates": len(tried), "fits": len(found), "data_bytes": len(x) * row}
        known |= {"bytes_moved_to_place": trials.moved(start, placed)}
        known |= {"bytes_moved_by_fits": trials.moved(placed, trials.sent(job.client))}
        table = pd.DataFrame(trials.table(tried, found, options.folds))
        best = int(table["mean_score"].argmax())
        known |= {"best": tried[best], "best_score": float(table["mean_score"][best])}
        known |= {"best_std": float(table["std_score"][best]), "fits_by_worker": by_worker(found)}
        with job.phase("refit"):
            job.client.submit(trials.refit, rows, model, tried[best], pure=False).result()
        if options.compare:
            with job.phase("compare"):
                known["scikit_learn"] = theirs = compare(job, rows.result(), tried, table)
                job.note(f"scikit-learn's GridSearchCV took {theirs['seconds']:.2f} s on {theirs['threads']} threads "
                         f"of this host, {theirs['ratio']:.2f} times as long as this search; scores differ by "
                         f"{theirs['largest_difference']:.1g} at most.")  # fmt: skip
    known["fits_per_second"] = len(found) / known["seconds"]["search"]


def by_worker(found: list[trials.Trial]) -> dict[str, int]:
    workers = [trial.worker for trial in found]
    return {name: workers.count(name) for name in sorted(set(workers))}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("search", __doc__, rows=20_000)
    add = parser.add_argument
    add("--target", default="y", help="column to predict, a number (default y)")
    add("--features", type=int, help="features of made data (default 20)")
    add("--model", choices=sorted(CPU), default="ridge", help="what is fitted (default ridge)")
    add("--folds", type=int, default=5, help="parts that rows are divided into, 2 to 255 (default 5)")
    add("--trees", type=int, default=TREES, help=f"of a forest (default {TREES})")
    add("--compare", action="store_true", help="run scikit-learn's GridSearchCV on this host too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("search", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
