"""A machine as data: what a profile may say, the layers of settings, and finding the one that counts."""
