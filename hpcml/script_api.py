"""What a script sees of hpcml: ``connect()`` for a Dask client and ``run`` for what is known of the run."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.paths import AttemptPaths

if TYPE_CHECKING:
    from distributed import Client


class Run:
    """The run that this process belongs to; outside a run the values are those of a run that just began here."""

    @property
    def id(self) -> str:
        """The run's id, e.g. ``kmeans-20261121-074500-1a2b``; empty outside a run."""
        return self.directory.name if self.directory else ""

    @property
    def directory(self) -> Path | None:
        """The run's directory, None outside a run."""
        text = os.environ.get("HPCML_RUN_DIR", "")
        return Path(text) if text else None

    @property
    def out(self) -> Path:
        """The folder for results, created when first asked for: ``out/`` of the run, else of the current folder."""
        folder = (self.directory or Path.cwd()) / "out"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def attempt(self) -> int:
        """How often this run was restarted before: 0 at first."""
        return int(os.environ.get("HPCML_ATTEMPT", "0"))

    @property
    def nodes(self) -> int:
        """The number of nodes of the allocation."""
        return int(os.environ.get("HPCML_NODES", "1"))

    @property
    def gpus(self) -> int:
        """The number of the run's GPUs on this node; 0 outside a run, where :func:`connect` starts workers on CPUs."""
        if self.directory is None:
            return 0
        return len([word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()])

    def should_stop(self) -> bool:
        """Whether the time limit is near (or the run is being ended): save what matters and return.

        It becomes true ``slurm.signal_lead`` seconds before the time limit. Cheap enough for every iteration of a
        training loop (one look at a file).
        """
        directory = self.directory
        if directory is None:
            return False
        attempt = directory / "attempts" / str(self.attempt)
        return any((attempt / name).exists() for name in ("time-limit", "terminate"))

    def __repr__(self) -> str:
        return f"<hpcml run {self.id or '(none)'}, attempt {self.attempt}, {self.nodes} nodes, out {self.out}>"


run = Run()


def connect(*, backend: str = "", **options: Any) -> Client:
    """Return a ``distributed.Client`` that is right for where the script runs.

    In a run it is connected to the run's cluster, all of whose workers are there already. Elsewhere a cluster of
    this machine's CPUs is started (for this process's lifetime), closed to other users of the machine by mutual TLS;
    it has no dashboard and opens no HTTP port. A script needs no main guard: the workers do not import it. In an
    allocation made by hand (``salloc``) that is the node where the script runs: ``hpcml submit`` uses them all.

    Parameters
    ----------
    backend
        What ``dask.array`` and ``dask.dataframe`` create in this process and in tasks: ``gpu`` for CuPy and cuDF,
        ``cpu`` for NumPy and pandas, ``auto`` for what suits the workers, unless Dask's own ``DASK_ARRAY__BACKEND``
        or ``DASK_DATAFRAME__BACKEND`` is set. Without it Dask's settings stay as they are: those of CPUs.
    options
        Of ``distributed.Client`` and of ``distributed.LocalCluster``, in a run and elsewhere. A run has the workers
        that it was submitted with: options for a cluster are named on stderr there, and do nothing.

    Raises
    ------
    RuntimeError
        If Dask's ``distributed`` is not installed in this environment, or if, outside a run, others could replace
        what lies in the folder for temporary files.
    ValueError
        If ``backend`` is another word, or ``gpu`` where the workers have no GPU.
    OSError
        If the run's scheduler does not answer (``distributed``'s own time-out).
    """
    try:
        import dask.config
        from distributed import Client
    except ImportError as error:
        reason = "hpcml.connect() needs distributed: install hpcml with its extra 'node' or 'local'"
        raise RuntimeError(reason) from error
    if os.environ.get("HPCML_UCX_KEY"):  # it goes before UCX here, so Dask need not import what does that, and say so
        from hpcml.node.security import preload

        chosen = dask.config.get("distributed.client.preload", [])
        dask.config.set({"distributed.client.preload": [name for name in chosen if name != preload.__name__]})
    named = inspect.signature(Client).parameters
    of_cluster = {name: value for name, value in options.items() if name not in named or name in ("kwargs", "security")}
    of_client = {name: value for name, value in options.items() if name not in of_cluster}
    if dask.config.get("scheduler-address", None):  # the batch script's variable, or a worker's own setting in a task
        from hpcml.node.script import run_cluster

        return run_cluster.connect(of_client, of_cluster, backend)
    if backend not in ("", "auto", "cpu"):
        raise ValueError(f"hpcml.connect(backend={backend!r}): outside a run the workers have no GPU: auto or cpu")
    from hpcml.node.roles.local_cluster import ClosedCluster

    of_both = {name: options[name] for name in ("asynchronous", "loop") if name in options}
    return Client(ClosedCluster(**of_both, **of_cluster), **of_client)


def connect_to(attempt: AttemptPaths, address: str, **options: Any) -> Client:
    """Return a client of the cluster of a run that this process is no part of, by the run's own keys.

    Raises
    ------
    RuntimeError
        If Dask's ``distributed`` is not installed in this environment.
    OSError
        If the scheduler at ``address`` does not answer, or the keys are gone.
    """
    try:
        from distributed import Client
    except ImportError as error:
        reason = "a client of a run needs distributed: install hpcml with its extra 'node' or 'local'"
        raise RuntimeError(reason) from error
    from hpcml.node.security import tls

    return Client(address, security=tls.security(attempt), **options)


def client_variables(attempt: AttemptPaths, address: str, protocol: str) -> dict[str, str]:
    """Return the variables with which a plain ``distributed.Client()`` finds the cluster of a run and is let in."""
    from hpcml.node.security import tls

    return tls.client_environment(attempt, address, protocol)
