"""JupyterLab in the place of a script."""
