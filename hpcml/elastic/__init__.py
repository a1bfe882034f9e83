"""``hpcml.ElasticCluster``: Dask workers that come and go as jobs of their own, for notebooks and scripts."""

from __future__ import annotations

import importlib.util
import signal
from typing import TYPE_CHECKING

from hpcml.errors import NotFoundError

if TYPE_CHECKING:
    from hpcml.elastic.cluster import ElasticCluster
elif importlib.util.find_spec("dask_jobqueue") is not None:
    _before = signal.getsignal(signal.SIGINT)
    from hpcml.elastic.cluster import ElasticCluster

    # dask-jobqueue (0.9) has Ctrl-C end the program, when it is imported: in a notebook the whole kernel
    if _before is not None:
        signal.signal(signal.SIGINT, _before)
else:

    class ElasticCluster:
        """What stands here where dask-jobqueue is not installed, and says so."""

        def __init__(self, *_: object, **__: object) -> None:
            hint = "Install it: pip install 'hpcml[interactive]'."
            raise NotFoundError("hpcml.ElasticCluster needs dask-jobqueue", place="dask_jobqueue", hint=hint)


__all__ = ["ElasticCluster"]
