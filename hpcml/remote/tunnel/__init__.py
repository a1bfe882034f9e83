"""A local port that leads to a service of a run."""
