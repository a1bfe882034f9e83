"""What a run uses while it lasts, written into small files: of each node, and of Dask."""
