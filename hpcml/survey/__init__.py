"""A machine's own answers made into a profile (``hpcml site init``)."""
