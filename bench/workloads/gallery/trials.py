"""Try an estimator's parameters by cross-validation on all workers, without moving data for any fit.

A copy of the rows is laid on every worker once, with each row's fold. From then on a task carries some candidates'
parameters and the number of a fold, and returns their scores. The copies are futures: a worker that joins late, or in
place of one that was lost, fetches its copy from another worker; if all copies are lost, Dask makes them again from the
files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import sklearn.base
import sklearn.model_selection
from distributed import Future, as_completed, get_worker, wait

from gallery import backend, models, tables

Parameters = dict[str, Any]
Rows = tuple[Any, Any, Any]  # features, target, and the fold in which each row is tested (NumPy): a worker's copy
TASKS = 8  # for each thread, where there are so many candidates: tasks differ in length


@dataclass(frozen=True)
class Trial:
    """What a task returns: a candidate's score on a fold that it was not fitted on."""

    candidate: int
    fold: int
    score: float
    seconds: float
    worker: str


def folds(rows: int, k: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return each row's fold, 0 … k-1, by global row number and seed: scikit-learn's shuffled ``KFold``."""
    found = np.empty(rows, dtype=np.uint8)
    splits = sklearn.model_selection.KFold(k, shuffle=True, random_state=seed).split(found)
    for number, (_, test) in enumerate(splits):
        found[test] = number
    return found


def splits(fold: npt.NDArray[np.uint8]) -> list[tuple[Any, Any]]:
    """Return the same folds as scikit-learn's ``cv=`` takes them: pairs of row numbers to fit on and to test on."""
    return [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(int(fold.max()) + 1)]


def assemble(x: Any, y: Any, fold: npt.NDArray[np.uint8]) -> Rows:
    """Lay rows out for fits: contiguous, of the array library that the blocks are of."""
    return tables.by_rows(x), tables.by_rows(y), fold


@contextlib.contextmanager
def placed(client: Any, x: Any, y: Any, fold: npt.NDArray[np.uint8]) -> Iterator[Future]:
    """Lay a copy of the rows on every worker, keep them there, and let them go at the end.

    Parameters
    ----------
    x, y
        Dask arrays, chunked by rows; they are joined on one worker, and workers hand the copies on.
    """
    whole = dask.delayed(assemble)(x.rechunk(-1), y.rechunk(-1), fold)
    memory_manager = client.amm.running()
    client.amm.stop()  # it takes away copies that no waiting task needs
    rows = client.compute(whole)
    try:
        wait(rows)
        client.replicate(rows)
        yield rows
    finally:
        rows.release()
        if memory_manager:
            client.amm.start()


def fit(estimator: Any, parameters: Parameters, x: Any, y: Any) -> Any:
    """Return a copy of the estimator with these parameters, fitted; it runs where the rows lie."""
    return sklearn.base.clone(estimator).set_params(**parameters).fit(x, y)


def refit(rows: Rows, estimator: Any, parameters: Parameters) -> Any:
    """Return the estimator fitted on all rows, in a form that leaves the worker: scikit-learn's."""
    return models.to_portable(fit(estimator, parameters, *rows[:2]))


def score(rows: Rows, estimator: Any, candidates: dict[int, Parameters], fold: int) -> list[Trial]:
    """Fit candidates, by their numbers, outside a fold and score them on it, as scikit-learn's ``GridSearchCV`` does.

    A task of the search. The fold's rows are taken out once for all its candidates.
    """
    x, y, folds = rows
    known, new = (np.asarray(np.flatnonzero(part), like=x) for part in (folds != fold, folds == fold))
    given, asked = (x[known], y[known]), (x[new], y[new])
    found, worker = [], get_worker().address
    for number, parameters in candidates.items():
        start = time.perf_counter()
        reached = r2(fit(estimator, parameters, *given), *asked)
        found.append(Trial(number, fold, reached, time.perf_counter() - start, worker))
    return found


def r2(model: Any, x: Any, y: Any) -> float:
    """Return R² of a fitted model; on a GPU by products of vectors: cuML's own compiles a dozen kernels at first."""
    if backend.library(y) == "cupy":
        off, spread = y - model.predict(x).ravel(), y - float(y.sum()) / len(y)
        if total := float(spread @ spread):
            return 1.0 - float(off @ off) / total
    return float(model.score(x, y))


def groups(candidates: Sequence[Parameters], k: int, threads: int) -> list[dict[int, Parameters]]:
    """Divide candidates, with their numbers, into as few groups as keep all threads busy to the end.

    Neighbours in a grid take about as long, so they go to different groups.
    """
    count = min(len(candidates), -(-TASKS * threads // k))
    numbered = list(enumerate(candidates))
    return [dict(numbered[first::count]) for first in range(count)]


def run(client: Any, rows: Future, estimator: Any, candidates: Sequence[Parameters], k: int) -> list[Trial]:
    """Score all candidates on all folds wherever a thread is free; return the trials by candidate, then by fold."""
    threads = sum(client.nthreads().values())
    divided = [(group, fold) for group in groups(candidates, k, threads) for fold in range(k)]
    tasks = [client.submit(score, rows, estimator, group, fold, pure=False) for group, fold in divided]
    found = [trial for _, some in as_completed(tasks, with_results=True) for trial in some]
    return sorted(found, key=lambda trial: (trial.candidate, trial.fold))


def table(candidates: Sequence[Parameters], trials: Sequence[Trial], k: int) -> dict[str, Any]:
    """Return the columns of the result: a row per candidate with its parameters, scores, mean, deviation and rank."""
    scores = np.array([trial.score for trial in trials]).reshape(len(candidates), k)
    seconds = np.array([trial.seconds for trial in trials]).reshape(len(candidates), k)
    mean = scores.mean(axis=1)
    columns: dict[str, Any] = {name: [one[name] for one in candidates] for name in candidates[0]}
    rank = 1 + (mean[None] > mean[:, None]).sum(axis=1)
    columns |= {"mean_score": mean, "std_score": scores.std(axis=1), "rank": rank}
    columns |= {f"fold{fold}_score": scores[:, fold] for fold in range(k)}
    return columns | {"fit_seconds": seconds.sum(axis=1)}


def sent(client: Any) -> dict[str, int]:
    """Return the bytes of data that each worker has sent to others and to this process since it started."""
    found: dict[str, int] = client.run(_sent)
    return found


def moved(before: dict[str, int], after: dict[str, int]) -> int:
    """Return the bytes sent between two answers of :func:`sent`, by the workers that are there at the end."""
    return sum(total - before.get(worker, 0) for worker, total in after.items())


def _sent(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)
