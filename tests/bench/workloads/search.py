"""Grid and random search by cross-validation on a Dask cluster: data is moved once, not for every fit.

Lays a copy of all rows, with each row's fold, on every worker (on GPUs: in their memory). Then a task carries some
candidates and a fold's number, fits them with scikit-learn on a CPU or cuML on a GPU, and returns scores. Writes into
--out: result.json, candidates.parquet (parameters, mean, deviation and rank, scores by fold), search.png, and model/,
the best candidate fitted on all rows.

    python tests/bench/workloads/search.py --model ridge --compare                  a laptop: made data, a few seconds
    python tests/bench/workloads/search.py --model forest --search random --tries 30 --data 'measured/*.parquet' --target price
    hpcml submit --nodes 4 tests/bench/workloads/search.py --model forest           a cluster: the same script

The rows must fit each worker as a whole; if not, the job says so before it reads. Folds are drawn by global row number
and seed, so partitions and workers make no difference. The same folds are what scikit-learn's GridSearchCV is given by
--compare, which runs it on this host's CPUs and says how long it took and how far its scores are. The score is R².

A run saves the fits that are done every five minutes and at its end: with hpcml submit --until-done it goes on with the
others, and has status 92 meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import joblib
import numpy as np
import pandas as pd
import scipy.stats
import sklearn.ensemble
import sklearn.linear_model
import sklearn.model_selection

from gallery import backend, datasets, inputs, job, models, picture, tables, trials
from gallery.job import Job, RefusedError

CPU = {"ridge": "sklearn.linear_model.Ridge", "forest": "sklearn.ensemble.RandomForestRegressor"}
GPU = {"ridge": "cuml.linear_model.Ridge", "forest": "cuml.ensemble.RandomForestRegressor"}
GRID: dict[str, dict[str, list[Any]]] = {
    "ridge": {"alpha": [float(f"{alpha:.3g}") for alpha in np.logspace(-2, 6, 25)]},
    "forest": {"max_depth": [3, 6, 9, 12], "max_features": [0.25, 0.5, 0.75, 1.0]},
}
RANDOM: dict[str, dict[str, Any]] = {
    "ridge": {"alpha": scipy.stats.loguniform(1e-2, 1e6)},
    "forest": {"max_depth": scipy.stats.randint(3, 13), "max_features": scipy.stats.uniform(0.2, 0.8)},
}
TRIES, TREES = 16, 20
SAVED = "5m"  # how often the trials are saved, in a run


def candidates(options: argparse.Namespace) -> list[trials.Parameters]:
    """Return the parameters to try, as scikit-learn's grid or sampler lists them."""
    if options.search == "grid":
        return list(sklearn.model_selection.ParameterGrid(GRID[options.model]))
    tries, seed = options.tries or TRIES, options.seed
    return list(sklearn.model_selection.ParameterSampler(RANDOM[options.model], tries, random_state=seed))


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
        needed = [*options.columns, options.target] if options.columns else []
        source = inputs.survey(job.client, options.data, needed)
        check_target(source, options.target)
        names, _ = inputs.numeric(source, options.columns, leave=(options.target,))
        dtype = inputs.float_type(source, [*names, options.target])
        row = (len(names) + 1) * np.dtype(dtype).itemsize + 1
        if source.rows is not None:
            trials.admit_whole(job, source.rows * row, source.where)
        y: Any
        x, y = tables.arrays(job, source, names, dtype, options.target)
        if source.rows is None:  # of text only reading tells
            trials.admit_whole(job, len(x) * row, source.where)
        if len(x) < 2 * options.folds:
            few = f"{options.folds} folds need {2 * options.folds} rows, {len(x)} are usable"
            raise RefusedError(f"{source.where}: {few}. Lower --folds.")
        if float(y.max().compute()) == float(y.min().compute()):
            raise RefusedError(f"{source.where}: {options.target} has one value. Give --target another column.")
    model, tried = estimator(options), candidates(options)
    backend.import_everywhere(job.client, type(model).__module__)
    start = trials.sent(job.client)
    fold = trials.folds(len(x), options.folds, options.seed)
    began = time.perf_counter()
    with trials.placed(job.client, x, y, fold) as rows:
        known["seconds"]["place"] = round(time.perf_counter() - began, 4)
        placed = trials.sent(job.client)
        with job.phase("search"):
            found = trials.run(job.client, rows, model, tried, options.folds, resumed(job))
        known |= {"candidates": len(tried), "fits": len(found), "data_bytes": len(x) * row}
        known |= {"bytes_moved_to_place": trials.moved(start, placed)}
        known |= {"bytes_moved_by_fits": trials.moved(placed, trials.sent(job.client))}
        table = pd.DataFrame(trials.table(tried, found, options.folds))
        best = int(table["mean_score"].argmax())
        known |= {"best": tried[best], "best_score": float(table["mean_score"][best])}
        known |= {"best_std": float(table["std_score"][best]), "fits_by_worker": by_worker(found)}
        with job.file("candidates.parquet") as path:
            table.to_parquet(path)
        with job.phase("refit"):
            fitted = job.client.submit(trials.refit, rows, model, tried[best], pure=False).result()
        if options.compare:
            with job.phase("compare"):
                known["scikit_learn"] = theirs = compare(job, rows.result(), tried, table)
                job.note(f"scikit-learn's GridSearchCV took {theirs['seconds']:.2f} s on {theirs['threads']} threads "
                         f"of this host, {theirs['ratio']:.2f} times as long as this search; scores differ by "
                         f"{theirs['largest_difference']:.1g} at most.")  # fmt: skip
    with job.phase("write", last=True):
        scores = {"r2_cross_validated": known["best_score"]}
        models.export(job, fitted, features=dict.fromkeys(names, dtype), target=options.target, metrics=scores)
        draw(job, table, best)
    known["fits_per_second"] = len(found) / known["seconds"]["search"]


