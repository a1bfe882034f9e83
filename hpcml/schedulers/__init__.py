"""Who starts a run: Slurm, or this machine itself."""
