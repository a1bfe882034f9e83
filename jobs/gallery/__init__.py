"""What the jobs of the gallery share.

Imports go one way: job, backend ← inputs, kinds ← tables, memory, datasets, models, picture ← the jobs.
"""
