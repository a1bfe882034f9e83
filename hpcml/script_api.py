"""What a script sees of hpcml: ``connect()`` for a Dask client and ``run`` for what is known of the run."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import math
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpcml import services
from hpcml.errors import UsageError
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.repairs import file_names

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
        """The folder for results, created when first asked for: ``out/`` of the run, else of the current folder.

        A point of a sweep has a folder of its own in it.
        """
        folder = (self.directory or Path.cwd()) / "out" / str(_point().get("key", ""))
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
        """The number of the run's GPUs on each node: 0 in a run of CPU workers, whatever GPUs the node has or shows.

        It is 0 outside a run too, where :func:`connect` starts workers on CPUs.
        """
        return int(os.environ.get("HPCML_GPUS", "0")) if self.directory else 0

    @property
    def point(self) -> dict[str, int | float | bool | str]:
        """The values of the sweep's point that this process is started for; empty outside a sweep, and in tasks."""
        return dict(_point().get("values", {}))

    @property
    def seed(self) -> int:
        """A number of 32 bits for random generators, the same whenever a point of a sweep is run; 0 outside a sweep."""
        return int(_point().get("seed", 0))

    def report(self, *, step: int | None = None, **metrics: float) -> None:
        """Report a metric of the sweep's point: ``hpcml.run.report(loss=0.3, step=10)``.

        Outside a sweep nothing is kept. The table of the sweep shows the last value of each metric.

        In a sweep with ``--pruner`` it ends a point that the pruner stops, by ``SystemExit`` with status 94:
        ``finally`` and ``with`` do their work, and nothing need be caught. ``step`` is then how far training is
        (epochs, rounds, any whole number that grows), and without one the number of reports.

        Raises
        ------
        SystemExit
            If the point is to stop. A script that catches that, or reports from a thread, continues, and each further
            report raises it again.
        ValueError
            If there is no metric, or one is not a number.
        """
        if not metrics:
            raise ValueError("hpcml.run.report() was called without a metric. Example: hpcml.run.report(loss=0.3)")
        try:
            numbers = {name: float(value) for name, value in metrics.items()}
        except (TypeError, ValueError) as error:
            raise ValueError(f"hpcml.run.report(): a metric is not a number: {error}") from None
        # JSON has no NaN
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        report: dict[str, object] = {"metrics": finite, "step": None if step is None else int(step)}
        _note(report)
        if _is_pruned(report):
            from hpcml.errors import PRUNED

            text = f"hpcml: the sweep's pruner stopped this point after the script reported {metrics}"
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - the point's log
            raise SystemExit(PRUNED)

    def should_stop(self) -> bool:
        """Whether the time limit is near, or the run is being stopped: save your state and return.

        It becomes true ``slurm.signal_lead`` seconds before the time limit, and earlier if a save takes long. Cheap
        enough for every iteration of a training loop (one look at a file).
        """
        attempt = self._attempt
        stop = attempt is not None and (attempt.time_limit.exists() or attempt.terminate.exists())
        if stop and not _told:
            _told.append(True)
            _note({"stopped": True})  # the sweep runs the point again, whatever its exit status is
        return stop

    @property
    def checkpoint_dir(self) -> Path:
        """The folder for checkpoints, created when first asked for: ``checkpoints/`` of the run, else of this folder.

        All nodes and all attempts of a run share it. A point of a sweep
        has one of its own in it.
        """
        from hpcml.node.script import checkpoints

        directory = self.directory
        folder = RunPaths(directory).checkpoints if directory else Path.cwd() / "checkpoints"
        folder /= str(_point().get("key", ""))
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.check_owner(folder)
        return folder

    def save(self, name: str, writer: Callable[[Path], object]) -> Path:
        """Save a checkpoint and return its path. A kill at any moment leaves a complete checkpoint, new or old.

        The time that it takes counts: the script is warned twice that time before the time limit, if that is more
        than ``slurm.signal_lead``.

        Parameters
        ----------
        name
            The file's name, e.g. ``model.json``. One process saves under a name at a time.
        writer
            Called with a path beside it, which ends in ``name``; it writes a file there, or makes a folder.

        Raises
        ------
        ValueError
            If the name cannot be a file's, or begins with a dot.
        OSError
            If it cannot be written, or ``writer`` has written nothing; what ``writer`` raises is passed on too. What
            was there before stays.
        """
        from hpcml.node.script import checkpoints

        return checkpoints.save(self.checkpoint_dir, self._attempt.saves if self._attempt else None, name, writer)

    def saved(self, name: str) -> Path | None:
        """Return the newest complete checkpoint of a name, or None."""
        from hpcml.node.script import checkpoints

        return checkpoints.saved(self.checkpoint_dir, name)

    def on_stop(self, save: Callable[[], object], *, every: str | float = "") -> None:
        """Have ``save`` called once before the run ends, and then end the script with status 92, to be continued.

        That is at the margin before the time limit (see :meth:`should_stop`), and at SIGTERM: a cancellation and a
        preemption, which leave ``deadlines.script_grace``. It is called in the main thread between two of Python's
        instructions, wherever the script is: a long call into compiled code delays it until that returns. An error of
        ``save`` ends the script. Of several calls the last one counts.

        Parameters
        ----------
        save
            Called without arguments. What it saves should belong together at any moment: give one name a whole state.
        every
            How often to call it in addition, e.g. ``15m`` or seconds: a node that fails sends no signal. An error of
            such a save is printed, and the script continues.

        Raises
        ------
        RuntimeError
            If this is not the script's main thread.
        ValueError
            If ``every`` is not a duration.
        """
        from hpcml.node.script import checkpoints

        checkpoints.on_stop(save, every, self.should_stop)

    def service(self, name: str, *, port: int = 0, socket: str = "", ready: str = "") -> None:
        """Name a port or unix socket of this node, to which ``hpcml tunnel --service NAME`` then leads.

        It returns at once. Call it before or after your program begins to listen. ``hpcml status`` shows whether the
        program listens. Outside a run nothing happens. If several processes use a name, the last one counts.

        Parameters
        ----------
        name
            A letter, then letters, digits, ``_`` and ``-``.
        port
            The port at which your program listens.
        socket
            The path of its unix socket, instead of a port.
        ready
            A path such as ``/health``: the service is ready once an HTTP request for it succeeds. Without it the
            service is ready once a program listens.

        Raises
        ------
        ValueError
            If the name, the port or a path is invalid.
        OSError
            If the run's directory cannot be written.
        """
        from hpcml.node.job import node_name

        try:
            wanted = services.checked(name, node_name(), port, socket, ready)
        except UsageError as error:
            raise ValueError(f"hpcml.run.service(): {error}") from None
        if self._attempt:
            services.ask(self._attempt.wanted, wanted)

    def stop(self) -> NoReturn:
        """End the script with status 92, which says: saved, to be continued (it raises ``SystemExit``)."""
        from hpcml.node.script import checkpoints

        checkpoints.stop()

    @property
    def _attempt(self) -> AttemptPaths | None:
        directory = self.directory
        return RunPaths(directory).attempt(self.attempt) if directory else None

    def __repr__(self) -> str:
        return f"<hpcml run {self.id or '(none)'}, attempt {self.attempt}, {self.nodes} nodes, out {self.out}>"


