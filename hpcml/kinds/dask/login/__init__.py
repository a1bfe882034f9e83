"""Dask's part on the login node: options, plan, and what top shows of its tasks. It does not travel with a run."""
