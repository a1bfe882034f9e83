"""A random forest on a Dask cluster, classifier or regressor: grown by all workers, tested, explained, exported.

Reads files (or makes blobs, two per class), trains on four fifths of the rows, tests on the rest, and writes into
--out: result.json, importances.csv, forest.png and model/ (scikit-learn's form, for a machine without a GPU).

    python tests/bench/workloads/forest.py --trees 100                                   a laptop: made data, seconds
    python tests/bench/workloads/forest.py --what regressor --data 'homes/*.parquet' --target price  a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/forest.py --rows 50_000_000 --trees 500           a cluster: the same script

On CPUs each task grows some of the trees by scikit-learn on all training rows, with the seeds that scikit-learn's own
forest of that seed gives these trees; so the forest is the very one that a single machine grows, however many workers
took part. Each worker holds a copy of the training rows. On GPUs cuML (26.08 and later) grows every tree on the rows of
all GPUs together; no GPU holds them all, and splits are searched among --bins values of a feature.
Features are taken as float32, as both libraries' trees do.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd

from gallery import backend, charts, datasets, job, memory, models, picture, scores, supervised
from gallery.inputs import chunks_of
from gallery.job import Job

COPIES_ON_EACH = 3  # of the training rows in a worker that grows trees: its partitions, the whole, a moment of both
FEW = 4  # features
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
    memory.admit_one(job, COPIES_ON_EACH * x.nbytes, "A forest's training data", "Give fewer rows")
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


def importances(model: Any, portable: Any) -> Floats:
    """Return what each feature adds to the splits' purity; cuML's are lost when it turns into scikit-learn's."""
    found: Floats = np.asarray(backend.to_numpy((model if backend.on_gpu() else portable).feature_importances_))
    return found


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
    with job.phase("write", last=True):
        weights = importances(model, portable)
        known["importances"] = dict(zip(data.names, weights.tolist(), strict=True))
        job.write_text(
            "importances.csv", pd.Series(weights, data.names, name="importance").to_csv(index_label="feature")
        )
        draw(job, data, weights, portable, rows, true, said)
        models.export(job, portable, features=dict.fromkeys(data.names, "float32"), target=options.target,
                      metrics=supervised.tested(known["metrics"]))  # fmt: skip


def draw(
    job: Job, data: supervised.Divided, weights: Floats, portable: Any, rows: Floats, true: Floats, said: Floats
) -> None:
    """Write forest.png: the confusion matrix or predictions against the truth; beside it the features' importance.

    Of fewer than FEW features the importance says little; a classifier's picture has its ROC curves then.
    """
    told = "  ".join(f"{name} {value:.4f}" for name, value in job.result["metrics"].items())
    title = f"Random forest of {job.options.trees} trees, {job.result['rows']:,} rows: {told}"
    many, roc = len(data.names) >= FEW, "roc_auc" in job.result["metrics"]
    drawn, panels = picture.figure(title, panels=1 + (many or roc), height=5.2)
    if many:
        charts.bars(panels[0], data.names, weights, "importance: share of the impurity that splits by it remove")
    elif roc:
        supervised.draw_roc(panels[0], portable, data.labels, rows, true)
    if data.labels is None:
        charts.predicted(panels[-1], true, said)
    else:
        charts.confusion(panels[-1], np.array(job.result["confusion"]), [str(label) for label in data.labels])
    picture.save(job, "forest.png", drawn)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("forest", __doc__, rows=50_000)
    add = parser.add_argument
    add("--what", choices=("classifier", "regressor"), default="classifier", help="default classifier")
    add("--target", default="y", help="the column to predict (default y); classifier: whole numbers, one per class")
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all others, if numeric)")
    parser.add_made("--features", type=job.count, help="features of made data (default 2; regressor: 8)")
    add("--trees", type=job.count, default=100, help="default 100")
    add("--depth", type=job.count, help="most levels of a tree (default: until its leaves are pure)")
    add("--leaf", type=job.count, default=1, help="fewest rows of a leaf (default 1)")
    add(
        "--bins",
        type=job.count,
        default=128,
        help="GPUs: values of a feature that a split is chosen from (default 128)",
    )
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("forest", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
