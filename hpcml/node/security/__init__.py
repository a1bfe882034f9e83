"""Who may talk to a run: TLS, authenticated UCX, and limits for those who may not."""
