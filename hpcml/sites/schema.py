"""What a machine is: the records and the allowed values of a site profile."""

# No `from __future__ import annotations`: layers.build reads the records' annotations. They are NamedTuples because a
# frozen dataclass of ten fields takes 1.9 ms to define, ten times as long, and `hpcml submit` defines 25 records.
from typing import NamedTuple

from hpcml.units import Memory, Seconds, TimeLimit


class Identify(NamedTuple):
    """How a machine is recognised: every line that is given must match."""

    hostname: tuple[str, ...] = ()
    """Patterns of the shell: one of them must match the host's name."""
    environment: dict[str, str] = {}
    """Variables and the patterns that they must match."""
    command: str = ""
    """A program that must be on PATH."""
    order: int = 50
    """Of several profiles that match, the lowest is taken."""
    never: bool = False
    """Never recognised, only named."""


class Defaults(NamedTuple):
    """What is asked for when the command line does not say."""

    nodes: int = 1
    """How many nodes."""
    gpus_per_node: int = 0
    """GPUs on each node."""
    time: TimeLimit = TimeLimit()
    """Time limit; empty: the partition's default, on the local site none."""
    account: str = ""
    """Slurm account."""
    partition: str = ""
    """Slurm partition; another of the profile is taken, with a note, if the request does not fit it, or if its nodes
    have GPUs and none is asked for.
    """
    qos: str = ""
    """Slurm QoS."""


class Resources(NamedTuple):
    """What is asked for on each node."""

    cpus_per_node: int = 0
    """CPUs to ask for on each node; 0: the partition's, else what Slurm gives. Where no partition is listed it is what
    a node has: a job for some of ``resources.node_gpus`` asks for their share.
    """
    memory_per_node: Memory = Memory()
    """Memory to ask for on each node; empty: the partition's, else what Slurm gives. Where no partition is listed it is
    divided in the same way.
    """
    node_gpus: int = 0
    """GPUs that a node has, where no partition is listed; 0: not known. Not for a QoS that is ``without_gpus``."""
    exclusive: bool = False
    """Ask for whole nodes (``--exclusive``)."""


class SlurmOptions(NamedTuple):
    """How this Slurm wants to be asked."""

    gpu_request: str = "gpus-per-node"
    """The option for GPUs: ``--gres=gpu:N``, ``--gpus-per-node=N``, or none."""
    gpu_type: str = ""
    """Goes before the number: ``a100`` gives ``gpu:a100:4``."""
    extra: tuple[str, ...] = ()
    """Directives of sbatch, added as they stand, as ``--constraint=gpu``; each replaces hpcml's own of that name.
    ``--comment`` and ``--array`` are refused.
    """
    remove: tuple[str, ...] = ()
    """Options that are left out, as ``--mem``."""
    signal_lead: Seconds = Seconds("60s")
    """How long before the time limit the script is told; at most half of the limit."""
    export: str = "ALL"
    """The value of sbatch's ``--export``."""
    account_required: bool = False
    """Refuse a job without an account."""
    srun_extra: tuple[str, ...] = ()
    """Options that are added to each of the three ``srun``."""
    timeout: Seconds = Seconds("60s")
    """How long sbatch may take to answer."""
    exclude_failed: bool = False
    """Leave out the nodes that failed within a day, unless ``--exclude`` or ``--nodelist`` is given."""


class Partition(NamedTuple):
    """A partition and its limits; one that is 0 or empty is not checked."""

    min_nodes: int = 0
    """Nodes that one job must have."""
    max_nodes: int = 0
    """Nodes that one job may have."""
    max_time: TimeLimit = TimeLimit()
    """Longest time limit."""
    gpus_per_node: int = 0
    """GPUs that a node has."""
    cpus_per_node: int = 0
    """CPUs that a node has; asked for unless something else is. A job for some of the node's GPUs asks for their share.
    """
    memory_per_node: Memory = Memory()
    """Memory that a node has; asked for unless something else is, and shared in the same way."""
    whole_nodes: bool = False
    """Its jobs get whole nodes without ``--exclusive``: a part of a node is not asked for."""
    needs_gpus: bool = False
    """A job that asks for no GPU is refused there."""
    qos: str = ""
    """QoS of the jobs of this partition."""
    budget: tuple[str, ...] = ()
    """The words of the command that tells its grants, where it is another than ``cost.budget``."""


