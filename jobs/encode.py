"""Classes that are texts: LabelEncoder numbers them, and turns a model's numbers back into texts.

Your own data, in place of the generated table (no missing values); also write your column's name into COLUMN:
    table = dd.read_parquet("measured/*.parquet")
"""

import json
import time

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml

if hpcml.run.gpus:
    from cuml.dask.preprocessing import LabelEncoder
else:
    from dask_ml.preprocessing import LabelEncoder

COLUMN = "city"


def to_numpy(collection):
    part = collection.compute()
    return np.asarray(part.to_pandas() if hasattr(part, "to_pandas") else part)


client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs, pandas tables on CPUs
names = np.array(["Trieste", "Bologna", "Cagliari", "Bari"])
made = pd.DataFrame({"city": np.random.default_rng(0).choice(names, 200_000, p=[0.1, 0.5, 0.25, 0.15])})
table = dd.from_pandas(made, npartitions=8).to_backend()

start = time.perf_counter()
texts = (table[COLUMN] if hpcml.run.gpus else table[COLUMN].astype("object")).persist()
encoder = LabelEncoder().fit(texts)  # sorts the distinct texts, in the script
numbers = encoder.transform(texts).persist()  # 0, 1, 2 …: the classes that the other examples want
again = encoder.inverse_transform(numbers)
texts, numbers, again = map(to_numpy, (texts, numbers, again))
seconds = time.perf_counter() - start

classes, counts = [str(name) for name in encoder.classes_], np.bincount(numbers)
result = {"rows": len(numbers), "classes": classes, "counts": counts.tolist(), "back": int((again == texts).sum())}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "numbers.npy", numbers)
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, axes = plt.subplots(layout="constrained")
axes.barh([f"{number} {name}" for number, name in enumerate(classes)], counts)
axes.set(xlabel="rows", ylabel="number and text of each class")
figure.savefig(out / "encode.png", dpi=150)
print(f"{result['rows']:,} texts are {len(classes)} numbers; {result['back']:,} turned back, in {seconds:.1f} s")
print(f"picture: {out / 'encode.png'}")
