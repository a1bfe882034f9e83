"""The one connection to a cluster, by OpenSSH."""
