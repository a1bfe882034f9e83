"""What a Dask run does on its nodes."""
