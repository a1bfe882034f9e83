"""A whole pipeline from a raw table to a tested model, in the six steps of CRISP-DM.

1. Business understanding: what is to be predicted, and which error is small enough. Here: fares, within 2 dollars.
Your own data: set trips = dd.read_parquet("trips/*.parquet"), and change features(…) for your columns.
"""

import json
import time

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml

if hpcml.run.gpus:
    from cuml.dask.linear_model import LinearRegression
    from cupy import asnumpy
else:
    from dask_ml.linear_model import LinearRegression
    from numpy import asarray as asnumpy

NAMES, EXACT = ["miles", "night", "airport"], {} if hpcml.run.gpus else {"solver": "newton"}


ENOUGH = 2.0  # dollars


def features(part):  # returns numeric columns, the target last; part is a pandas or cuDF partition
    night = ((part["hour"] < 6) | (part["hour"] > 21)).astype("float64")
    airport = (part["zone"] == "airport").astype("float64")
    return part.assign(night=night, airport=airport)[[*NAMES, "fare"]]


client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs, pandas tables on CPUs
rng, rows = np.random.default_rng(0), 100_000
made = pd.DataFrame({"miles": rng.gamma(2, 2, rows), "hour": rng.integers(0, 24, rows)})
made["zone"] = rng.choice(["centre", "suburb", "airport"], rows)
made["fare"] = 3 + 2.5 * made["miles"] + 8 * (made["zone"] == "airport") + rng.normal(0, 1, rows)
trips = dd.from_pandas(made.mask(rng.random(made.shape) < 0.01), npartitions=8).to_backend()  # with missing values

start = time.perf_counter()
# 2. Data understanding: how many values are missing, and how the numbers are distributed.
data = {name: {"missing": trips[name].isna().sum()} for name in trips.columns}
for name in ("miles", "hour", "fare"):
    data[name] |= {"mean": trips[name].mean(), "deviation": trips[name].std()}
data = {name: {key: float(fact) for key, fact in facts.items()} for name, facts in dask.compute(data)[0].items()}
# 3. Data preparation: drop incomplete rows, make features, keep every fifth row for the test.
both = trips.dropna().map_partitions(features).to_dask_array(lengths=True).persist()
number = np.arange(len(both))
train, test = (both[number[place]].persist() for place in (number % 5 > 0, number % 5 == 0))
# 4. Modeling
model = LinearRegression(**EXACT).fit(train[:, :-1], train[:, -1])
# 5. Evaluation: the error on rows that the model has not seen, beside that of the simplest guess.
true, predicted = (asnumpy(part) for part in dask.compute(test[:, -1], model.predict(test[:, :-1])))
error, guess = (float(np.sqrt(np.mean((true - told) ** 2))) for told in (predicted, true.mean()))
# 6. Deployment: a model as JSON, which needs no library. score.py predicts with a model for many files.
kept = {"intercept": float(model.intercept_)} | dict(zip(NAMES, asnumpy(model.coef_).tolist(), strict=True))
seconds = time.perf_counter() - start

out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
result = {"read": len(trips), "used": len(both), "model": kept, "error": error, "error_of_the_mean": guess}
result |= {"data": data, "good_enough": error <= ENOUGH}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, axes = plt.subplots(layout="constrained")
axes.hist([true - true.mean(), true - predicted], bins=80, histtype="step", label=["mean as prediction", "model"])
axes.set(xlabel="error, dollars", ylabel="test rows")
axes.legend(loc="upper right")
figure.savefig(out / "pipeline.png", dpi=150)
print(f"error {error:.2f} dollars (mean as prediction: {guess:.2f}); {len(both):,} rows in {seconds:.1f} s")
print(f"picture: {out / 'pipeline.png'}")
