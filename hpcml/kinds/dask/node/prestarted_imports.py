"""What the roles of a Dask run import before their run, in a hold that keeps processes ready."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from hpcml.kind import Kind
from hpcml.kinds.dask.node import script_imports, worker_environment
from hpcml.kinds.dask.roles import WORKER
from hpcml.node.context import Context
from hpcml.node.tasks import process
from hpcml.paths import SUPERVISOR

# By role, as imports of functions; the supervisor's make the keys, the scheduler's the dashboard's pages.
_MODULES = {
    "supervisor": ("hpcml.kinds.dask.node.supervised", "cryptography.x509", "distributed"),
    "scheduler": ("hpcml.kinds.dask.node.dask_scheduler",),
    "worker": ("hpcml.kinds.dask.node.dask_worker",),
}


def import_for(role: str, context: Context, kind: Kind) -> Sequence[Path]:
    """Import what a role needs, for a worker also for the last run's script; return Dask's files of settings.

    The supervisor starts the script's interpreter too.
    """
    settings = context.settings
    if role == WORKER.name:
        worker_environment.set_variables(os.environ)
    for name in _MODULES[role]:
        importlib.import_module(name)
    if role == WORKER.name:
        imported = script_imports.of_script(settings)
        script_imports.import_libraries(imported, settings.workers.gpu)
        script_imports.import_all(script_imports.early(imported), "before the run")
    if role == SUPERVISOR:
        process.start_ahead(context, kind, is_of_run=False)
    import dask.config

    return [path for folder in map(Path, dask.config.paths) for path in (folder, *folder.glob("*.y*ml"))]
