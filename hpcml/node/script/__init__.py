"""The user's script as a process: how it is started, and what the ways to open a Dask cluster mean in it."""
