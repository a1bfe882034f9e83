"""Modules that the workloads share.

Imports go one way: spill, backend ← job ← inputs, kinds ← memory ← partitions ← tables, datasets, models ← the workloads.
"""
