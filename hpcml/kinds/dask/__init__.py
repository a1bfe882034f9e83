"""A run with a Dask cluster: a scheduler on the first node, and workers on every node."""
