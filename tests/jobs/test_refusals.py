"""What each job refuses of data that is in order as files: one sentence, status 2, nothing left."""

from __future__ import annotations

import importlib
import pathlib
import shlex

import numpy as np
import pandas as pd
import pytest

from gallery import backend, memory
from tests.jobs.job_tests import Made, Refused

NAN = np.nan
ROWS = np.random.default_rng(1).normal(size=(30, 25))
FRAMES = {
    "one": {"a": [1.0, 2.0, 3.0], "y": [1, 1, 1]},
    "two": {"a": [1.0, 2.0], "b": [NAN, NAN], "fare": [1.0, None]},
    "few": {"a": [1.0, 2.0], "y": 1.0},
    "same": {"a": [1.0] * 50, "b": 2.0},
    "none": pd.DataFrame({"a": [1.0]}).head(0),
    "named": {"cluster": [1.0, 2.0]},
    "mixed": {"a": np.arange(30.0), "b": 1.0, "y": 1, "half": np.arange(30) / 2, "name": "x", "yes": True},
    "eight": {"a": np.arange(8.0), "y": np.arange(8.0), "same": 1.0, "name": "x"},
    "texts": {"a": [NAN] * 3, "c": list("xyz"), "yes": True, "n": [1, 2, 3]},
    "lists": {"a": [[1.0]] * 40, "fare": 1.0},
    "many": {"a": np.arange(400.0), "y": np.arange(400) % 101},
    "wide": pd.DataFrame(ROWS, columns=[*(f"x{n}" for n in range(24)), "y"]),
}
MADE = {
    "taxi": ("taxi", 2_000, 3, "csv"), "moons": ("moons pairs=2", 3_000), "classes": ("classification features=2", 1_500),
    "numbers": ("regression features=4", 1_500), "trips": ("trips", 900), "six": ("regression features=5 noise=3.0", 600),
}  # fmt: skip
REFUSED = [  # a job, its data, other options, what is said
    ("dbscan", "same", "--columns a", "Give --eps"),
    ("dbscan", "two", "--columns a", "2 usable rows are fewer than --min-samples 10"),
    ("dbscan", "named", "", "'cluster' would collide"),
    ("dbscan", "moons", "--label z", "no column z of true clusters"),
    ("etl", "taxi", "--by z", "has no column z"),
    ("etl", "taxi", "--value payment", "column payment holds no numbers"),
    ("etl", "two", "--by a --value b", "no row of 2 breaks no rule"),
    ("forest", "one", "", "the target is 1 in all rows"),
    ("forest", "numbers", "", "no class labels"),
    ("join", "", "--rows 1_000_000_000_000", "Ask for --nodes"),
    ("kmeans", "one", "--k 4", "4 clusters need 4 rows, 3 are usable. Lower --k"),
    ("kmeans", "none", "", "no usable row"),
    ("kmeans", "same", "--k 2", "50 sampled rows are 1 points. Lower --k to 1."),
    ("kmeans", "one", "--k 2 --elbow 2-9", "--elbow 9 needs more than the sample's 3 points. Lower it."),
    ("kmeans", "mixed", "", "not numeric: name, yes. Give --columns a,b,y,half."),
    ("kmeans", "mixed", "--columns a,name", "not numeric: name. Give --columns a,b,y,half."),
    ("kmeans", "mixed", "--columns a,z", "no column z"),
    ("kmeans", "mixed", "--columns a,a", "A column is named twice"),
    ("kmeans", "named", "", "'cluster' would collide"),
    ("linear", "mixed", "--columns a --what logistic", "the target is 1 in all rows"),
    ("linear", "mixed", "--columns a --what logistic --target half", "no class labels"),
    ("linear", "mixed", "--columns a --target name", "target name is large_string, no number"),
    ("linear", "mixed", "--columns a --target z", "has no column z"),
    ("linear", "few", "--columns a", "leave none for the test"),
    ("linear", "wide", f"--columns {','.join(f'x{n}' for n in range(24))}", "more than 24 rows to train on"),
    ("neighbors", "one", "--target y", "y holds one class"),
    ("neighbors", "one", "", "does not say what to predict"),
    ("neighbors", "classes", "--target z", "has no column z"),
    ("neighbors", "numbers", "", "y holds fractions"),
    ("neighbors", "one", "--what regress --target y --k 3 --queries 1",
     "3 usable rows less 1 held out are not 3 neighbours. Lower --k."),
    ("pipeline", "two", "", "1 rows have a fare; 30 are needed"),
    ("pipeline", "lists", "", "not a number, text or a time"),
    ("pipeline", "trips", "--target borough", "borough is not numeric"),
    ("pipeline", "trips", "--target price", "no column price"),
    ("preprocess", "texts", "--columns n,yes", "neither numbers nor text: yes (bool)"),
    ("preprocess", "texts", "--columns a,c", "no value at all in a"),
    ("preprocess", "texts", "--columns a,c --nulls drop", "no row without gaps, 3 read"),
    ("preprocess", "texts", "--columns c --rare 2", "no category of c is in 2 rows. Lower --rare"),
    ("preprocess", "texts", "--columns z", "has no column z"),
    ("search", "eight", "--columns a", "5 folds need 10 rows, 8 are usable. Lower --folds."),
    ("search", "eight", "--columns a --target same --folds 2", "same has one value"),
    ("search", "six", "--target price", "no column price"),
    ("search", "eight", "--columns a --target name", "name is not numeric"),
    ("xgboost_train", "mixed", "--columns a --task classification", "the target is 1 in all rows; two classes are needed"),
    ("xgboost_train", "mixed", "--columns a --target name", "string, no number"),
    ("xgboost_train", "many", "--task classification", "y has 101 classes; this takes 100 at most"),
    ("xgboost_train", "few", "--columns a", "rows leave none"),
]  # fmt: skip
# Where workers have little memory: their number, bytes of all, and bytes of disk.
SMALL = [
    ("dbscan", "moons", "--eps 5", (2, 400_000, 0), ("with eps 5 needs", "on one worker", "more nodes do not help. Lower --eps")),
    ("dbscan", "moons", "", (2, 300_000, 10**9), ("Lower --eps or give fewer rows",)),  # and no picture of the curve is left
    ("dbscan", "moons", "", (2, 20_000, 10**9), ("needs 141 KiB on one worker, 14.4 times its memory (9.8 KiB)",)),
    ("forest", "classes", "", (4, 80_000, 10**9),
     ("A forest's training data needs 28 KiB on one worker, 1.4 times its memory (20 KiB)",)),
    ("linear", "large", "--what logistic --columns x0,x1", (4, 400_000, 10**9),
     ("on one worker", "more nodes do not help. Give fewer rows")),
    ("search", "six", "", (2, 20_000, 0), ("on one worker",)),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("frames")
    for name, columns in FRAMES.items():
        pd.DataFrame(columns).to_parquet(folder / f"{name}.parquet")
    of_made = {name: made(*how) for name, how in (MADE | {"large": ("classification features=2", 3_000)}).items()}
    return of_made | {path.stem: path for path in folder.iterdir()}


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # Dask's, for an empty column
def test_refusals(subtests: pytest.Subtests, refused: Refused, data: dict[str, pathlib.Path]) -> None:
    for job, name, options, words in REFUSED:
        with subtests.test(job=job, data=name, options=options):
            given = ["--data", data[name]] if name else []
            assert words in refused(importlib.import_module(job), *given, *shlex.split(options))


def test_refusals_where_workers_have_little_memory(
    subtests: pytest.Subtests, refused: Refused, data: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, name, options, (workers, total, room), words in SMALL:
        with subtests.test(job=job, data=name, options=options):
            monkeypatch.setattr(memory, "capacity", lambda _, w=workers, t=total, r=room: memory.Capacity(w, w, t, r))
            said = refused(importlib.import_module(job), "--data", data[name], *shlex.split(options))
            assert not [word for word in words if word not in said], said


def test_a_join_on_gpus_does_not_go_through_the_hosts(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    options = ("--rows", "2000", "--right", "400", "--keys", "300", "--shuffle", "p2p")
    assert "--shuffle p2p goes through the hosts' memory" in refused(importlib.import_module("join"), *options)
