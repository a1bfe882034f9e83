"""What the jobs of the gallery share.

Imports go one way: spill, backend ← job ← inputs, kinds ← memory ← partitions ← tables, datasets, models, picture ←
the jobs.
"""