class Qos(NamedTuple):
    """A QoS that a job may ask for with ``--qos``; what it limits stands in the place of its partition's limit.

    A request beyond a limit is refused before Slurm sees it, with the partition or QoS that would take it. Where the
    limit is only reported or guessed, a note says so, and Slurm decides.
    """

    description: str = ""
    """What it is for."""
    partitions: tuple[str, ...] = ()
    """The partitions that it is for; empty: all."""
    min_nodes: int = 0
    """Nodes that one job must have."""
    max_nodes: int = 0
    """Nodes that one job may have."""
    max_time: TimeLimit = TimeLimit()
    """Longest time limit."""
    max_jobs: int = 0
    """Jobs that a user may have submitted at once; shown, not checked."""
    whole_nodes: bool = False
    """Its jobs get whole nodes without ``--exclusive``: a part of a node is not asked for."""
    without_gpus: bool = False
    """Its jobs get nodes that have no GPUs: ``hpcml doctor`` warns where it is the default."""


class Runtime(NamedTuple):
    """What the roles run in."""

    kind: str = "python"
    """``image``: all roles run inside ``runtime.image``; ``--image`` does the same for one run."""
    python: str = ""
    """The interpreter on the nodes: an absolute path, taken as it stands (no ``~``, no ``$VARIABLE``); empty: the one
    that runs hpcml; with ``kind = "image"`` the one in the image, empty: ``python3``.
    """
    image: str = ""
    """The image's path, absolute, on a file system that all nodes share."""
    container: str = "apptainer"
    """The program that runs images: ``apptainer``, ``singularity``, or a path."""
    binds: tuple[str, ...] = ()
    """What the inside sees beside the run's directory, the folder that you submit from, ``/tmp`` and the scratch:
    ``"/data"``, ``"/data:/inside"``, ``"/data:/inside:ro"``.
    """
    options: tuple[str, ...] = ()
    """More options of the program, such as ``--writable-tmpfs``."""
    stage: str = "none"
    """Copy the image to each node's own disk before the roles enter it."""
    stage_to: str = ""
    """The folder there; ``$VARIABLES`` of the first node are replaced; empty: ``paths.scratch``, else ``TMPDIR``, else
    ``/tmp``.
    """
    modules: tuple[str, ...] = ()
    """Loaded with ``module load``, in order, after ``setup``."""
    setup: tuple[str, ...] = ()
    """Lines of bash that run first in the job."""


class Workers(NamedTuple):
    """The Dask workers."""

    per_node: int = 1
    """Dask workers on each node; with ``--gpus-per-node`` it is one per GPU."""
    threads: int = 0
    """Threads of each; 0: an equal share of the node's CPUs, with GPUs one."""
    memory_limit: Memory = Memory()
    """Host memory of each; empty: an equal share of what the job has on the node; less than a worker needs to start (80
    MiB at least) is refused.
    """
    resources: tuple[str, ...] = ()
    """Dask's worker resources, each ``NAME=NUMBER``, as ``GPU=1``."""
    restarts: int = 3
    """How often one worker, or a node's whole worker task, may die before it counts as lost."""
    on_loss: str = "continue"
    """What a lost worker means: go on while one is left, or end the run with status 82."""


