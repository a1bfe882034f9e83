"""Dask arrays to PyTorch and back without a copy: a network trains on a sample and predicts for all rows.

Your own data, in place of the generated rows (numeric features of similar scale; y is the number to predict):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet")[["width", "height", "price"]].astype("float32").persist()
    x, y = (table[columns].to_dask_array(lengths=True).persist() for columns in (["width", "height"], "price"))
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import torch
from distributed import futures_of
from sklearn.metrics import r2_score

import hpcml

if hpcml.run.gpus:
    from cupy import from_dlpack
else:
    from numpy import from_dlpack


def to_torch(block):  # a tensor in the block's own memory; a block from another worker may be read-only
    return torch.from_dlpack(block if getattr(block.flags, "writeable", True) else block.copy())


def shared(block):  # runs on a worker: whether block, tensor, and the array made of the tensor are one piece of memory
    tensor = to_torch(block)
    return address(block) == tensor.data_ptr() == address(from_dlpack(tensor))


def address(array):
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


def network(features, device):
    layers = torch.nn.Linear(features, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), torch.nn.Flatten(0)
    return torch.nn.Sequential(*layers).to(device)


def train(rows):  # runs on a worker, on its GPU if it has one; the last column is the target
    rows = to_torch(rows)
    torch.manual_seed(0)
    model = network(rows.shape[1] - 1, rows.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows[:, :-1]), rows[:, -1]).backward()
        optimizer.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def predict(block, parameters):  # runs on a worker, on a NumPy or CuPy block, and returns such a block
    rows = to_torch(block)
    model = network(rows.shape[1], rows.device)
    model.load_state_dict(parameters)
    with torch.no_grad():
        return from_dlpack(model(rows))


client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
rng = np.random.default_rng(0)
made = rng.normal(size=(200_000, 4)).astype("float32")
x = da.from_array(made, chunks=(25_000, -1)).to_backend().map_blocks(lambda block: block.copy()).persist()
y = (da.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]).persist()

start = time.perf_counter()
sample = da.concatenate([x, y[:, None]], axis=1)[::20].rechunk(-1)
parameters = dask.delayed(train)(sample).persist()
predicted = x.map_blocks(predict, parameters, drop_axis=1, meta=y._meta)  # noqa: SLF001 - the type of y's blocks
true, predicted = (part.to_backend("numpy").compute() for part in (y, predicted))
seconds = time.perf_counter() - start

blocks = client.gather(client.map(shared, futures_of(x)))
result = {"rows": len(x), "blocks": len(blocks), "without_copy": sum(blocks), "r2": r2_score(true, predicted)}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))
figure, axes = plt.subplots(layout="constrained")
axes.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1)
axes.axline((0, 0), slope=1, color="black", linewidth=1)
axes.set(xlabel="true", ylabel="predicted", title=f"R² {result['r2']:.4f} on {len(x):,} rows")
figure.savefig(out / "to_torch.png", dpi=150)
print(f"{sum(blocks)} of {len(blocks)} blocks not copied; R² {result['r2']:.4f}, {len(x):,} rows in {seconds:.1f} s")
print(f"picture: {out / 'to_torch.png'}")
