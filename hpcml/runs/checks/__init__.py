"""Checks of a script and its Python before a submission."""
