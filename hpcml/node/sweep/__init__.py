"""A sweep on the first node: the script once for each point, and a clean cluster between two of them."""
