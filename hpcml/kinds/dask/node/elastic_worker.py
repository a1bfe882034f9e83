"""The workers of an elastic cluster's job: Dask's own command, behind TLS alone, in a folder that nobody else enters.

``python -m hpcml.kinds.dask.node.elastic_worker SCHEDULER NAME`` starts them as the settings in the cluster's folder
say. A Nanny imports this module before it listens, so that the limits hold for both.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from distributed import Worker

from hpcml import repairs
from hpcml.errors import STORAGE
from hpcml.kinds.dask.node import cuda_errors, temporary_directory
from hpcml.kinds.dask.node.dask_worker import Share
from hpcml.kinds.dask.node.security import connection_limits
from hpcml.kinds.dask.own_settings import Own
from hpcml.node import scratch
from hpcml.node.context import Context, load
from hpcml.paths import AttemptPaths
from hpcml.repairs import file_names, finder, switching
from hpcml.settings import Gpu

finder.install()
connection_limits.guard()
file_names.keep()
switching.install()
logging.getLogger("distributed.batched").setLevel(logging.WARNING)  # it logs a traceback at every normal end

RESTARTS = "HPCML_RESTART_ON_CUDA_ERROR"  # the profile's key, for the processes of the workers
_POOL = 0.9  # of a GPU, where the profile leaves it to hpcml
# What dask-cuda names otherwise than the settings, and what it does not have.
_NAMES = {"rmm_allocator_libs": "--set-rmm-allocator-for-libs", "cudf_spill": "--enable-cudf-spill"}
_NOT_OF_DASK_CUDA = ("count", "cuda", "spill_pinned", "spill_order", "mode")


class ElasticWorker(connection_limits.Guarded, cuda_errors.EndsWithoutGpu, Worker):  # type: ignore[misc]
    """Dask's worker without an HTTP port; its Nanny replaces it."""

    restart_on_cuda_error = os.environ.get(RESTARTS) == "True"

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port: nothing but Dask's TLS comms listens on a node."""


def worker_command(context: Context, name: str, folder: str) -> list[str]:
    """Return the options of Dask's command for the workers of this node; of dask-cuda's with GPUs."""
    settings, keys = context.settings, AttemptPaths(context.run.directory)
    share = Share.of_node(context, settings.workers.per_node)
    options = {
        "--name": name,
        "--worker-class": f"hpcml.kinds.dask.node.elastic_worker.{ElasticWorker.__name__}",
        "--protocol": "tls",
        "--tls-ca-file": keys.certificate,
        "--tls-cert": keys.certificate,
        "--tls-key": keys.key,
        "--no-dashboard": True,
        "--death-timeout": settings.deadlines.workers,
        "--local-directory": folder,
        "--nthreads": share.threads,
        "--memory-limit": share.memory_limit,
        "--interface": settings.network.interface,
        "--resources": " ".join(f"{resource}={amount:g}" for resource, amount in settings.own(Own).resources),
    }
    of_gpus = gpu_options(settings.workers.gpu) if settings.workers.gpu else {"--nworkers": settings.workers.per_node}
    return as_words(options | of_gpus)


def gpu_options(gpu: Gpu) -> dict[str, Any]:
    """Return the profile's GPU settings as dask-cuda's options."""
    pool = _POOL if gpu.rmm_pool_size == -1 else gpu.rmm_pool_size
    given = gpu._replace(
        rmm_pool_size=None if gpu.rmm_async or gpu.rmm_managed_memory else pool,
        rmm_allocator_libs=gpu.rmm_allocator_libs if pool or gpu.rmm_async else (),
        device_memory_limit=gpu.device_memory_limit or 0,
    )._asdict()
    options = {
        _NAMES.get(name, f"--{name.replace('_', '-')}"): value
        for name, value in given.items()
        if name not in _NOT_OF_DASK_CUDA
    }
    return options | {"--cudf-spill-stats": gpu.cudf_spill_stats or None}


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command: a flag is true, and what is empty, None or false is left out."""
    arguments = []
    for option, value in options.items():
        if value is None or value is False or value in ("", ()):
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if isinstance(value, float):  # seconds, and of a GPU's memory a fraction or bytes
            text = f"{value:g}" if value < 1e5 else str(int(value))
        arguments += [option] if value is True else [option, text]
    return arguments


def main() -> int:
    """Run the workers until they end; return their exit status, or 74 if somebody else could replace the folder."""
    address, name = sys.argv[1:]
    context = load()
    place = temporary_directory.of_role(context)
    try:
        folder = scratch.Folder(place)
    except scratch.UnsafePlaceError as error:
        print(f"hpcml: {error}; {scratch.SET_SCRATCH}", file=sys.stderr)
        return STORAGE
    threading.Thread(target=scratch.sweep, args=(place,), daemon=True).start()
    for text in repairs.notes_here():
        print(f"hpcml: {text}", file=sys.stderr, flush=True)
    with folder:
        folder_path = str(folder.path)
        os.environ |= {"TMPDIR": folder_path, "DASK_TEMPORARY_DIRECTORY": folder_path}  # of what tasks start, too
        tempfile.tempdir = None
        scratch.name_semaphores(folder.path)
        os.environ[RESTARTS] = str(context.settings.own(Own).restart_on_cuda_error)
        module = "dask_cuda.cli" if context.settings.workers.gpu else "distributed.cli.dask_worker"
        sys.argv = [module, address, *worker_command(context, name, folder_path)]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
