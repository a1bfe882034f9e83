"""What runs on the nodes of a run; it travels with each run."""
