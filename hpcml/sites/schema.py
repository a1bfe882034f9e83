"""What a machine is: the records and the allowed values of a site profile."""

# No `from __future__ import annotations`: layers.build reads the records' annotations. They are NamedTuples because a
# frozen dataclass of ten fields takes 1.9 ms to define, ten times as long, and `hpcml submit` defines 25 records.
from typing import NamedTuple

from hpcml.units import Memory, Seconds, TimeLimit


class Identify(NamedTuple):
    """How a machine is recognised: every line that is given must match.

    ``hostname`` are shell patterns for the host's name, ``environment`` maps variables to patterns, ``command`` must
    be on PATH. ``order`` decides between profiles that match: the lowest is taken.
    """

    hostname: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    command: str = ""
    order: int = 50
    never: bool = False


class Defaults(NamedTuple):
    """What is asked for when the command line does not say."""

    nodes: int = 1
    gpus_per_node: int = 0
    time: TimeLimit = TimeLimit()
    account: str = ""
    partition: str = ""
    qos: str = ""


class Resources(NamedTuple):
    """What one node gives: CPUs and memory to ask for (empty: the whole node, with ``exclusive``)."""

    cpus_per_node: int = 0
    memory_per_node: Memory = Memory()
    exclusive: bool = False


class SlurmOptions(NamedTuple):
    """How this Slurm wants to be asked.

    ``gpu_request`` is ``gres``, ``gpus-per-node`` or ``none``; ``gpu_type`` goes between (``gpu:a100:4``).
    ``extra`` are directives added as they stand; ``remove`` are options left out (``--mem``). ``signal_lead`` is how
    long before the time limit the script is told. ``export`` is sbatch's ``--export``. ``timeout`` is how long
    sbatch may take to answer. ``exclude_failed``: nodes that failed within a day are left out.
    """

    gpu_request: str = "gpus-per-node"
    gpu_type: str = ""
    extra: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    signal_lead: Seconds = Seconds("60s")
    export: str = "ALL"
    account_required: bool = False
    srun_extra: tuple[str, ...] = ()
    timeout: Seconds = Seconds("60s")
    exclude_failed: bool = False


class Partition(NamedTuple):
    """A partition's limits; an empty one is not checked.

    ``needs_gpus``: a job that asks for none is refused there. ``budget`` is the command that tells its grants, where
    it is another than ``cost.budget``.
    """

    min_nodes: int = 0
    max_nodes: int = 0
    max_time: TimeLimit = TimeLimit()
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    memory_per_node: Memory = Memory()
    needs_gpus: bool = False
    qos: str = ""
    budget: tuple[str, ...] = ()


class Qos(NamedTuple):
    """A QoS that a job may ask for, and its limits, which stand in the place of its partition's; 0 or empty is none.

    ``partitions`` are those that it is for; of all if empty. ``max_jobs`` is how many jobs of one user may be
    submitted at once. ``without_gpus``: its jobs get nodes that have none.
    """

    description: str = ""
    partitions: tuple[str, ...] = ()
    min_nodes: int = 0
    max_nodes: int = 0
    max_time: TimeLimit = TimeLimit()
    max_jobs: int = 0
    without_gpus: bool = False


class Runtime(NamedTuple):
    """What the roles run in: a Python environment (``python``) or an image (``image``).

    ``python`` is the interpreter's path on the nodes; empty means the one that runs hpcml. ``modules`` are loaded
    and ``setup`` lines run first, in bash. ``container`` is the program that runs images, ``options`` are more of its
    own, and ``binds`` what the inside sees beside the run's directory and the folder of the submission. With an
    image, ``python`` is the interpreter in it. ``stage`` is how it is copied to the nodes' own disks (none, sbcast,
    copy), ``stage_to`` the folder there.
    """

    kind: str = "python"
    python: str = ""
    image: str = ""
    container: str = "apptainer"
    binds: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stage: str = "none"
    stage_to: str = ""
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


