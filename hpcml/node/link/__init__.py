"""The link of every node's agent with the supervisor, in runs of every kind."""
