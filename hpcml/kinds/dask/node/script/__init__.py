"""What the user's script finds of Dask in a run: its cluster, and what replaces clusters that it opens."""
