"""Score files with a model that another job exported: on any machine, with no GPU, in batches on all workers.

Reads the model's folder (manifest.json and model.skops or model.json), checks that the data has the columns and types
that the model takes, and writes into --out: predictions/ (Parquet: the features, the target if it is there, and
`prediction`, in the input's order), score.png, and result.json, with metrics where the target is there.

    python jobs/workloads/score.py --model out/model --data 'new/*.parquet'       a laptop
    hpcml submit --nodes 4 jobs/workloads/score.py --model /work/ada/model --data /work/ada/new

A row with a missing or infinite value gets no prediction, unless the model takes such values. What transforms instead
of predicting (encoders, PCA) writes its columns in place of `prediction`, and draws no picture.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import sklearn.base
import sklearn.utils

from gallery import backend, charts, inputs, job, memory, models, picture, scores, tables
from gallery.inputs import Source
from gallery.job import Job, RefusedError

DRAWN = 20_000  # rows, about, that the picture shows
COPIES = 3  # of the columns that live at once, per thread: as read, as an array, as written


def check_types(source: Source, features: dict[str, str], times: list[str], numbered: list[str]) -> None:
    """Refuse a column that cannot be what the model takes: text for a number, or a number for text.

    Of ``times`` the model takes the seconds since 1970, which may be given as such or as times. Categories that are
    ``numbered`` may be given as the numbers that they were, or as text.
    """
    for name, wanted in features.items():
        kind = source.types[name]
        number = inputs.is_numeric(kind) or pa.types.is_boolean(kind) or (name in times and pa.types.is_timestamp(kind))
        if number != (np.dtype(wanted).kind in "iufb") and not (number and name in numbered):
            raise RefusedError(f"{source.where}: column {name} is {kind}, the model takes {wanted}. Give it as such.")


def objective(model: Any) -> str:
    """Return what an XGBoost booster was fitted for, as "binary:logistic"; "" for other models."""
    if type(model).__name__ != "Booster":
        return ""
    return str(json.loads(model.save_config())["learner"]["objective"]["name"])


def kind_of(model: Any) -> str:
    """Return "class", "number", "cluster" or "columns": what the model answers."""
    if goal := objective(model):
        return "class" if goal.startswith(("binary:", "multi:")) else "number"
    if sklearn.base.is_classifier(model):
        return "class"
    if sklearn.base.is_regressor(model):
        return "number"
    if hasattr(model, "predict"):
        return "cluster"
    if hasattr(model, "get_feature_names_out"):  # a transformer of features; what numbers a target's labels has none
        return "columns"
    raise RefusedError(f"{type(model).__name__} neither predicts nor makes columns of features: it cannot score rows.")


def takes_missing(model: Any) -> bool:
    if type(model).__module__.startswith("xgboost"):
        return True
    if hasattr(model, "steps"):  # a pipeline takes what its first step takes
        return takes_missing(model.steps[0][1])
    return hasattr(model, "transformers_") or bool(sklearn.utils.get_tags(model).input_tags.allow_nan)


def answer(model: Any, frame: pd.DataFrame) -> Any:
    """Return the model's answer for usable rows: (rows,), or (rows, columns) of a transformer.

    Raises
    ------
    RefusedError
        The model does not take them: a category that it has not met, for example.
    """
    try:
        return answer_of(model, frame)
    except ValueError as error:
        said = inputs.first_line(error)
        raise RefusedError(f"The model does not take these rows: {said}. Repair them, or leave them out.") from error


def answer_of(model: Any, frame: pd.DataFrame) -> Any:
    if goal := objective(model):
        import xgboost

        found = model.predict(xgboost.DMatrix(frame))
        if goal == "binary:logistic":
            return (found > 0.5).astype("int32")
        return found.argmax(axis=1).astype("int32") if found.ndim == 2 else found
    if hasattr(model, "predict"):
        return model.predict(frame)
    found = model.transform(frame)
    return found.toarray() if hasattr(found, "toarray") else np.asarray(found)


def answer_type(model: Any) -> str:
    """Return pandas' type, which can hold a missing value, of the predictions."""
    kind = kind_of(model)
    if kind == "number":
        return "Float64"
    letter = np.asarray(getattr(model, "classes_", [0])).dtype.kind if kind == "class" else "i"
    return {"i": "Int64", "u": "Int64", "f": "Float64", "b": "boolean"}.get(letter, "string")


def score_part(part: Any, model: Any, features: dict[str, str], numbered: list[str]) -> pd.DataFrame:
    """Return a partition with its predictions; runs on a worker."""
    whole = backend.to_numpy(part).reset_index(drop=True)
    numbers = [name for name, wanted in features.items() if np.dtype(wanted).kind in "iufb"]
    times = [name for name in numbers if pd.api.types.is_datetime64_any_dtype(whole[name])]
    given = whole[numbers].assign(**{name: models.seconds(whole[name]) for name in times})
    values = given.to_numpy(dtype="float64", na_value=np.nan)
    usable = np.isfinite(values).all(axis=1)
    if takes_missing(model):
        usable[:] = True
        values = np.where(np.isfinite(values), values, np.nan)
    frame = whole[list(features)].assign(**{name: values[:, place] for place, name in enumerate(numbers)})[usable]
    texts = [name for name in features if name not in numbers]
    # As preprocess.py has them: scikit-learn compares with NaN, and takes no pd.NA, which Arrow's texts have.
    frame = frame.assign(**{name: models.as_category(frame[name], numbered=name in numbered) for name in texts})
    if usable.all() and np.isfinite(values).all():  # whole numbers have no missing value
        frame = frame.astype({name: features[name] for name in numbers})
    if kind_of(model) == "columns":
        names = [str(name) for name in model.get_feature_names_out()]
        found = answer(model, frame) if len(frame) else np.empty((0, len(names)))
        columns = pd.DataFrame(found, index=frame.index, columns=names, dtype="float64").reindex(whole.index)
        return pd.concat([whole.drop(columns=names, errors="ignore"), columns], axis=1)
    told = answer(model, frame) if len(frame) else np.empty(0)
    found = pd.Series(told, index=frame.index).astype(answer_type(model))
    return whole.assign(prediction=found.reindex(whole.index))


