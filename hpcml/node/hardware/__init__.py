"""What a node has, and what of it a run uses."""
