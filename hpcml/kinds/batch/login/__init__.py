"""The batch script's part on the login node: what is read of it. It does not travel with a run."""
