"""Ridge, Lasso and elastic net: linear regression that keeps coefficients small, or sets them to zero.

Your own data, in place of the generated rows (numeric features of similar scale; x and y have as many rows):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "price"))
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_regression
from sklearn.linear_model import Ridge  # cuml.dask's returned NaN on one H200 (cuML 26.10)
from sklearn.metrics import r2_score

import hpcml

if hpcml.run.gpus:
    from cuml.dask.linear_model import ElasticNet, Lasso
    from cupy import asnumpy
else:
    from numpy import asarray as asnumpy
    from sklearn.linear_model import ElasticNet, Lasso


def fit(model, x, y):  # returns coefficients and intercept
    if hpcml.run.gpus and model is not MODELS["Ridge"]:
        model = model.fit(x, y)
        model = vars(model).get("solver", model)  # of cuML's Lasso and ElasticNet the coefficients are there
        return asnumpy(model.coef_), float(model.intercept_)
    means = x.mean(axis=0), y.mean()
    both = da.concatenate([x - means[0], (y - means[1])[:, None]], axis=1).rechunk({1: -1})
    small, *means = map(asnumpy, dask.compute(da.linalg.qr(both)[1], *means))  # a triangle, as good as all rows
    small = small if model is MODELS["Ridge"] else small * (len(small) / len(x)) ** 0.5  # others: mean, not sum
    coefficients = model.set_params(fit_intercept=False).fit(small[:, :-1], small[:, -1]).coef_
    return coefficients, float(means[1] - means[0] @ coefficients)


client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
features, target = make_regression(50_000, 20, n_informative=5, noise=50, random_state=0)
x, y = (da.from_array(part, chunks=(6_250, *part.shape[1:])).to_backend() for part in (features, target))
number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth row is a test row
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

EXACT = {"tol": 1e-6, "max_iter": 10_000}  # cuML's Lasso has elastic net's l1_ratio: 1 is Lasso's penalty
MODELS = {"Ridge": Ridge(alpha=1000.0), "ElasticNet": ElasticNet(alpha=1.0, l1_ratio=0.9, **EXACT)}
MODELS["Lasso"] = Lasso(alpha=5.0, **EXACT, **({"l1_ratio": 1.0} if hpcml.run.gpus else {}))  # cuML's need a client
start = time.perf_counter()
fitted = {name: fit(model, x_train, y_train) for name, model in MODELS.items()}
seconds = time.perf_counter() - start
asked, true = (part.to_backend("numpy").compute() for part in (x_test, y_test))
r2 = {name: r2_score(true, asked @ coefficients + intercept) for name, (coefficients, intercept) in fitted.items()}

result = {"rows": len(x), "r2": r2, "coefficients": {name: found[0].tolist() for name, found in fitted.items()}}
result |= {"zeros": {name: int((abs(found[0]) < 1e-3).sum()) for name, found in fitted.items()}, "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result, indent=1))
figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
for place, (name, (coefficients, _)) in enumerate(fitted.items()):
    axes.bar(np.arange(len(coefficients)) + 0.27 * (place - 1), coefficients, width=0.25, label=name)
axes.set(xlabel="feature", ylabel="coefficient")
axes.legend()
figure.savefig(out / "regularized.png", dpi=150)
print(", ".join(f"{name} R² {r2[name]:.4f}, {result['zeros'][name]} zeros" for name in MODELS) + f"; {seconds:.1f} s")
print(f"picture: {out / 'regularized.png'}")
