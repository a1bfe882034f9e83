"""Multinomial naive Bayes: document classification by word counts.

Your own data, in place of the generated counts (one row per document, one column per word; classes 0, 1, 2 …):
    import dask.dataframe as dd
    table = dd.read_parquet("counts/*.parquet").persist()
    y, x = (part.to_dask_array(lengths=True) for part in (table["class"], table.drop(columns="class")))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score

import hpcml

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
if hpcml.run.gpus:
    from cuml.dask.naive_bayes import MultinomialNB
    from cupy import asnumpy

    model = MultinomialNB(alpha=1.0)
else:
    from dask_ml.wrappers import Incremental
    from numpy import asarray as asnumpy
    from sklearn.naive_bayes import MultinomialNB

    model = Incremental(MultinomialNB(alpha=1.0))  # fits block after block: the result is the same

rng, classes, words = np.random.default_rng(0), np.arange(6, dtype="int32"), 100
frequencies = rng.gamma(0.5, size=(len(classes), words)) + 0.3
about = rng.integers(0, len(classes), 8_000).astype("int32")
counts = rng.poisson(15 * frequencies[about] / frequencies[about].sum(axis=1, keepdims=True))
x = da.from_array(counts.astype("float64"), chunks=(1_000, -1)).to_backend()
y = da.from_array(about, chunks=1_000).to_backend()

number = np.arange(len(x))
train, test = number[number % 5 > 0], number[number % 5 == 0]  # every fifth document is a test document
x_train, y_train, x_test, y_test = (part.persist() for part in (x[train], y[train], x[test], y[test]))

start = time.perf_counter()
model.fit(x_train, y_train, classes=classes)
predicted, true = asnumpy(model.predict(x_test).compute()), asnumpy(y_test.compute())
seconds = time.perf_counter() - start

accuracy = float(accuracy_score(true, predicted))
result = {"documents": len(x), "words": words, "accuracy": accuracy, "guessing": 1 / len(classes), "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "predicted.npy", predicted)
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
ConfusionMatrixDisplay.from_predictions(true, predicted, ax=axes, cmap="Blues", colorbar=False)
axes.set(title=f"accuracy {accuracy:.1%} on {len(true):,} documents")
figure.savefig(out / "naive_bayes.png", dpi=150)
print(f"accuracy {accuracy:.2%} on {len(true):,} test documents, in {seconds:.1f} s")
print(f"picture: {out / 'naive_bayes.png'}")
