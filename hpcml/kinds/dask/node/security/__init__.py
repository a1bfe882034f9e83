"""Who may connect to a run's Dask: certificates, UCX's proof, and limits for strangers."""
