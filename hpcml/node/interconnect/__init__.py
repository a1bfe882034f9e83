"""The interconnect of a run: what was measured of it, which transport carried the data, and the result."""
