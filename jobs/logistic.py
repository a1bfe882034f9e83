"""Logistic regression of two classes, with ROC curve and AUC.

Your own data, in place of the generated rows (numeric features of similar scale; y is 0 or 1):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "broken"))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score, roc_curve

import hpcml

if hpcml.run.gpus:
    from cuml.dask.linear_model import LogisticRegression
    from cupy import asnumpy

    options = {"penalty": None}  # the newton solver on CPUs has no penalty either
else:
    from dask_ml.linear_model import LogisticRegression
    from numpy import asarray as asnumpy

    options = {"solver": "newton"}  # reads the rows a few times; the default solver reads them hundreds of times

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
features, classes = make_classification(100_000, 6, n_redundant=0, class_sep=0.7, random_state=2)
x, y = (da.from_array(part, chunks=(12_500, *part.shape[1:])).to_backend() for part in (features, classes))

number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth row is a test row
x, y = x.astype("float32"), y.astype("float32")  # cuML needs float32
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

start = time.perf_counter()
model = LogisticRegression(max_iter=100, **options).fit(x_train, y_train)
weights, bias = asnumpy(model.coef_).ravel(), float(np.ravel(asnumpy(model.intercept_))[0])
true = asnumpy(y_test.compute())
chance = 1 / (1 + np.exp(-(x_test.to_backend("numpy").compute() @ weights + bias)))  # probability of class 1
seconds = time.perf_counter() - start

accuracy, area = float(((chance > 0.5) == true).mean()), float(roc_auc_score(true, chance))
result = {"rows": len(x), "coefficients": weights.tolist(), "intercept": bias, "accuracy": accuracy, "roc_auc": area}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.hist([chance[true == 0], chance[true == 1]], bins=40, stacked=True, label=["truly class 0", "truly class 1"])
left.set(xlabel="predicted probability of class 1", ylabel="rows")
left.legend(loc="upper right")
false_positive, true_positive, _ = roc_curve(true, chance)
right.plot(false_positive, true_positive)
right.set(xlabel="false positive rate", ylabel="true positive rate", title=f"area under the curve {area:.3f}")
figure.savefig(out / "logistic.png", dpi=150)
print(f"accuracy {accuracy:.2%} on {len(true):,} test rows, in {seconds:.1f} s")
print(f"picture: {out / 'logistic.png'}")
