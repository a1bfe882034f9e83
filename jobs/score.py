"""Batch inference: a trained scikit-learn model predicts for many Parquet files.

Your own data: replace made(…) with your model's file and your data files. Use the library versions of the model.
"""

import json
import tempfile
import time

import dask.dataframe as dd
import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.tree import DecisionTreeRegressor

import hpcml

COLUMNS = ["width", "height"]


def made(folder):  # a model, and eight files of rows that were not in its training
    rng = np.random.default_rng(0)
    for number in range(9):
        table = pd.DataFrame(rng.uniform(0, 1, (10_000, 2)), columns=COLUMNS)
        table["price"] = np.sin(6 * table["width"]) + table["height"] ** 2 + rng.normal(0, 0.05, len(table))
        table.to_parquet(f"{folder}/{number}.parquet")
    model = DecisionTreeRegressor(max_depth=9, random_state=0).fit(table[COLUMNS], table["price"])
    joblib.dump(model, f"{folder}/model.joblib")
    return f"{folder}/model.joblib", [f"{folder}/{number}.parquet" for number in range(8)]


def score(part, model):  # runs on a worker, on a partition
    return part.assign(prediction=model.predict(part[COLUMNS]))


client = hpcml.connect(backend="cpu")  # scikit-learn's models use CPUs, also on GPU nodes
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="score-")  # on a file system that all nodes share
model_file, files = made(folder.name)

start = time.perf_counter()
model = client.scatter(joblib.load(model_file), broadcast=True)  # sends it once to each worker, not with each task
table = dd.read_parquet(files)
scored = table.map_partitions(score, model, meta={**table.dtypes, "prediction": "float64"}).persist()
scored.to_parquet(str(out / "scored"), write_index=False)
error = float(((scored["prediction"] - scored["price"]) ** 2).mean().compute() ** 0.5)
seconds = time.perf_counter() - start

result = {"rows": len(scored), "files": scored.npartitions, "error": error, "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))
figure, axes = plt.subplots(layout="constrained")
few = scored.partitions[0].compute()
axes.hexbin(few["price"], few["prediction"], gridsize=50, bins="log", mincnt=1)
axes.axline((0, 0), slope=1, color="black", linewidth=1)
axes.set(xlabel="true price", ylabel="predicted price", title=f"root mean square error {error:.3f}")
figure.savefig(out / "score.png", dpi=150)
folder.cleanup()
print(f"{result['rows']:,} rows of {result['files']} files scored in {seconds:.1f} s: {out / 'scored'}")
print(f"picture: {out / 'score.png'}")
