"""What runs on the nodes: three roles, started by the batch script as ``python -m hpcml.inside ROLE``.

Nothing here needs a Slurm command or a package beyond the standard library, Dask and cryptography, so that it works
in any image. The files travel with the run (``lib/`` in its directory), so both sides are always of one version.
"""
