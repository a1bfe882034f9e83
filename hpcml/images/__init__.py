"""Container images: what they hold, how they are built, and what speaks against using one."""
