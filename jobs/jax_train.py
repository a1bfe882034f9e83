"""Data-parallel training in JAX: one compiled step on global arrays, which the devices of all ranks share.

    hpcml submit --nodes 2 --gpus-per-node 4 --ranks gpu jax_train.py
    hpcml submit --site local --ranks 2 jax_train.py              a laptop
Your own data, in place of the synthetic rows: each rank reads a part; all parts have the same number of rows.
"""

from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hpcml

STEPS, ROWS = 300, 8_000  # total steps; rows per rank
jax.distributed.initialize()  # call it before JAX's other functions; hpcml set the coordinator's address
rank, ranks = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
by_rows, replicated = NamedSharding(mesh, PartitionSpec("devices")), NamedSharding(mesh, PartitionSpec())

random = np.random.default_rng(rank)  # different rows on each rank
part = random.normal(size=(ROWS, 8)).astype("float32")
features = jax.make_array_from_process_local_data(by_rows, part)  # rows of all ranks: ranks * ROWS
target = jax.make_array_from_process_local_data(by_rows, np.sin(part[:, 0]) + part[:, 1] * part[:, 2])
owner = jax.make_array_from_process_local_data(by_rows, np.full(ROWS, rank, dtype="int32"))
assert int(owner.sum()) == ROWS * ranks * (ranks - 1) // 2, "the ranks do not have all rows"
random = np.random.default_rng(0)  # the same first weights on all ranks
weights = {"in": random.normal(size=(8, 64)) / 3, "out": random.normal(size=64) / 8}


def mean_loss(weights, features, target):
    return ((jax.nn.gelu(features @ weights["in"]) @ weights["out"] - target) ** 2).mean()


@partial(jax.jit, out_shardings=replicated)
def step(weights, features, target):  # JAX sums the results of the devices of all ranks
    loss, gradients = jax.value_and_grad(mean_loss)(weights, features, target)
    return loss, jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients)


losses = []
for number in range(STEPS):
    loss, weights = step(weights, features, target)
    if number % 100 == 0 or number == STEPS - 1:
        losses.append(float(loss))
if rank == 0:
    np.savez(hpcml.run.out / "weights.npz", **weights)
    print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f} after {STEPS} steps on {ranks} ranks")