def resumed(job: Job) -> dict[tuple[int, int], trials.Trial]:
    """Return the trials of the run's attempts before, and have those that come saved for the next one."""
    done: dict[tuple[int, int], trials.Trial] = {}
    if path := job.saved("trials.json"):
        known = [trials.Trial(*values) for values in json.loads(path.read_text())]
        done |= {(trial.candidate, trial.fold): trial for trial in known}
        job.note(f"{len(done):,} fits were done by an earlier attempt of this run.")
    job.on_stop(lambda: job.save("trials.json", [list(vars(trial).values()) for trial in tuple(done.values())]), SAVED)
    return done


def check_target(source: inputs.Source, target: str) -> None:
    """Refuse a target that is not there or not a number."""
    if target not in source.types:
        raise RefusedError(f"{source.where} has no column {target}. Give --target one of: {', '.join(source.types)}.")
    if not inputs.is_numeric(source.types[target]):
        raise RefusedError(f"{source.where}: {target} is not numeric. Give --target a numeric column.")


def by_worker(found: list[trials.Trial]) -> dict[str, int]:
    workers = [trial.worker for trial in found]
    return {name: workers.count(name) for name in sorted(set(workers))}


def draw(job: Job, table: pd.DataFrame, best: int) -> None:
    """Write the picture: the score by alpha, or by depth and share of the features (a heat map for a grid)."""
    known = job.result
    words = ", ".join(f"{name} {value:.4g}" for name, value in known["best"].items())
    reached = f"R² {known['best_score']:.4f} ± {known['best_std']:.4f}"
    title = f"{known['fits']} fits of {job.options.model}, best: {words}; {reached}"
    drawn, (axes,) = picture.figure(title, height=5)
    if job.options.model == "ridge":
        table = table.sort_values("alpha")
        for number in range(job.options.folds):
            label = "a fold" if number == 0 else None
            axes.plot(table["alpha"], table[f"fold{number}_score"], color="#bbbbbb", linewidth=0.8, label=label)
        axes.errorbar(
            table["alpha"], table["mean_score"], table["std_score"], marker="o", capsize=2, label="mean ± deviation"
        )
        axes.plot(
            known["best"]["alpha"], known["best_score"], "*", color="#D55E00", markersize=16, label="best", zorder=3
        )
        axes.set(xscale="log", xlabel="alpha", ylabel="R² on rows outside the fit")
        axes.legend(frameon=False, loc="lower left")
    elif job.options.search == "grid":
        scores = table.pivot_table(index="max_depth", columns="max_features", values="mean_score")
        image = axes.imshow(scores, origin="lower", aspect="auto", cmap="viridis")
        axes.set_xticks(range(scores.shape[1]), scores.columns)
        axes.set_yticks(range(scores.shape[0]), scores.index)
        axes.set(xlabel="share of the features tried at a split", ylabel="greatest depth")
        axes.grid(visible=False)
        middle = float(scores.to_numpy().min() + scores.to_numpy().max()) / 2
        for (row, column), value in np.ndenumerate(scores.to_numpy()):
            axes.annotate(
                f"{value:.4f}", (column, row), ha="center", va="center", color="white" if value < middle else "black"
            )
        drawn.colorbar(image, label="mean R² on rows outside the fit")
    else:
        image = axes.scatter(table["max_depth"], table["max_features"], c=table["mean_score"], s=90, cmap="viridis")
        axes.scatter(
            *table.loc[best, ["max_depth", "max_features"]],
            s=260,
            facecolors="none",
            edgecolors="#D55E00",
            linewidths=2,
        )
        axes.set(xlabel="greatest depth", ylabel="share of the features tried at a split")
        drawn.colorbar(image, label="mean R² on rows outside the fit")
    picture.save(job, "search.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("search", __doc__, rows=20_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all but the target, if numeric)")
    add("--target", default="y", help="column to predict, a number (default y)")
    parser.add_made("--features", type=job.count, help="features of made data (default 20)")
    add("--model", choices=sorted(CPU), default="ridge", help="what is fitted (default ridge)")
    add("--search", choices=("grid", "random"), default="grid", help="how candidates are chosen (default grid)")
    add("--tries", type=job.count, help=f"candidates of a random search (default {TRIES})")
    folds = job.value(int, "a whole number from 2 to 255", lambda number: 2 <= number <= 255)
    add("--folds", type=folds, default=5, help="parts that rows are divided into, 2 to 255 (default 5)")
    add("--trees", type=job.count, default=TREES, help=f"of a forest (default {TREES})")
    add("--compare", action="store_true", help="run scikit-learn's GridSearchCV on this host too")
    options = parser.options(arguments)
    if options.tries and options.search == "grid":
        parser.error("--tries is of a random search. Leave it out, or give --search random.")
    return options


def main(arguments: list[str] | None = None) -> int:
    return job.run("search", parse(arguments), work, resumes=True)


if __name__ == "__main__":
    raise SystemExit(main())
