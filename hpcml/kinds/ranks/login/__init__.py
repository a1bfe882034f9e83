"""The ranks' part on the login node: options, plan and checks. It does not travel with a run."""
