"""Which transport carries the data, measured and proven."""
