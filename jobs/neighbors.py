"""K-nearest-neighbours classification.

Your own data, in place of the generated rows (numeric features of similar scale; classes 0, 1, 2 …):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "kind"))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score

import hpcml

k = 15
client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
if hpcml.run.gpus:
    from cuml.dask.neighbors import KNeighborsClassifier
    from cupy import asnumpy

    model = KNeighborsClassifier(n_neighbors=k)  # cuML divides the training rows (known) among the GPUs
else:
    from dask_ml.wrappers import ParallelPostFit
    from numpy import asarray as asnumpy
    from sklearn.neighbors import KNeighborsClassifier

    model = ParallelPostFit(KNeighborsClassifier(n_neighbors=k))  # Dask divides the test rows (asked)

features, classes = make_blobs(50_000, 2, centers=6, cluster_std=1.3, random_state=8)
x = da.from_array(features, chunks=(6_250, -1)).to_backend()
y = da.from_array(classes.astype("int32"), chunks=6_250).to_backend()

number = np.arange(len(x))
known, asked = number[number % 5 > 0], number[number % 5 == 0]
x_known, y_known, x_asked, y_asked = (part.persist() for part in (x[known], y[known], x[asked], y[asked]))

start = time.perf_counter()
model.fit(x_known, y_known)
predicted, true = asnumpy(model.predict(x_asked).compute()).ravel(), asnumpy(y_asked.compute())
seconds = time.perf_counter() - start

accuracy = float(accuracy_score(true, predicted))
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "predicted.npy", predicted)
result = {"known": len(known), "asked": len(asked), "k": k, "accuracy": accuracy, "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
points = x_asked.to_backend("numpy").compute()
left.scatter(points[:, 0], points[:, 1], c=predicted, cmap="tab10", s=4)
left.set(xlabel="feature 0", ylabel="feature 1", title="predicted classes")
ConfusionMatrixDisplay.from_predictions(true, predicted, ax=right, cmap="Blues", colorbar=False)
figure.savefig(out / "neighbors.png", dpi=150)
print(f"accuracy {accuracy:.2%} on {len(asked):,} test rows with {k} neighbours, in {seconds:.1f} s")
print(f"picture: {out / 'neighbors.png'}")
