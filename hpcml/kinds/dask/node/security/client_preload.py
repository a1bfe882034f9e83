"""Authenticate UCX in a process that knows nothing of hpcml: Dask imports this when its first Client is made.

The environment that :func:`hpcml.kinds.dask.node.security.tls.client_environment` gives to the script names this
module in ``DASK_DISTRIBUTED__CLIENT__PRELOAD``, and the key in ``HPCML_DATA_KEY``. Without the second nothing happens:
a worker has its backend already, and ``tls://`` needs none. A failure ends ``Client()`` with the sentence that says
why.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcml.kinds.dask.node.security import ucx_auth

if key_file := os.environ.get("HPCML_DATA_KEY"):
    ucx_auth.install(Path(key_file))
