"""Gradient-boosted trees with XGBoost on all workers, with early stopping.

Your own data, in place of the generated rows:
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "price"))
During training XGBoost opens ports without access control: see docs/security.md.
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import xgboost.dask
from sklearn.datasets import make_friedman1
from sklearn.metrics import r2_score

import hpcml

PARAMETERS = {"objective": "reg:squarederror", "eval_metric": "rmse", "tree_method": "hist", "max_depth": 6, "eta": 0.2}

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
features, target = make_friedman1(50_000, 8, noise=1.0, random_state=0)
x, y = (da.from_array(part, chunks=(6_250, *part.shape[1:])).to_backend() for part in (features, target))

number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth row is a test row
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

start = time.perf_counter()
fitted = xgboost.dask.DaskQuantileDMatrix(client, x_train, y_train)
tested = xgboost.dask.DaskQuantileDMatrix(client, x_test, y_test, ref=fitted)
parameters = PARAMETERS | {"device": "cuda" if hpcml.run.gpus else "cpu"}
evals = [(fitted, "train"), (tested, "test")]
found = xgboost.dask.train(client, parameters, fitted, 300, evals=evals, early_stopping_rounds=10, verbose_eval=False)
model, history = found["booster"], found["history"]
model = model[: model.best_iteration + 1]
seconds = time.perf_counter() - start

true = y_test.to_backend("numpy").compute()
predicted = xgboost.dask.predict(client, model, xgboost.dask.DaskDMatrix(client, x_test)).compute()  # a NumPy array
gain = {name: float(share) for name, share in model.get_score(importance_type="total_gain").items()}
result = {"rows": len(x), "trees": model.num_boosted_rounds(), "r2": r2_score(true, predicted), "gain": gain}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
model.save_model(out / "model.json")
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.plot(history["train"]["rmse"], label="training rows")
left.plot(history["test"]["rmse"], label="test rows")
left.set(xlabel="trees", ylabel="root mean square error", ylim=(0, None))
left.legend(loc="upper right")
right.barh(list(gain), [share / sum(gain.values()) for share in gain.values()])
right.set(xlabel="share of the gain", ylabel="feature")
figure.savefig(out / "xgboost_train.png", dpi=150)
print(f"R² {result['r2']:.4f} on {len(true):,} test rows, {result['trees']} trees, in {seconds:.1f} s")
print(f"picture: {out / 'xgboost_train.png'}")
