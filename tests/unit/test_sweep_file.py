"""A sweep file as Weights & Biases writes it: which points it gives, and what is refused with its line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError
from hpcml.sweeps import points
from hpcml.sweeps.points import Request

GRID = """\
program: train.py
method: grid
metric:
  name: val_loss
  goal: maximize
parameters:
  optimizer:
    values: [adam, "8", 1e-3, 0.10, true]
  epochs: {value: 5}
  layers: {min: 1, max: 2}
"""
RANDOM = """\
method: random
run_cap: 40
parameters:
  lr: {distribution: log_uniform_values, min: 1e-5, max: 0.1}
  dropout: {min: 0.0, max: 0.5}
  batch: {distribution: q_uniform, min: 32, max: 128, q: 32}
  width: {distribution: int_uniform, min: 3, max: 5}
  shift: {distribution: normal, mu: 100, sigma: 0.5}
  kind: {values: [a, b]}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return path


def test_a_grid(tmp_path: Path) -> None:
    request = Request(files=[written(tmp_path, GRID)], grids=["s=1"])
    found = points.points(request)
    assert len(found) == 10
    assert [(value.name, value.text, value.typed) for value in found[0]] == [
        ("s", "1", 1), ("optimizer", "adam", "adam"), ("epochs", "5", 5), ("layers", "1", 1),
    ]  # fmt: skip
    # a text in quotes stays one; YAML 1.1 reads 1e-3 as a text, which is no surprise here
    assert [point[1].typed for point in found[::2]] == ["adam", "8", 0.001, 0.1, True]
    assert points.metric_of_files(request) == ("val_loss", True)


def test_random_draws(tmp_path: Path) -> None:
    path = written(tmp_path, RANDOM)
    found = [{value.name: value.typed for value in point} for point in points.points(Request(files=[path]))]
    assert len(found) == 40
    assert all(1e-5 <= float(row["lr"]) <= 0.1 and 0 <= float(row["dropout"]) <= 0.5 for row in found)
    assert {row["batch"] for row in found} == {32.0, 64.0, 96.0, 128.0}
    assert {row["width"] for row in found} == {3, 4, 5}
    assert all(95 < float(row["shift"]) < 105 for row in found)
    few = points.points(Request(files=[path], randoms=[["5"]]))
    assert [{value.name: value.typed for value in point} for point in few] == found[:5]


P = "method: grid\nparameters:\n"
WRONG = [
    ("", "The file holds no points"),
    ("a: [1\n", "Line 2 is no YAML"),
    ("[" * 1_000, "The file is no YAML"),
    ("- 1\n", "Line 1 has no table for the file"),
    ("parameters: {k: {value: 1}}\n", "Line 1 begins a file without 'method'"),
    ("method: bayes\nparameters: {}\n", "Line 1 asks for the method 'bayes', which is not supported"),
    ("method: grid\nearly_terminate: {type: hyperband}\n", "Line 2 has 'early_terminate', which is not supported"),
    (f"{P}  k: {{values: []}}\n", "Line 3 has no list of values for 'k'"),
    (f"{P}  k: {{values: [1, null]}}\n", "Line 3 has a value of 'k' that is no number and no text"),
    (f"{P}  k:\n    values:\n    - [1]\n", "Line 5 has a value of 'k' that is no number and no text"),
    (f"{P}  k: {{value: !!python/name:os.system }}\n", "Line 3 has a value of 'k' that is no number and no text"),
    (f"{P}  k: {{value: 1}}\n  k: {{value: 2}}\n", "Line 4 gives 'k' twice"),
    (f"{P}  k: {{distribution: beta, a: 1}}\n", "Line 3 has the distribution 'beta', which is not supported"),
    (f"{P}  k: {{min: 0.1, max: 1}}\n", "Line 3 has a uniform parameter, of which a grid cannot take every value"),
    (f"{P}  k: {{values: [1], probabilities: [1]}}\n", "Line 3 has 'probabilities', which a categorical parameter"),
    (f"{P}  k: {{parameters: {{a: {{value: 1}}}}}}\n", "Line 3 has parameters in the parameter 'k'"),
    (f"{P}  k: {{min: 1}}\n", "Line 3 does not say what the values of 'k' are"),
    (f"{P}  k: {{min: 1, max: 100000000000}}\n", "The sweep would have 100,000,000,000 points"),
    (f"{P}  k: {{distribution: int_uniform, min: x, max: 2}}\n", "Line 3 has no number for min"),
    (f"{P}  k: {{distribution: log_uniform_values, min: 0, max: 2}}\n", "Line 3 has a min for 'k' that is not above 0"),
    (f"{P}  k: {{value: 1}}\nmetric: {{name: x, target: 3}}\n", "Line 4 has 'target', which is not supported"),
    ("method: random\nparameters: {k: {value: 1}}\n", "The file does not say how many points to draw"),
    (f"{P}  a b: {{value: 1}}\n", "'a b' cannot be a name"),
]  # fmt: skip


def test_what_is_refused(tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, sentence in WRONG:
        path = written(tmp_path, text)
        with subtests.test(sentence=sentence), pytest.raises(HpcmlError) as raised:
            points.points(Request(files=[path]))
        assert raised.value.message.startswith(sentence)
        assert str(path) in raised.value.place or "points" in sentence
        assert raised.value.hint
    with pytest.raises(HpcmlError, match="--random is for a file with method: random"):
        points.points(Request(files=[written(tmp_path, GRID)], randoms=[["5"]]))
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(HpcmlError, match="needs PyYAML"):
        points.points(Request(files=[path]))
