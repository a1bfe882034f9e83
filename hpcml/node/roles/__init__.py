"""The processes of a run: scheduler, workers, and the supervisor that runs the script."""
