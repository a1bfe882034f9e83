"""Preprocessing: impute missing values, scale numbers, one-hot encode categories, write Parquet.

Your own data, in place of the generated table; also write your columns' names into NUMBERS and CATEGORIES:
    table = dd.read_parquet("measured/*.parquet")
"""

import json
import time

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml

NUMBERS, CATEGORIES = ["age", "income"], ["city", "payment"]


def prepare(part):  # part is a pandas or cuDF partition; both have the same methods
    columns = {name: (part[name].fillna(mean) - mean) / deviation for name, (mean, deviation) in scales.items()}
    for name, counts in categories.items():
        filled = part[name].fillna("missing")
        columns |= {f"{name}_{value}": (filled == value).astype("int8") for value in counts}
    return part.assign(**columns)[list(columns)]


client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs, pandas tables on CPUs
rng, rows = np.random.default_rng(0), 100_000
made = pd.DataFrame({"age": rng.normal(45, 15, rows), "income": rng.lognormal(10, 0.6, rows)})
made["city"] = rng.choice(["Bologna", "Cagliari", "Trieste"], rows, p=[0.5, 0.3, 0.2])
made["payment"] = rng.choice(["card", "cash"], rows)
table = dd.from_pandas(made.mask(rng.random(made.shape) < 0.05), npartitions=8).to_backend().persist()  # missing values

start = time.perf_counter()
moments = {name: (table[name].mean(), table[name].std()) for name in NUMBERS}
counts = {name: table[name].fillna("missing").value_counts().to_backend("pandas") for name in CATEGORIES}
moments, counts = dask.compute(moments, counts)
scales = {name: (float(mean), float(deviation)) for name, (mean, deviation) in moments.items()}
categories = {name: {str(value): int(found[value]) for value in sorted(found.index)} for name, found in counts.items()}
prepared = table.map_partitions(prepare).persist()
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
prepared.to_parquet(str(out / "prepared"), write_index=False)
seconds = time.perf_counter() - start

result = {"rows": len(prepared), "columns": list(prepared.columns), "scales": scales, "categories": categories}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
shown = prepared[NUMBERS].partitions[0].to_backend("pandas").compute()
left.hist([shown[name] for name in NUMBERS], bins=60, histtype="step", label=NUMBERS)
left.set(xlabel="deviations from the mean (missing values: 0)", ylabel="rows of the first partition")
left.legend(loc="upper right")
for name in CATEGORIES:
    right.barh([f"{name} {value}" for value in categories[name]], list(categories[name].values()))
right.set(xlabel="rows", title="each value becomes a column")
figure.savefig(out / "preprocess.png", dpi=150)
print(f"{result['rows']:,} rows, {len(prepared.columns)} numeric columns, in {seconds:.1f} s: {out / 'prepared'}")
print(f"picture: {out / 'preprocess.png'}")
