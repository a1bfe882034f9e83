"""A worker of an elastic cluster, as Dask's own command starts it in a job: behind TLS alone.

Its Nanny imports this module before it listens, so that the limits hold for both.
"""

from __future__ import annotations

import logging
from typing import Any

from distributed import Worker

from hpcml.node.security import connection_limits
from hpcml.repairs import file_names, finder

finder.install()
connection_limits.guard()
file_names.keep()
logging.getLogger("distributed.batched").setLevel(logging.WARNING)  # it logs a traceback at every normal end


class ElasticWorker(connection_limits.Guarded, Worker):  # type: ignore[misc]
    """Dask's worker without an HTTP port."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port: nothing but Dask's TLS comms listens on a node."""