class Gpu(NamedTuple):
    """GPU workers, by the names of dask-cuda's options.

    An amount of memory is a size (``40G``), a fraction of the GPU's memory (``0.8``) or ``none``.
    """

    cuda: str = "any"
    """The CUDA that the machine's driver can run; an environment that is built for another is refused on the node."""
    rmm_pool_size: str = "auto"
    """RMM's memory pool: an amount, or ``auto``: nearly the whole GPU, less on the first."""
    rmm_maximum_pool_size: str = "none"
    """The amount to which the pool may grow."""
    rmm_managed_memory: bool = False
    """Managed memory; cuda_ipc does not carry it."""
    rmm_async: bool = False
    """CUDA's own asynchronous allocator; cuda_ipc does not carry it."""
    rmm_release_threshold: str = "none"
    """With ``gpu.rmm_async``: the amount that stays with the process."""
    rmm_allocator_libs: tuple[str, ...] = ("cupy",)
    """Libraries, of ``cupy`` and ``torch``, that shall allocate from RMM, where they are installed."""
    rmm_log_directory: str = ""
    """The folder for a log of every allocation, for each worker; ``$VARIABLES`` are replaced on the node."""
    rmm_track_allocations: bool = False
    """Sums of allocations for Dask's dashboard; costs time."""
    device_memory_limit: str = "0.8"
    """The amount from which Dask spills GPU data to host memory; ``none``: never."""
    spill_pinned: str = "auto"
    """Host memory that each worker may pin for what leaves its GPU: a size; ``auto``: six tenths of the worker's
    memory. ``none``: fresh memory for each value, as dask-cuda does.
    """
    spill_order: str = "keep"
    """What leaves the GPU first: ``keep`` leaves a fixed part of the data there in passes over more than fits; ``lru``:
    the least recently used, as dask-cuda does.
    """
    cudf_spill: bool = False
    """The spilling of cuDF itself."""
    cudf_spill_stats: int = 0
    """With ``gpu.cudf_spill``: how much it counts."""
    gds: str = "auto"
    """How cuDF reads files: ``on`` by GPUDirect Storage (``KVIKIO_COMPAT_MODE=OFF``), which fails or hangs where cuFile
    or the file system cannot; ``off`` by way of the host's memory; ``auto`` leaves the choice to KvikIO.
    """
    pre_import: tuple[str, ...] = ()
    """Modules that are imported once on each node, before the workers are forked."""
    mode: str = "dask"
    """Whose the workers are: ``dask``, or ``polars`` for cuDF-Polars' DaskEngine, which takes memory and opens
    connections itself; of these keys only ``gpu.cuda``, ``gpu.gds`` and ``gpu.pre_import`` count then.
    """


class Network(NamedTuple):
    """The network that Dask's comms use."""

    interface: str = ""
    """The interface for Dask, as ``ib0``; empty: the first InfiniBand interface that has an address, else that of the
    node's name, else the first that is not loopback.
    """
    protocol: str = "auto"
    """``auto`` takes UCX where there are several GPUs on a node, or GPUs and InfiniBand, and TLS otherwise."""
    adapters: tuple[str, ...] = ()
    """The names of a node's RDMA adapters, as ``mlx5_0``; ``NCCL_IB_HCA`` and ``UCX_NET_DEVICES`` that name others are
    told at the submission.
    """


class Fabric(NamedTuple):
    """The check of the interconnect before the script."""

    require: str = "warn"
    """What the check of the interconnect means: not made, told, or a slow transport ends the run with status 89."""
    nccl: bool = True
    """Have NCCL make an all-reduce too."""


class Deadlines(NamedTuple):
    """How long each phase may take, from the moment the one before it ended.

    The last four hold while the script runs.
    """

    stage: Seconds = Seconds("300s")
    """For the copies of the image, with ``runtime.stage``."""
    scheduler: Seconds = Seconds("60s")
    """Until the scheduler is up."""
    workers: Seconds = Seconds("120s")
    """Until every worker has registered; while the script runs, how long workers may be away before they count as lost.
    """
    fabric: Seconds = Seconds("30s")
    """For the check of the interconnect; half of it for NCCL."""
    driver_grace: Seconds = Seconds("20s")
    """For the script, from SIGTERM to SIGKILL; keep it below Slurm's ``KillWait`` (``scontrol show config``)."""
    teardown: Seconds = Seconds("10s")
    """For scheduler and workers to end."""
    answer: Seconds = Seconds("10m")
    """How long scheduler and supervisor may not answer each other; said after a tenth of it, then the run ends (82)."""
    connect_notice: Seconds = Seconds("60s")
    """When it is said that the script has not connected to its cluster; ``0s``: never."""
    idle_notice: Seconds = Seconds("10m")
    """When it is said that nothing uses the cluster; ``0s``: never."""
    idle: Seconds = Seconds("0s")
    """When that ends the run (status 93); ``0s``: never."""


