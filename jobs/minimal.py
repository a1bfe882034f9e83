"""The smallest script: the mean of a Dask array."""

import dask.array as da

import hpcml

client = hpcml.connect(backend="auto")  # arrays are CuPy's on GPUs, NumPy's on CPUs
print(da.random.random((10_000, 10_000)).mean().compute())
