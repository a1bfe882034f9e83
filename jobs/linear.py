"""Linear regression by least squares, with its coefficients and R².

Your own data, in place of the generated rows (numeric features; x and y have the same number of rows):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "price"))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_regression
from sklearn.metrics import r2_score

import hpcml

if hpcml.run.gpus:
    from cuml.dask.linear_model import LinearRegression
    from cupy import asnumpy

    options, lazy = {}, {"delayed": True}  # with False, cuML's predict computes at once and keeps what it predicts
else:
    from dask_ml.linear_model import LinearRegression
    from numpy import asarray as asnumpy

    options, lazy = {"solver": "newton"}, {}  # exact and without a penalty, like cuML

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
features, target = make_regression(100_000, 8, n_informative=5, noise=20, random_state=0)
x, y = (da.from_array(part, chunks=(12_500, *part.shape[1:])).to_backend() for part in (features, target))

number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth row is a test row
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

start = time.perf_counter()
model = LinearRegression(**options).fit(x_train, y_train)
predicted = model.predict(x_test, **lazy)  # a Dask array: nothing is predicted until .compute() or .persist()
predicted, true = asnumpy(predicted.compute()), asnumpy(y_test.compute())
seconds = time.perf_counter() - start

coefficients = asnumpy(model.coef_)
result = {"rows": len(x), "coefficients": coefficients.tolist(), "intercept": float(model.intercept_)}
result |= {"r2": r2_score(true, predicted), "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.barh([f"feature {place}" for place in range(len(coefficients))], coefficients)
left.set(xlabel="coefficient: change of the target if the feature increases by 1")
right.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1)
right.axline((0, 0), slope=1, color="black", linewidth=1)
right.set(xlabel="true", ylabel="predicted", title=f"R² {result['r2']:.4f} on {len(true):,} test rows")
figure.savefig(out / "linear.png", dpi=150)
print(f"R² {result['r2']:.4f} on {len(true):,} test rows, in {seconds:.1f} s")
print(f"picture: {out / 'linear.png'}")
