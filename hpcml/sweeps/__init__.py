"""Sweeps on the login node: which points there are, what is known of each, and the table of them."""
