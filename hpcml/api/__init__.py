"""The login node's side in Python: ``hpcml.submit``, ``hpcml.map`` and ``hpcml.ElasticCluster``."""
