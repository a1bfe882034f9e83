"""Why a run failed: rules as data, what a run's files show, and which of it came first."""
