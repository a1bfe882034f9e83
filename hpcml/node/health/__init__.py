"""What goes wrong in a run, and how it is noticed and named."""
