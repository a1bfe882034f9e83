"""The interpreter of the user's script: how it begins, what hpcml changes in it, and its checkpoints."""
