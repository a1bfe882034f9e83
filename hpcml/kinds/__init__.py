"""The kinds of run: what a run is made of (docs/architecture.md)."""
