"""Data-parallel training of a PyTorch network: workers train on their partitions, then average the weights.

torch is no part of hpcml: install it beside the other libraries, or name an image that has it.
Your own data, in the place of the made rows (FEATURES numbers of about the same size; CLASSES classes 0, 1, 2 …):
    import pandas as pd
    features, target = (pd.read_parquet("measured/")[of].to_numpy() for of in (["width", "height"], "kind"))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_classification

import hpcml

FEATURES, CLASSES, ROUNDS, KEPT = 8, 3, 15, 4_000  # the first 4,000 rows are kept apart for the test


def network():
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))


def train(block, classes, weights):  # on a worker: torch takes the memory of NumPy's and CuPy's arrays as it is
    rows, labels = (torch.from_dlpack(part) for part in (block.astype("float32"), classes.astype("int64")))
    net = network().to(rows.device)
    net.load_state_dict(weights)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.005)
    for some, of in zip(rows.split(128), labels.split(128), strict=True):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(some), of)
        loss.backward()
        optimiser.step()
    return {name: value.cpu() for name, value in net.state_dict().items()}, float(loss.detach())


client = hpcml.connect(backend="auto")  # arrays are CuPy's on GPUs, NumPy's on CPUs
features, target = make_classification(24_000, FEATURES, n_informative=5, n_classes=CLASSES, random_state=0)
x, y = (da.from_array(part[KEPT:], chunks=(2_500, *part.shape[1:])).to_backend() for part in (features, target))
blocks = [client.compute(part.to_delayed().ravel().tolist()) for part in (x, y)]

start, losses, net = time.perf_counter(), [], network()
for _ in range(ROUNDS):
    found = client.gather(client.map(train, *blocks, weights=net.state_dict(), pure=False))
    net.load_state_dict({name: torch.stack([part[name] for part, _ in found]).mean(0) for name in net.state_dict()})
    losses.append(sum(loss for _, loss in found) / len(found))
told = net(torch.tensor(features[:KEPT], dtype=torch.float32)).argmax(dim=1).numpy()
accuracy, seconds = float((told == target[:KEPT]).mean()), time.perf_counter() - start

out = hpcml.run.out  # the run's folder for results; outside a run ./out
torch.save(net.state_dict(), out / "network.pt")
(out / "result.json").write_text(json.dumps({"accuracy": accuracy, "losses": losses, "seconds": seconds}, indent=1))
figure, axes = plt.subplots(layout="constrained")
axes.plot(range(1, ROUNDS + 1), losses, marker="o")
axes.set(xlabel="round", ylabel="loss (cross entropy)", title=f"{accuracy:.1%} of {KEPT:,} rows kept apart are right")
figure.savefig(out / "to_torch.png", dpi=150)
print(f"{accuracy:.2%} of {KEPT:,} rows kept apart are right, after {ROUNDS} rounds in {seconds:.1f} s")
print(f"picture: {out / 'to_torch.png'}")
