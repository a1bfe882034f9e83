"""Hyperparameter search: a grid with cross-validation, one task per fit.

Your own data, in place of the generated rows (all rows must fit into each worker). Change the model and GRID too:
    import pandas as pd
    table = pd.read_parquet("measured.parquet")
    x, y = table[["width", "height"]].to_numpy(), table["price"].to_numpy()
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_regression
from sklearn.model_selection import KFold

import hpcml

if hpcml.run.gpus:
    from cuml.linear_model import Ridge
    from cupy import asarray
else:
    from numpy import asarray
    from sklearn.linear_model import Ridge

GRID, FOLDS = np.logspace(0, 4, 17).tolist(), 5


def place(x, y):  # runs on a worker: on GPUs, all fits use this copy in GPU memory
    return asarray(x), asarray(y)


def score(rows, alpha, fold):  # runs on a worker: fits without one fold, returns R² on this fold
    x, y = rows
    fit, test = map(asarray, list(KFold(FOLDS, shuffle=True, random_state=0).split(range(len(y))))[fold])
    return float(Ridge(alpha=alpha).fit(x[fit], y[fit]).score(x[test], y[test]))


client = hpcml.connect()
x, y = make_regression(600, 100, n_informative=20, noise=200, random_state=0)

start = time.perf_counter()
rows = client.submit(place, x, y)
client.replicate(rows)  # moves the rows once to each worker; to move them for each fit takes longer than the fit
tasks = [client.submit(score, rows, alpha, fold) for alpha in GRID for fold in range(FOLDS)]
scores = np.reshape(client.gather(tasks), (len(GRID), FOLDS))
best = int(scores.mean(axis=1).argmax())
model = Ridge(alpha=GRID[best]).fit(asarray(x), asarray(y))
seconds = time.perf_counter() - start

result = {"fits": scores.size, "alpha": GRID, "r2": scores.mean(axis=1).tolist(), "seconds": seconds}
result |= {"best_alpha": GRID[best], "best_r2": float(scores[best].mean())}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, axes = plt.subplots(layout="constrained")
axes.plot(GRID, scores, color="lightgrey", label=["one fold", *[None] * (FOLDS - 1)])
axes.plot(GRID, result["r2"], marker="o", label="mean of the folds")
axes.axvline(GRID[best], color="black", linestyle="--", label=f"best alpha: {GRID[best]:.3g}")
axes.set(xscale="log", xlabel="alpha", ylabel="R² on the test fold")
axes.legend(loc="upper right")
figure.savefig(out / "search.png", dpi=150)
print(f"best of {len(GRID)}: alpha {GRID[best]:.3g}, R² {result['best_r2']:.4f}; {scores.size} fits in {seconds:.1f} s")
print(f"picture: {out / 'search.png'}")
