"""Which wire carries the data, measured and proven."""