class Workers(NamedTuple):
    """The workers: how many on a node, threads and memory of each (empty: an equal share of the node).

    With GPUs there is one worker per GPU, of one thread unless ``threads`` says more. ``resources`` are Dask's, as
    ``GPU=1``. ``restarts`` is how often one worker may die before it counts as lost; ``on_loss`` is ``continue``
    (Dask repeats the lost work on the others) or ``fail``.
    """

    per_node: int = 1
    threads: int = 0
    memory_limit: Memory = Memory()
    resources: tuple[str, ...] = ()
    restarts: int = 3
    on_loss: str = "continue"


class Gpu(NamedTuple):
    """GPU workers: dask-cuda's options by their names, and the CUDA that the site's driver can run (``12``, ``13``).

    Amounts of memory are sizes (``40G``), fractions of the GPU's memory (``0.8``), ``none``, and for the pool
    ``auto``. ``spill_pinned`` is how much host memory a worker may pin for what leaves its GPU, ``spill_order`` what
    leaves first. ``gds`` is how cuDF reads files: by GPUDirect Storage (``on``), by way of the host (``off``), or as
    KvikIO finds the machine (``auto``).
    """

    cuda: str = "any"
    rmm_pool_size: str = "auto"
    rmm_maximum_pool_size: str = "none"
    rmm_managed_memory: bool = False
    rmm_async: bool = False
    rmm_release_threshold: str = "none"
    rmm_allocator_libs: tuple[str, ...] = ("cupy",)
    rmm_log_directory: str = ""
    rmm_track_allocations: bool = False
    device_memory_limit: str = "0.8"
    spill_pinned: str = "auto"
    spill_order: str = "keep"
    cudf_spill: bool = False
    cudf_spill_stats: int = 0
    gds: str = "auto"
    pre_import: tuple[str, ...] = ()


class Network(NamedTuple):
    """The fabric that Dask's comms use.

    ``interface`` by name, else the node's own rule; ``protocol`` is auto, tls or ucx. ``nic_affinity``: auto and
    off leave the choice of adapters to UCX, pcie ties a worker to those nearest to its GPU in the PCIe tree.
    ``adapters`` are the names of a node's RDMA adapters; unknown if empty.
    """

    interface: str = ""
    protocol: str = "auto"
    nic_affinity: str = "auto"
    adapters: tuple[str, ...] = ()


class Fabric(NamedTuple):
    """The check of the interconnect before the script: ``require`` none (not made), warn or rdma; with NCCL or not."""

    require: str = "warn"
    nccl: bool = True


class Deadlines(NamedTuple):
    """How long each phase may take, from the moment the one before it ended.

    While the script runs: ``answer`` is how long scheduler and supervisor may not answer each other; ``connect_notice``
    and ``idle_notice`` are when it is said that the script has not connected, and that nothing uses the cluster;
    ``idle`` is when that ends the run. For these three 0 is never.
    """

    stage: Seconds = Seconds("300s")
    scheduler: Seconds = Seconds("60s")
    workers: Seconds = Seconds("120s")
    fabric: Seconds = Seconds("30s")
    driver_grace: Seconds = Seconds("20s")
    teardown: Seconds = Seconds("10s")
    answer: Seconds = Seconds("10m")
    connect_notice: Seconds = Seconds("60s")
    idle_notice: Seconds = Seconds("10m")
    idle: Seconds = Seconds("0s")


class Advice(NamedTuple):
    """A rule of the report's advice: its limits, ``above`` or ``below`` (numbers); ``off`` takes it away.

    With a name that hpcml does not have it is a rule more, which needs ``figure``, a limit and ``sentence``.
    """

    figure: str = ""
    above: str = ""
    below: str = ""
    sentence: str = ""
    off: bool = False


class Report(NamedTuple):
    """What a run measures of itself: ``sample_every`` is the time between two samples of a node; 0 is none.

    ``advice`` are changes of its report's rules by their names.
    """

    sample_every: Seconds = Seconds("5s")
    advice: dict[str, Advice] = {}