_told: list[bool] = []  # whether this process was told to stop


def _point() -> dict[str, Any]:
    """Return the sweep's record of its point, empty outside a sweep."""
    point: dict[str, Any] = json.loads(os.environ.get("HPCML_POINT", "{}"))
    return point


def _note(record: dict[str, object]) -> None:
    """Tell the process that started this point, by a line in a file of the attempt; outside a sweep nothing happens."""
    point = _point()
    if run.directory is None or not point:
        return
    path = run.directory / "attempts" / str(run.attempt) / f"point-{point['key']}.reports"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "w") as file:
        file.write(json.dumps(record) + "\n")


def _is_pruned(report: dict[str, object]) -> bool:
    """Ask the process that started this point whether the sweep's pruner stops it; its own children are not judged."""
    process, _, descriptor = os.environ.get("HPCML_REPORTS", "").partition(" ")
    if process != str(os.getpid()):
        return False
    os.write(int(descriptor), json.dumps(report).encode())
    return os.read(int(descriptor), 1) == b"p"  # this process ends with the one that answers


run = Run()


def connect(*, backend: str = "", **options: Any) -> Client:
    """Return a ``distributed.Client`` for the run's cluster, or outside a run for a local cluster.

    In a run it is connected to the run's cluster, with all workers ready. Elsewhere a cluster of
    this machine's CPUs is started (for this process's lifetime), closed to other users of the machine by mutual TLS;
    it has no dashboard and opens no HTTP port. A script needs no main guard: the workers do not import it. In an
    allocation made by hand (``salloc``) that is the node where the script runs: ``hpcml submit`` uses them all.

    Parameters
    ----------
    backend
        What ``dask.array`` and ``dask.dataframe`` create in this process and in tasks: ``gpu`` for CuPy and cuDF,
        ``cpu`` for NumPy and pandas, ``auto`` for what suits the workers, unless Dask's own ``DASK_ARRAY__BACKEND``
        or ``DASK_DATAFRAME__BACKEND`` is set. Without it Dask's settings stay as they are: those of CPUs. Tables of
        cuDF are shuffled by ``tasks``, unless Dask's setting ``dataframe.shuffle.method`` has another method.
    options
        Of ``distributed.Client`` and of ``distributed.LocalCluster``, in a run and elsewhere. A run has the workers
        that it was submitted with: options for a cluster are named on stderr there, and do nothing.

    Raises
    ------
    RuntimeError
        If Dask's ``distributed`` is not installed in this environment, or if, outside a run, others could replace
        the contents of the folder for temporary files.
    ValueError
        If ``backend`` is invalid, or ``gpu`` while the workers have no GPU.
    OSError
        If the run's scheduler does not answer (``distributed``'s own time-out).
    """
    try:
        import dask.config
        from distributed import Client
    except ImportError as error:
        reason = (
            "hpcml.connect() needs the package 'distributed'. Install it: pip install 'hpcml[node]' or 'hpcml[local]'"
        )
        raise RuntimeError(reason) from error
    file_names.keep()
    if os.environ.get("HPCML_DATA_KEY"):  # it goes before UCX here, so Dask need not import what does that, and say so
        from hpcml.kinds.dask.node.security import client_preload

        chosen = dask.config.get("distributed.client.preload", [])
        dask.config.set({"distributed.client.preload": [name for name in chosen if name != client_preload.__name__]})
    named = inspect.signature(Client).parameters
    of_cluster = {name: value for name, value in options.items() if name not in named or name in ("kwargs", "security")}
    of_client = {name: value for name, value in options.items() if name not in of_cluster}
    if dask.config.get("scheduler-address", None):  # the batch script's variable, or a worker's own setting in a task
        from hpcml.kinds.dask.node.script import run_cluster

        return run_cluster.connect(of_client, of_cluster, backend)
    if backend not in ("", "auto", "cpu"):
        raise ValueError(f"hpcml.connect(backend={backend!r}): outside a run, workers use no GPU; use auto or cpu")
    from hpcml.kinds.dask.node.script.cluster_outside_runs import ClosedCluster

    of_both = {name: options[name] for name in ("asynchronous", "loop") if name in options}
    client = Client(ClosedCluster(**of_both, **of_cluster), **of_client)
    if not client.asynchronous:
        atexit.register(_close, weakref.ref(client))
    return client


