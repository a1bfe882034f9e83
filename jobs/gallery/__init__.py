"""What the jobs of the gallery share.

Imports go one way: job, backend ← inputs, kinds ← memory ← partitions ← tables, datasets, models, picture ← the jobs.
"""
