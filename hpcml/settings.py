"""The decisions of a plan that a run's processes need: in plan.json under ``inside``, read on nodes and login node."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from hpcml import typed_json
from hpcml.site_records import Deadlines, Interconnect, Network
from hpcml.workload_forms import Form

T = TypeVar("T")


class Gpu(NamedTuple):
    """The options of dask-cuda for each GPU worker (those of ``dask cuda worker``, by its names).

    An amount of memory is a fraction of the GPU's memory up to 1, bytes above 1, and None for "none". ``pool`` of -1
    is decided on the node (:func:`hpcml.kinds.dask.node.gpus.pool_size`); so is ``spill_pinned`` of -1.
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


class Job(NamedTuple):
    """The allocation, and where the run is in it."""

    nodes: int  # nodes
    gpus: int  # GPUs of each node that the run has
    one_machine: bool  # all nodes are this machine, and hpcml itself keeps the time limit
    launched: bool  # a program started the steps (srun), and ends their tasks; otherwise a step is a process group
    time_limit: int  # seconds of one attempt
    signal_lead: float  # seconds before the time limit at which the supervisor is signalled
    image: str  # Apptainer image of all processes; empty: none
    scratch: str  # folder on each node, with variables to expand; empty: the system's own choice
    node_gpus: int  # GPUs of a node of which the job asked for some, with their share of its memory; otherwise 0
    whole_nodes: bool = False  # certain: no other user's job is on the nodes


class Code(NamedTuple):
    """What is started."""

    form: Form
    script: str  # file or program; of a module its folder and its dotted name; empty if it is not the user's
    arguments: tuple[str, ...]  # of the script
    cwd: str  # folder in which the script runs
    umask: int  # the user's, for the script and its tasks
    copy_of: str  # folder whose copy the script runs in; empty: none
    interpreter: tuple[str, ...]  # argv of another Python that runs the file or the module; empty: the run's own
    idle: float  # seconds without use after which JupyterLab ends; 0: never
    keeps: bool = False  # a hold starts the processes of its next run ahead
    programs: str = ""  # folder that is first on the PATH of a program; empty: PATH as it is

    def command(self, *options: str) -> str:
        """Return the script with its arguments as a shell would take them, without its folder; empty without a script.

        ``options`` come between script and arguments: those that gave the points of a sweep.
        """
        name = self.script.rpartition("/")[2]
        if not name:
            return ""
        words = [*(["-m"] if self.form is Form.MODULE else []), name, *options]
        return shlex.join([*words, *(["--"] if options and self.arguments else []), *self.arguments])


class Workers(NamedTuple):
    """The processes of the kind on the nodes, as far as code of every kind asks for them."""

    per_node: int  # workers on each node
    threads: int = 0  # threads of each; 0: decided on the node
    memory_limit: int = 0  # bytes of each; 0: decided on the node
    restarts: int = 0  # times that a dead worker is replaced, each
    gpu: Gpu | None = None  # None: CPU workers
    late: bool = False  # the Dask cluster starts when the script opens its first client, not before the script


class Attempts(NamedTuple):
    """Whether another job continues the run."""

    several_jobs: bool  # it does, after a time limit, a preemption or a node's failure
    max_restarts: int  # attempts after the first
    max_node_hours: float  # node-hours of all attempts together; 0: no limit


class Points(NamedTuple):
    """The sweep whose points the script is started for."""

    sweep: str = ""  # its name; empty: no sweep
    at_once: int = 1  # points at the same time, each with a scheduler and a share of the workers
    options: tuple[str, ...] = ()  # the options that gave the points, as typed


class Report(NamedTuple):
    """What the run records of itself."""

    sample_every: float  # seconds between two samples of a node
    advice: dict[str, dict[str, str]]  # the site's changes of the report's rules
    profilers: tuple[str, ...]  # the profilers that the user asked for


class Settings(NamedTuple):
    """The decisions of the plan."""

    kind: str  # what the run is made of: a name in hpcml.kinds
    job: Job
    code: Code
    workers: Workers
    network: Network
    deadlines: Deadlines
    attempts: Attempts
    points: Points
    report: Report
    interconnect: Interconnect = Interconnect()
    services: tuple[str, ...] = ()  # ports of the first node to which tunnels lead: NAME=PORT
    of_kind: Mapping[str, Any] = {}  # what only the kind's own code asks for, see own()

    @property
    def single_node(self) -> bool:
        """Whether the run has one node only, and so needs no network."""
        return self.job.one_machine or self.job.nodes == 1

    @property
    def ucx(self) -> str:
        """What Dask may use of UCX, which lets everybody who reaches its TCP write to a process's memory.

        ``all``: its TCP too, because the user asked for UCX, or nobody else reaches it. ``loopback``: a single node
        without other users. ``rdma``: no TCP, if all nodes have RDMA. Empty: nothing.
        """
        if self.network.protocol == "ucx":
            return "all"
        if self.network.protocol in ("tls", "tcp") or self.workers.gpu is None or self.gpus * self.job.nodes < 2:
            return ""
        if self.single_node:
            return "loopback" if self.job.whole_nodes else ""
        return "all" if self.job.whole_nodes and self.network.private else "rdma"

    @property
    def worker_count(self) -> int:
        """The number of workers when all have registered."""
        return self.job.nodes * self.workers.per_node

    def own(self, record: type[T]) -> T:
        """Return the settings for the kind's own code alone, as its record; DamagedError if a value is damaged."""
        return typed_json.read(record, self.of_kind)

    @property
    def gpus(self) -> int:
        """The GPUs that the run has on each node."""
        return self.job.gpus
