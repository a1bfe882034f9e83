"""What the roles need to know: written into plan.json by the submitting side, read here on the nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from hpcml.paths import AttemptPaths, RunPaths
from hpcml.units import expand_hosts


class Gpu(NamedTuple):
    """What dask-cuda is told for each GPU worker (the options of ``dask cuda worker``, by its names).

    An amount of memory is a fraction of the GPU's memory up to 1, bytes above 1, and None for "none". ``pool`` of -1
    is decided on the node (:func:`hpcml.kinds.dask.node.gpus.pool_size`); so is ``spill_pinned`` of -1. ``mode`` is
    ``dask``, or ``polars`` for workers that cuDF-Polars' DaskEngine sets up itself.
    """

    count: int  # type: ignore[assignment] # a tuple's method of that name is not needed
    cuda: str
    rmm_pool_size: float | None
    rmm_maximum_pool_size: float | None
    rmm_managed_memory: bool
    rmm_async: bool
    rmm_release_threshold: float | None
    rmm_allocator_libs: tuple[str, ...]
    rmm_log_directory: str
    rmm_track_allocations: bool
    device_memory_limit: float | None
    spill_pinned: float | None
    spill_order: str
    cudf_spill: bool
    cudf_spill_stats: int
    pre_import: tuple[str, ...]
    mode: str = "dask"


class Settings(NamedTuple):
    """Decisions of the plan; durations in seconds, sizes in bytes, 0 or empty means "decide on the node".

    ``service`` is what runs in the place of a script (``jupyter``, ``fabric``, ``doctor``), empty without; JupyterLab
    ends after ``idle`` seconds without use, 0 for never. ``gpu`` is None for CPU workers. ``umask`` is the user's, for
    the script and its tasks. ``protocol`` is auto, tls or ucx; ``fabric`` is what the interconnect must prove: none
    (not asked), warn or rdma. ``image`` is what the roles run in, empty without one. ``one_machine``: all nodes of the
    run are this machine, and hpcml itself keeps the time limit. ``launched``: a program started the steps (srun) and
    ends their tasks when it is told to; else a step is a process group. ``own_clusters``: a Dask cluster that the
    script opens is one beside the run's. ``code_of`` is the folder whose copy the script runs in, empty if none.
    ``form`` is what ``script`` is: a Python file (empty), ``module`` (the folder and the dotted name), ``program`` or
    ``notebook``. ``kind`` is what the run is made of (hpcml.kinds). ``interpreter`` are the words of another Python
    that runs the file or the module, empty without one.
    ``sweep`` is the sweep whose points the script is started for, empty without one: ``at_once`` beside each other,
    each with a scheduler and a share of the workers of its own. ``advice`` are the site's changes of the
    report's rules. ``profile`` are the profilers that were asked for. ``until_done``: a run that stopped to be
    continued, or lost its nodes, is followed by another attempt: at most ``most_restarts``, and none that could take
    the run beyond ``most_node_hours`` (0: no such limit). ``node_gpus``: how many GPUs a node has where the job asked
    for some of them and their share of its memory, else 0.
    """

    one_machine: bool
    launched: bool
    nodes: int
    workers_per_node: int
    threads: int
    memory_limit: int
    restarts: int
    on_loss: str
    resources: tuple[tuple[str, float], ...]
    gpu: Gpu | None
    interface: str
    protocol: str
    fabric: str
    nccl: bool
    scratch: str
    time_limit: int
    signal_lead: float
    scheduler_deadline: float
    workers_deadline: float
    fabric_deadline: float
    driver_grace: float
    teardown_deadline: float
    answer_deadline: float
    connect_notice: float
    idle_notice: float
    idle_end: float
    sample_every: float
    script: str
    arguments: tuple[str, ...]
    cwd: str
    umask: int = 0o077
    image: str = ""
    service: str = ""
    idle: float = 0.0
    own_clusters: bool = False
    code_of: str = ""
    form: str = ""
    sweep: str = ""
    advice: dict[str, dict[str, str]] = {}
    profile: tuple[str, ...] = ()
    until_done: bool = False
    most_restarts: int = 0
    most_node_hours: float = 0.0
    at_once: int = 1
    node_gpus: int = 0
    interpreter: tuple[str, ...] = ()
    kind: str = "dask"

    @property
    def several_jobs(self) -> bool:
        """Whether attempts after the first have jobs of their own."""
        return self.until_done

    @property
    def for_polars(self) -> bool:
        """Whether the workers are cuDF-Polars', which has its own memory and its own connections between them."""
        return self.gpu is not None and self.gpu.mode == "polars"

    @property
    def single_node(self) -> bool:
        """Whether the run has one node only, and so needs no network."""
        return self.one_machine or self.nodes == 1

    @property
    def worker_count(self) -> int:
        """How many workers the run has when all are there."""
        return self.nodes * self.workers_per_node

    @property
    def gpus(self) -> int:
        """The GPUs that the run has on each node."""
        return self.gpu.count if self.gpu else 0


