"""Runs on the machine they belong to: their directories, submission, and how they stand."""
