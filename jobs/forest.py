"""Random forest classification, with feature importances and a confusion matrix.

Your own data, in place of the generated rows (numeric features; classes 0, 1, 2 …):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "kind"))
"""

import json
import time

import dask.array as da
import joblib
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score

import hpcml

if hpcml.run.gpus:
    from cuml.dask.ensemble import RandomForestClassifier
    from cupy import asnumpy
else:
    from numpy import asarray as asnumpy
    from sklearn.ensemble import RandomForestClassifier

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
features, classes = make_classification(20_000, 8, n_informative=4, n_classes=3, random_state=0)
x = da.from_array(features.astype("float32"), chunks=(2_500, -1)).to_backend()
y = da.from_array(classes.astype("int32"), chunks=2_500).to_backend()

number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth row is a test row
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

start = time.perf_counter()
model = RandomForestClassifier(n_estimators=60, max_depth=12, random_state=0)
if hpcml.run.gpus:
    model.fit(x_train, y_train)  # all GPUs grow each tree together
    predicted = asnumpy(model.predict(x_test).compute())
else:
    with joblib.parallel_config(backend="dask"):  # each worker grows some of the trees, on a copy of all rows
        model.fit(x_train.compute(), y_train.compute())
    predicted = model.predict(x_test.compute())
true = asnumpy(y_test.compute())
seconds = time.perf_counter() - start

accuracy, weights = float(accuracy_score(true, predicted)), asnumpy(model.feature_importances_)
result = {"rows": len(x), "accuracy": accuracy, "importances": weights.tolist(), "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.barh([f"feature {place}" for place in range(len(weights))], weights)
left.set(xlabel="importance: share of the total gain of all splits")
ConfusionMatrixDisplay.from_predictions(true, predicted, ax=right, cmap="Blues", colorbar=False)
figure.savefig(out / "forest.png", dpi=150)
print(f"accuracy {accuracy:.2%} on {len(true):,} test rows, in {seconds:.1f} s")
print(f"picture: {out / 'forest.png'}")
