"""The report of a run: where its GPU-hours went, as a page for a browser and as JSON, from the run's own files."""
