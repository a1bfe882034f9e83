"""Tasks: what the supervisor takes from a queue, starts, follows, and says the end of."""