def polars_engine(client: Client | None = None, **options: Any) -> AbstractContextManager[Any]:
    """Return a context manager that gives the engine for ``LazyFrame.collect(engine=…)``.

    On the workers of a run with GPUs it is cuDF-Polars' ``DaskEngine``, which uses the workers' own memory pools. Where
    there is no GPU it is ``"streaming"``, Polars' own engine on this machine's CPUs.

    Parameters
    ----------
    client
        A client of the run; without it, the script's open client, else that of :func:`connect`.
    options
        Of ``DaskEngine``: ``engine_options``, ``executor_options``, ``rapidsmpf_options``.

    Raises
    ------
    RuntimeError
        If cudf-polars is not installed in the environment of a run with GPUs.
    """
    if not run.gpus:
        return contextlib.nullcontext("streaming")
    from hpcml.kinds.dask.node.script import polars_engine

    return polars_engine.opened(client or _open_client() or connect(), options)


def _open_client() -> Client | None:
    """Return the client that the script opened last, None if there is none that waits for answers."""
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    return None if client.asynchronous else client


def _close(reference: weakref.ref[Client]) -> None:
    """Close a client at the script's end, before Dask closes its cluster and warns of results that are still wanted."""
    client = reference()
    if client is not None and client.status == "running":
        client.close()


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
        reason = (
            "a Dask client needs the package 'distributed'. Install it: pip install 'hpcml[node]' or 'hpcml[local]'"
        )
        raise RuntimeError(reason) from error
    file_names.keep()
    from hpcml.kinds.dask.node.security import tls

    return Client(address, security=tls.security(attempt), **options)


def client_variables(attempt: AttemptPaths, address: str, protocol: str) -> dict[str, str]:
    """Return the variables with which a plain ``distributed.Client()`` finds the cluster of a run and is let in."""
    from hpcml.kinds.dask.node.security import tls

    return tls.client_environment(attempt, address, protocol)
