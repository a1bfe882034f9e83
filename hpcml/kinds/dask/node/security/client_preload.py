"""Authenticate UCX or TCP in a process that knows nothing of hpcml: Dask imports this for its first Client.

The environment that :func:`hpcml.kinds.dask.node.security.tls.client_environment` gives to the script names this
module in ``DASK_DISTRIBUTED__CLIENT__PRELOAD``, and the protocol and the key's file in ``HPCML_DATA_KEY``. Without the
second nothing happens: a worker has its backend already, and ``tls://`` needs none. A failure ends ``Client()`` with
the sentence that says why.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcml.kinds.dask.node.security import tcp_auth, ucx_auth

if key := os.environ.get("HPCML_DATA_KEY"):
    protocol, _, key_file = key.partition(":")
    {"tcp": tcp_auth, "ucx": ucx_auth}[protocol].install(Path(key_file))
