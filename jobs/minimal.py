"""The smallest script: the mean of a Dask array."""

import dask.array as da

import hpcml

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
print(da.random.random((10_000, 10_000)).mean().compute())
