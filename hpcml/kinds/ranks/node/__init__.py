"""The ranks of a run on its nodes."""
