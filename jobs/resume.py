"""Checkpoint and restart: k-means saves its state and continues in the next job.

    hpcml submit --until-done --time 4:00:00 resume.py
Your own data, in place of the generated rows:
    import dask.dataframe as dd
    rows = dd.read_parquet("measured/*.parquet").to_dask_array(lengths=True).persist()
A continued run gives the same result as an uninterrupted run. Outside a run, remove ./checkpoints to start again.
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

import hpcml

K, STEPS, CLOSE = 5, 200, 1e-6  # clusters; most steps; centres that move less end the loop

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
points, _ = make_blobs(50_000, centers=K, cluster_std=2.0, random_state=1)
rows = da.from_array(points, chunks=(6_250, 2)).to_backend().persist()
state = {"step": 0, "moved": 1.0, "inertia": [], "seconds": 0.0, "centres": points[:K].tolist()}
if path := hpcml.run.saved("state.json"):  # the newest complete checkpoint; None at the start
    state = json.loads(path.read_text())
    print(f"continues after step {state['step']}")

# Saves every 15 minutes, and before the time limit, a preemption or a cancellation.
hpcml.run.on_stop(lambda: hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state))), every="15m")


def sums(block, centres):
    """Return each cluster's number and sum of rows in a block, and the block's sum of squared distances."""
    distances = ((block[:, None] - np.asarray(centres, like=block)) ** 2).sum(axis=2)
    own = distances.argmin(axis=1)[:, None] == np.arange(len(centres), like=block)
    return own.sum(axis=0).tolist(), (own.T.astype(block.dtype) @ block).tolist(), float(distances.min(axis=1).sum())


while state["step"] < STEPS and state["moved"] > CLOSE:
    start, before = time.perf_counter(), np.array(state["centres"])
    parts = dask.compute(*(dask.delayed(sums)(block, state["centres"]) for block in rows.to_delayed().ravel()))
    counts, totals, inertias = (np.sum([part[which] for part in parts], axis=0) for which in range(3))
    centres = totals / np.maximum(counts, 1)[:, None]
    new = {"step": state["step"] + 1, "moved": float(abs(centres - before).max()), "centres": centres.tolist()}
    new |= {"inertia": [*state["inertia"], float(inertias)], "seconds": state["seconds"] + time.perf_counter() - start}
    state = new  # one assignment per step, because a save can happen at any time

out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
(out / "result.json").write_text(json.dumps({"rows": len(rows), **state}, indent=1))
figure, axes = plt.subplots(layout="constrained")
axes.plot(state["inertia"])
axes.set(xlabel="step", ylabel="inertia", title=f"{K} clusters of {len(rows):,} rows")
figure.savefig(out / "resume.png", dpi=150)
print(f"{K} clusters of {len(rows):,} rows after {state['step']} steps, in {state['seconds']:.1f} s")
print(f"picture: {out / 'resume.png'}")
