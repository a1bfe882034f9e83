"""A sweep on the first node: the script once for each point, and its processes reset between two of them."""
