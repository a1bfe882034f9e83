"""A batch script on the nodes: the script in the batch step, and hpcml's agents beside it."""