class Paths(NamedTuple):
    """Where runs are kept (shared by all nodes) and where scratch lies (local to each; empty: TMPDIR or /tmp).

    ``trust`` are accounts, and groups as ``@NAME``, that may replace what lies in the folders above the runs.
    """

    runs: str = "~/.hpcml/runs"
    scratch: str = ""
    trust: tuple[str, ...] = ()


class Login(NamedTuple):
    """How the machine is reached from a laptop, by the OpenSSH program and the user's own ssh configuration.

    ``host`` is the login node as ssh is called with it, ``hosts`` are the login nodes one by one where ``host`` stands
    for several, ``hpcml`` is the command there. ``renew`` is what the user types
    to get a new certificate. ``route`` is how a node is reached: auto tries direct (the laptop is let in by the node),
    twohop (only the login node is) and srun (nobody is: through a job step). ``logins`` is how many new logins per hour
    are made without asking, and at most. ``control`` is the folder of the control sockets.
    """

    host: str = ""
    hosts: tuple[str, ...] = ()
    hpcml: str = "hpcml"
    renew: str = ""
    route: str = "auto"
    logins: int = 5
    control: str = "~/.hpcml/cm"


class Code(NamedTuple):
    """The copy of the script's folder: ``folder``, ``script`` or ``none``, the largest file, sum and number copied."""

    snapshot: str = "folder"
    max_file: Memory = Memory("1M")
    max_total: Memory = Memory("50M")
    max_files: int = 2000


class Cost(NamedTuple):
    """What a job is charged, and what is asked about that before a submission.

    ``weights`` are for an hour of each resource, as in Slurm's TRESBillingWeights; ``largest``: the largest weighted
    resource counts, not the sum. ``unit`` is the name of what they give. ``budget`` is the command that tells the
    grants, ``budget_row`` the regular expression of an account's row. ``ask``: Slurm is asked when the job may start.
    """

    unit: str = ""
    weights: dict[str, str] = {}
    largest: bool = False
    budget: tuple[str, ...] = ()
    budget_row: str = ""
    ask: bool = False


class Notes(NamedTuple):
    """What is said at a submission: at each, at one of several nodes, at one with GPUs, at one with an image."""

    always: str = ""
    nodes: str = ""
    gpus: str = ""
    image: str = ""


class Fact(NamedTuple):
    """How a value of a profile is known: ``confidence`` of ``CONFIDENCE``, the day and place that say it.

    ``value`` is only of a fact that is no setting, as the lifetime of a certificate.
    """

    confidence: str = ""
    date: str = ""
    source: str = ""
    value: str = ""


class Site(NamedTuple):
    """A machine, as its profile and the settings over it describe it.

    ``unsupported`` is what hpcml lacks for it: submissions are refused with that sentence. ``facts`` are by dotted key;
    :func:`hpcml.sites.lookup.load` leaves those that speak of a value in force.
    """

    name: str = ""
    description: str = ""
    extends: str = ""
    scheduler: str = "slurm"
    unsupported: str = ""
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
    facts: dict[str, Fact] = {}


# How a fact is known, best first: seen on the machine (its own answer or log), said by the site's pages, said by users
# (job scripts, notes), concluded from something else.
CONFIDENCE = ("confirmed", "documented", "reported", "guessed")
CHOICES = {
    "scheduler": ("slurm", "local"),
    "slurm.gpu_request": ("gres", "gpus-per-node", "none"),
    "runtime.kind": ("python", "image"),
    "runtime.stage": ("none", "sbcast", "copy"),
    "workers.on_loss": ("continue", "fail"),
    "gpu.cuda": ("any", "12", "13"),
    "gpu.gds": ("auto", "on", "off"),
    "gpu.spill_order": ("keep", "lru"),
    "network.protocol": ("auto", "tls", "ucx"),
    "network.nic_affinity": ("auto", "pcie", "off"),
    "fabric.require": ("none", "warn", "rdma"),
    "login.route": ("auto", "direct", "twohop", "srun"),
    "code.snapshot": ("folder", "script", "none"),
}