class Advice(NamedTuple):
    """A rule of the report's advice that is changed, by its name.

    With a name that hpcml does not have it is a rule more, which needs ``figure``, a limit and ``sentence``.
    """

    figure: str = ""
    """The figure that the rule looks at."""
    above: str = ""
    """A number: it is said where the figure is above."""
    below: str = ""
    """A number: it is said where the figure is below."""
    sentence: str = ""
    """What is said; ``{figure}`` stands for a figure's value."""
    off: bool = False
    """Take the rule away."""


class Report(NamedTuple):
    """What a run measures of itself, and what its report advises."""

    sample_every: Seconds = Seconds("5s")
    """Time between two samples of what a node uses, after the first minute; ``0s``: none."""
    advice: dict[str, Advice] = {}


class Paths(NamedTuple):
    """Where runs are kept, and where workers spill."""

    runs: str = "~/.hpcml/runs"
    """The folder where runs are kept, on a file system that all nodes share; ``~`` and ``$VARIABLES`` are replaced."""
    scratch: str = ""
    """The folder where Dask spills, local to each node; ``$VARIABLES`` are replaced there, ``~`` is not; empty: Dask's
    own ``temporary-directory``, else ``TMPDIR``, else ``/tmp``. A folder in which others could replace what is yours
    is refused.
    """
    trust: tuple[str, ...] = ()
    """Accounts, and groups as ``@NAME``, that may replace what is in the folders above the runs."""


class Login(NamedTuple):
    """How the machine is reached from a laptop, by the OpenSSH program and the user's own ssh configuration."""

    host: str = ""
    """The login node, as ssh is called with it."""
    hosts: tuple[str, ...] = ()
    """The login nodes one by one, where ``login.host`` leads to any of them: ``hpcml tunnel`` on one of them prints
    commands that name it.
    """
    hpcml: str = "hpcml"
    """The command there, with options of its own if it needs any."""
    renew: str = ""
    """What you type to get a new certificate."""
    route: str = "auto"
    """The way to a node."""
    logins: int = 5
    """New logins per hour, at most."""
    control: str = "~/.hpcml/cm"
    """The folder of the control sockets, yours alone; the path must be short."""


class Code(NamedTuple):
    """The copy of the script's folder that each run takes."""

    snapshot: str = "folder"
    """The script with the small files around it; the script alone; no copy: the script runs where it lies, with the
    modules there.
    """
    max_file: Memory = Memory("1M")
    """Larger files are linked."""
    max_total: Memory = Memory("50M")
    """What may be copied in all; each folder is copied whole or linked whole."""
    max_files: int = 2000
    """The same for the number of files; and as many links at most."""


class Cost(NamedTuple):
    """What a job is charged, told before the submission; without these keys nothing is asked."""

    unit: str = ""
    """The unit of the charge, as ``core-h``; empty: ``billing-h``."""
    weights: dict[str, str] = {}
    """What an hour of each resource costs, written as Slurm's ``TRESBillingWeights``: ``cpu``, ``gres/gpu``, ``node``,
    and ``mem`` with a unit (``0.25G``: a quarter for a GiB).
    """
    largest: bool = False
    """The largest weighted resource is charged, not the sum (Slurm's ``PriorityFlags=MAX_TRES``)."""
    budget: tuple[str, ...] = ()
    """The words of the command that tells the grants, as ``["saldo", "-b"]``; that of a project's ``hpcml.toml`` does
    not count.
    """
    budget_row: str = ""
    """A regular expression for the row of an account in its answer: ``{account}`` stands for the name, the groups
    ``total`` and ``used`` for the numbers, in ``cost.unit``.
    """
    ask: bool = False
    """Ask Slurm when the job would start (``sbatch --test-only``), and with ``--dry-run`` how the partition is billed
    (``scontrol show partition``).
    """


