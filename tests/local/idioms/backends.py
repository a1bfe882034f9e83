"""Arrays on GPUs or CPUs, as the script chooses."""

import dask

import hpcml


def backends():
    return [dask.config.get("array.backend"), *set(client.run(dask.config.get, "array.backend").values())]


client = hpcml.connect()
found = [backends()]
client = hpcml.connect(backend="auto")
found += [dask.config.get("array.backend")]
for name in ("gpu", "gpus"):
    try:
        hpcml.connect(backend=name)
    except ValueError as error:
        found.append(str(error))
hpcml.connect(backend="cpu")
print("result", [*found, backends()] == [
    ["numpy", "numpy"], "numpy",
    "hpcml.connect(backend='gpu'): this run has no GPU workers; submit with --gpus-per-node",
    "hpcml.connect(backend='gpus'): unknown backend; use auto, cpu or gpu", ["numpy", "numpy"],
] or found)  # fmt: skip
