"""A kept allocation on the nodes: the supervisor starts the runs that it is given, and ends the hold that is idle."""