class Notes(NamedTuple):
    """What is said at a submission."""

    always: str = ""
    """A note at each submission."""
    nodes: str = ""
    """The same, with several nodes."""
    gpus: str = ""
    """The same, with GPUs."""
    image: str = ""
    """The same, with an image."""


class Fact(NamedTuple):
    """How a value of a profile is known, under its key in quotes or under the key of a table for all values below it.

    All but ``value`` must be there.
    """

    confidence: str = ""
    """``confirmed``: the machine's own answer or log shows it; ``documented``: the site's pages say it; ``reported``:
    users say it, in job scripts and notes; ``guessed``: concluded from something else.
    """
    date: str = ""
    """The source's own day, as ``2026-11-20``, or else the day on which it was read."""
    source: str = ""
    """Who says so, and where."""
    value: str = ""
    """Only of a fact that is no setting, as how long a certificate lives."""


class Site(NamedTuple):
    """A machine, as its profile and the settings over it describe it.

    :func:`hpcml.sites.lookup.load` leaves the ``facts`` that speak of a value in force.
    """

    name: str = ""
    """The site's name; hpcml sets it to the name of the file."""
    description: str = ""
    """One line for ``hpcml site ls``."""
    extends: str = ""
    """The profile whose values count where this one says nothing; ``identify`` and ``description`` are not inherited.
    """
    scheduler: str = "slurm"
    """Whether jobs go to Slurm or run on this machine."""
    repairs: bool = True
    """Whether runs have hpcml's repairs of Dask, RAPIDS, UCX and cloudpickle; ``false``: all of these as released."""
    unsupported: str = ""
    """What hpcml lacks for this machine; each submission is refused with that sentence (status 65)."""
    notes: Notes = Notes()
    identify: Identify = Identify()
    defaults: Defaults = Defaults()
    resources: Resources = Resources()
    slurm: SlurmOptions = SlurmOptions()
    partitions: dict[str, Partition] = {}
    qos: dict[str, Qos] = {}
    runtime: Runtime = Runtime()
    workers: Workers = Workers()
    gpu: Gpu = Gpu()
    network: Network = Network()
    fabric: Fabric = Fabric()
    deadlines: Deadlines = Deadlines()
    report: Report = Report()
    paths: Paths = Paths()
    code: Code = Code()
    cost: Cost = Cost()
    login: Login = Login()
    environment: dict[str, str] = {}
    """Variables that are set in the job, for all roles and the script."""
    facts: dict[str, Fact] = {}

    def doubtful(self, key: str) -> str:
        """Return how a doubtful value is known (``reported``), nothing if it is certain or the user's own."""
        fact = self.facts.get(key)
        return fact.confidence if fact and fact.confidence in DOUBTFUL else ""

    def doubts(self) -> int:
        """Return how many values are only reported or guessed."""
        return sum(fact.confidence in DOUBTFUL for fact in self.facts.values())


# How a fact is known, best first: seen on the machine (its own answer or log), said by the site's pages, said by users
# (job scripts, notes), concluded from something else.
CONFIDENCE = ("confirmed", "documented", "reported", "guessed")
DOUBTFUL = CONFIDENCE[2:]
CHOICES = {
    "scheduler": ("slurm", "local"),
    "slurm.gpu_request": ("gres", "gpus-per-node", "none"),
    "runtime.kind": ("python", "image"),
    "runtime.stage": ("none", "sbcast", "copy"),
    "workers.on_loss": ("continue", "fail"),
    "gpu.cuda": ("any", "12", "13"),
    "gpu.gds": ("auto", "on", "off"),
    "gpu.mode": ("dask", "polars"),
    "gpu.spill_order": ("keep", "lru"),
    "network.protocol": ("auto", "tls", "ucx"),
    "fabric.require": ("none", "warn", "rdma"),
    "login.route": ("auto", "direct", "twohop", "srun"),
    "code.snapshot": ("folder", "script", "none"),
}
