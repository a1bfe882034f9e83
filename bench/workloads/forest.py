"""Random forest, classifier or regressor, grown by all workers.

On CPUs each task grows some of the trees by scikit-learn on all training rows, with the seeds that a single machine's
forest gives them. On GPUs cuML grows every tree on the rows of all GPUs together. Features are float32.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import numpy as np
import numpy.typing as npt

from gallery import backend, datasets, job, models, scores, supervised
from gallery.inputs import chunks_of
from gallery.job import Job

MAX_SEED = np.iinfo(np.int32).max  # scikit-learn draws its trees' seeds below this
Floats = npt.NDArray[np.floating[Any]]


def estimator(options: argparse.Namespace) -> Any:
    """Choose the class by what arrays are made of, and spell out where the libraries' defaults differ."""
    name = "RandomForestClassifier" if options.what == "classifier" else "RandomForestRegressor"
    chosen = backend.pick(f"sklearn.ensemble.{name}", f"cuml.dask.ensemble.{name}")
    bins = {"n_bins": options.bins} if backend.on_gpu() else {}
    return chosen(
        n_estimators=options.trees, max_depth=options.depth, min_samples_leaf=options.leaf, random_state=options.seed,
        max_features="sqrt" if options.what == "classifier" else 1.0, **bins,
    )  # fmt: skip


def fit(job: Job, model: Any, x: Any, y: Any) -> Any:
    """Fit and return the model: cuML's on all GPUs at once, scikit-learn's by a task for some trees each."""
    if backend.on_gpu():
        return model.fit(x, y)
    rows, target = (dask.delayed(np.concatenate)(list(part.to_delayed().ravel())) for part in (x, y))
    parts = min(job.options.trees, 4 * job.threads)  # several for each thread, as trees differ in size
    grown = [
        dask.delayed(_grow)(model, start, stop, rows, target) for start, stop in chunks_of(job.options.trees, parts)
    ]
    first, *others = dask.compute(*grown)
    for other in others:
        first.estimators_ += other.estimators_
    return first.set_params(n_estimators=len(first.estimators_), random_state=job.options.seed)


def _grow(model: Any, start: int, stop: int, rows: Any, target: Any) -> Any:
    """Return trees start … stop-1 of the forest; earlier seeds are skipped, as by scikit-learn's warm start."""
    seeds = np.random.RandomState(model.random_state)
    seeds.randint(MAX_SEED, size=start)
    return model.__class__(**{**model.get_params(), "n_estimators": stop - start, "random_state": seeds}).fit(
        rows, target
    )


def work(job: Job) -> None:
    options, known = job.options, job.result
    classifier = options.what == "classifier"
    if not backend.on_gpu():
        job.leave_out("bins")
    if options.data is None:
        with job.phase("generate"):
            kind = "classification" if classifier else "regression"
            options.data = datasets.made(job, kind, features=options.features or (2 if classifier else 8))
    with job.phase("read"):
        data = supervised.read(job, labelled=classifier, dtype="float32")
        target_type = "int32" if classifier else "float32"
        y_train, y_test = data.y_train.astype(target_type), data.y_test.astype(target_type)
    with job.phase("fit"):
        model = estimator(options)
        backend.import_everywhere(job.client, type(model).__module__)
        model = fit(job, model, data.x_train, y_train)
    with job.phase("test"):
        portable = models.to_portable(model)
        told = models.predict(model, data.x_test).persist()
        rows, true, said = supervised.sampled(job, data.x_test, y_test, told)
        known["portable_agrees"] = supervised.agreement(portable, rows, said)
        if data.labels is None:
            known["metrics"] = scores.regression(y_test, told)
        else:
            table = scores.confusion(y_test, told, data.labels)
            known["confusion"] = table.tolist()
            known["metrics"] = {
                "accuracy": scores.accuracy(table),
                **supervised.roc_auc(portable, data.labels, rows, true),
            }
        sizes = [tree.tree_ for tree in portable.estimators_]
        known |= {"leaves_per_tree": float(np.mean([tree.n_leaves for tree in sizes])),
                  "deepest": max(tree.max_depth for tree in sizes)}  # fmt: skip


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("forest", __doc__, rows=50_000)
    add = parser.add_argument
    add("--what", choices=("classifier", "regressor"), default="classifier", help="default classifier")
    add("--target", default="y", help="the column to predict (default y); classifier: whole numbers, one per class")
    add("--features", type=int, help="features of made data (default 2; regressor: 8)")
    add("--trees", type=int, default=100, help="default 100")
    add("--depth", type=int, help="most levels of a tree (default: until its leaves are pure)")
    add("--leaf", type=int, default=1, help="fewest rows of a leaf (default 1)")
    add(
        "--bins",
        type=int,
        default=128,
        help="GPUs: values of a feature that a split is chosen from (default 128)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("forest", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