def measure(scored: Any, target: str, kind: str) -> dict[str, float]:
    """Return the metrics of the rows that have a prediction and a target."""
    both = scored[[target, "prediction"]].dropna()
    if not len(both):
        return {}
    if kind == "class":
        common = "float64" if pd.api.types.is_numeric_dtype(both[target].dtype) else "string"
        right = both[target].astype(common) == both["prediction"].astype(common)
        return {"accuracy": float(right.mean().compute())}
    numbers = both.astype("float64").to_dask_array(lengths=True)
    return scores.regression(numbers[:, 0], numbers[:, 1])


def thin(part: pd.DataFrame, step: int) -> pd.DataFrame:
    return part.iloc[::step]


def draw(job: Job, rows: pd.DataFrame, target: str, kind: str) -> None:
    """Write score.png: how often which prediction is, and, where the target is there, how it fits."""
    drawn, axes = picture.figure(f"{job.result['rows']:,} rows scored by {job.result['estimator'].rpartition('.')[2]}",
                                 panels=2 if target in rows else 1, height=5.2)  # fmt: skip
    told = rows["prediction"]
    if kind == "number":
        axes[0].hist(told.to_numpy("float64"), bins=80)
        axes[0].set(xlabel="prediction", ylabel="rows of the sample")
    else:
        sizes = told.value_counts()
        charts.bars(axes[0], [str(name) for name in sizes.index], sizes.to_numpy("float64"), "rows of the sample")
    if target in rows and kind == "number":
        charts.predicted(axes[1], rows[target].to_numpy("float64"), told.to_numpy("float64"))
    elif target in rows:
        table = pd.crosstab(rows[target], told)
        labels = sorted({*table.index, *table.columns})
        whole = table.reindex(index=labels, columns=labels, fill_value=0)
        charts.confusion(axes[1], whole.to_numpy("int64"), [str(label) for label in labels])
    picture.save(job, "score.png", drawn)


def work(job: Job) -> None:
    options, known = job.options, job.result
    with job.phase("load"), warnings.catch_warnings(record=True):  # scikit-learn's words on versions; ours are below
        model, manifest = models.load(options.model)
        features, target, kind = manifest["features"], manifest["target"], kind_of(model)
        numbered = manifest.get("numbered", [])
        known |= {"estimator": manifest["estimator"], "metrics_then": manifest["metrics"]}
        for sentence in models.differences(manifest):
            job.note(sentence)
    with job.phase("survey"):
        source = inputs.survey(job.client, options.data, list(features))
        check_types(source, features, manifest.get("times", []), numbered)
        if "prediction" in (*features, target):
            raise RefusedError(f"{source.where}: a column 'prediction' would collide with the result. Rename it.")
        columns = [*features, *([target] if target in source.types and target not in features else [])]
        widest = max(source.group_bytes, source.bytes // len(source.files)) * job.threads
        memory.admit(job, COPIES * widest, "what is worked on at once")
    with job.phase("predict"), tables.reading(source):
        frame = tables.read(source, columns)
        blank = score_part(frame._meta, model, features, numbered)  # noqa: SLF001 - an empty frame of its types
        sent = job.client.scatter(model, hash=False)  # a forest is too large for a graph
        scored = frame.map_partitions(score_part, sent, features, numbered, meta=blank).persist()
        known |= {"files": len(source.files), "rows": len(scored), "partitions": scored.npartitions}
    if not known["rows"]:
        raise RefusedError(f"{source.where} holds no row. Give --data with rows in it.")
    with job.phase("write", last=True):
        tables.write_parquet(job, scored, "predictions")
        if kind != "columns":
            judge(job, scored, target, kind)


def judge(job: Job, scored: Any, target: str, kind: str) -> None:
    """Count what could not be predicted, measure the rest if the target is there, and draw a sample of it."""
    known, given = job.result, target in scored
    known["rows_without_prediction"] = without = int(scored["prediction"].isna().sum().compute())
    if without:
        job.note(f"{without:,} of {known['rows']:,} rows miss a value or hold an infinite one: no prediction.")
    known["metrics"] = measure(scored, target, kind) if given else {}
    shown = scored[["prediction", target] if given else ["prediction"]]
    step = -(-known["rows"] // DRAWN)
    sample = shown.map_partitions(thin, step, meta=shown._meta).compute()  # noqa: SLF001
    draw(job, sample.dropna().reset_index(drop=True), target, kind)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("score", __doc__, rows=None)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the folder that a job exported")
    options = parser.options(arguments)
    if not options.data:
        parser.error("--data is needed: the files to score.")
    return options


def main(arguments: list[str] | None = None) -> int:
    return job.run("score", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
