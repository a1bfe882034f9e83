"""A batch script as one line of hpcml that does the same work."""