class Context(NamedTuple):
    """Where this process stands in the run."""

    run: RunPaths
    attempt: AttemptPaths
    number: int
    settings: Settings
    node: str
    node_names: tuple[str, ...]

    def scratch(self, *, longest: int = 4096) -> str:
        """Return the folder for node-local files: the profile's, else the system's own choice (TMPDIR, /tmp).

        ``longest`` is for unix sockets, whose path may have 108 bytes in all: a longer folder gives way to /tmp.
        """
        import tempfile  # here, as socket below: a submission imports this module too, and needs neither

        folder = os.path.realpath(os.path.expandvars(self.settings.scratch) or tempfile.gettempdir())
        return folder if len(folder.encode()) <= longest else "/tmp"

    @property
    def socket_room(self) -> int:
        """How long the folder may be in which the run's folder for sockets is made; kernels' names are long."""
        return 38 if self.settings.service == "jupyter" or self.settings.form == "notebook" else 70

    def worker_names(self, node: str) -> tuple[str, ...]:
        """Return the names of a node's workers: ``n3``, or ``n3-0``, ``n3-1`` … when there are several."""
        count = self.settings.workers_per_node * (self.settings.nodes if self.settings.one_machine else 1)
        return (node,) if count == 1 else tuple(f"{node}-{index}" for index in range(count))

    def share_of(self, node: str, slot: int) -> int:
        """Return to which of the shares (``at_once``) the worker number ``slot`` of a node belongs: neighbours."""
        settings = self.settings
        each = len(self.worker_names(node))
        before = 0 if settings.one_machine or node not in self.node_names else self.node_names.index(node) * each
        return min((before + slot) * settings.at_once // settings.worker_count, settings.at_once - 1)

    def in_share(self, share: int) -> int:
        """Return how many workers a share has when all are there."""
        at_once, count = self.settings.at_once, self.settings.worker_count
        return -(-(share + 1) * count // at_once) - -(-share * count // at_once)


def load() -> Context:
    """Return the context that the batch script's environment names.

    Raises
    ------
    KeyError
        If HPCML_RUN_DIR is not set (the role was not started by a batch script of hpcml).
    OSError
        If plan.json cannot be read on this node.
    """
    import socket

    run = RunPaths(Path(os.environ["HPCML_RUN_DIR"]))
    number = int(os.environ.get("HPCML_ATTEMPT", "0"))
    facts = json.loads(run.plan.read_text())["inside"]
    facts["arguments"] = tuple(facts["arguments"])
    facts["profile"] = tuple(facts["profile"])
    facts["interpreter"] = tuple(facts["interpreter"])
    facts["resources"] = tuple((name, amount) for name, amount in facts["resources"])
    if facts["gpu"]:
        lists = {name: tuple(facts["gpu"][name]) for name in ("rmm_allocator_libs", "pre_import")}
        facts["gpu"] = Gpu(**facts["gpu"] | lists)
    settings = Settings(**facts)
    node = os.environ.get("HPCML_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    names = os.environ.get("HPCML_NODE_NAMES") or os.environ.get("SLURM_JOB_NODELIST") or node
    return Context(run, run.attempt(number), number, settings, node, expand_hosts(names))
