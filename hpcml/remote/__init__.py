"""Between a laptop and a login node."""
