"""What a machine is: the records and the allowed values of a site profile."""

# No `from __future__ import annotations`: layers.build reads the records' annotations. They are NamedTuples because a
# frozen dataclass of ten fields takes 1.9 ms to define, ten times as long, and `hpcml submit` defines 25 records.
from typing import NamedTuple

from hpcml.site_records import Deadlines, Interconnect, Network
from hpcml.units import Memory, Seconds, TimeLimit


class Identify(NamedTuple):
    """How hpcml recognizes a machine: ``hostname``, ``environment`` and ``command`` must all match if they are set."""

    hostname: tuple[str, ...] = ()
    """Shell patterns: at least one pattern must match the machine's host name."""
    environment: dict[str, str] = {}
    """Environment variables and their shell patterns: each variable's value must match its pattern."""
    command: str = ""
    """A program that must be on PATH."""
    order: int = 50
    """If several profiles match, hpcml uses the one with the smallest ``order``."""
    never: bool = False
    """Use this profile only if ``--site`` names it."""


class Defaults(NamedTuple):
    """What a run requests if the command line sets no other value."""

    nodes: int = 1
    """The default number of nodes."""
    gpus_per_node: int = 0
    """The default number of GPUs per node. If no file sets the key, ``hpcml submit`` requests all GPUs of each node for
    a script that uses GPU libraries.
    """
    time: TimeLimit = TimeLimit()
    """The default time limit; empty: the partition's ``DefaultTime``, or no limit on the local site.
    """
    account: str = ""
    """The default Slurm account."""
    partition: str = ""
    """The default partition. hpcml chooses another partition and prints a note if the request does not fit, or if this
    partition's nodes have GPUs and the job requests no GPUs.
    """
    qos: str = ""
    """The default Slurm QoS."""


class Resources(NamedTuple):
    """What a run requests on each node."""

    cpus_per_node: int = 0
    """CPUs to request per node; 0: the profile's value for the partition, else Slurm's default. If the profile lists no
    partitions, set it to the number of CPUs of a node. If ``resources.node_gpus`` is set, a job for only some of a
    node's GPUs requests the same fraction of the node's CPUs.
    """
    memory_per_node: Memory = Memory()
    """Memory to request per node; empty: the profile's value for the partition, else Slurm's default. If the profile
    lists no partitions, this key is the memory of a node. A job for only some of a node's GPUs, or without GPUs for
    some of its CPUs, requests the same fraction of the node's memory.
    """
    node_gpus: int = 0
    """The number of GPUs in a node, for a profile without partitions; 0: unknown. hpcml ignores this number for a QoS
    with ``without_gpus = true``.
    """
    exclusive: bool = False
    """Request whole nodes (``--exclusive``)."""


class SlurmOptions(NamedTuple):
    """How hpcml requests resources from Slurm on this machine."""

    gpu_request: str = "gpus-per-node"
    """The Slurm option for GPUs: ``--gres=gpu:N``, ``--gpus-per-node=N``, or no option."""
    gpu_type: str = ""
    """The GPU type in a request: with ``a100``, hpcml requests 4 GPUs as ``gpu:a100:4``."""
    extra: tuple[str, ...] = ()
    """More sbatch options, such as ``--constraint=gpu``. Each of these options replaces hpcml's option of the same
    name. hpcml refuses ``--comment`` and ``--array``.
    """
    remove: tuple[str, ...] = ()
    """Options that hpcml must not pass to sbatch, such as ``--mem``."""
    signal_lead: Seconds = Seconds("60s")
    """How long before the time limit hpcml warns the script; at most half of the time limit."""
    export: str = "ALL"
    """The value of sbatch's ``--export``."""
    account_required: bool = False
    """Refuse a job without an account."""
    srun_extra: tuple[str, ...] = ()
    """Options that hpcml adds to each ``srun``."""
    timeout: Seconds = Seconds("60s")
    """How long hpcml waits for sbatch."""
    exclude_failed: bool = False
    """Exclude nodes whose faults ended one of your runs in the last 24 hours. ``--exclude`` or ``--nodelist`` on the
    command line replaces this exclusion.
    """


class NodeKind(NamedTuple):
    """Nodes of one kind, in a partition that has several kinds. You choose the kinds' names.

    A job without GPUs is for the kinds without GPUs, if there is one that has enough CPUs and memory. If several kinds
    can serve a request, its default CPUs and memory are those of the smallest.
    """

    max_nodes: int = 0
    """The number of nodes of this kind, or the largest number of them for one job."""
    gpus_per_node: int = 0
    """The number of GPUs in each node."""
    gpu_type: str = ""
    """The type of these GPUs, as a request names it. A node with GPUs of two types is in two kinds."""
    cpus_per_node: int = 0
    """The number of CPUs in each node."""
    memory_per_node: Memory = Memory()
    """The memory of each node."""


class Partition(NamedTuple):
    """A Slurm partition and its limits. hpcml does not check a limit that is 0 or empty."""

    min_nodes: int = 0
    """The smallest number of nodes for one job."""
    max_nodes: int = 0
    """The largest number of nodes for one job."""
    max_time: TimeLimit = TimeLimit()
    """The longest time limit."""
    gpus_per_node: int = 0
    """The number of GPUs in each node."""
    cpus_per_node: int = 0
    """The number of CPUs in each node. By default, a job requests all of them. If the job uses only some of a node's
    GPUs, it requests the same fraction of the node's CPUs.
    """
    memory_per_node: Memory = Memory()
    """The memory of each node. By default, a job requests all of it. If the job uses only some of a node's GPUs, or
    without GPUs only some of its CPUs, it requests the same fraction of the node's memory.
    """
    whole_nodes: bool = False
    """Slurm allocates whole nodes to each job, even without ``--exclusive``. By default, hpcml then requests all CPUs
    and all memory of each node.
    """
    needs_gpus: bool = False
    """The partition accepts only jobs with GPUs."""
    account: str = ""
    """The account for jobs in this partition, instead of ``defaults.account``. ``--account`` replaces both. If
    your settings set ``defaults.account``, the accounts of the profile's partitions have no effect.
    """
    qos: str = ""
    """The QoS for jobs in this partition, instead of ``defaults.qos``. ``--qos`` replaces both. If your settings set
    ``defaults.qos``, the QoS of the profile's partitions have no effect.
    """
    gpu_type: str = ""
    """The GPU type in a request, instead of ``slurm.gpu_type``."""
    constraint: str = ""
    """The features that a node must have (``--constraint``)."""
    extra: tuple[str, ...] = ()
    """More sbatch options for jobs in this partition. They replace options of the same name in ``slurm.extra``."""
    remove: tuple[str, ...] = ()
    """Options that hpcml must not pass to sbatch for jobs in this partition, in addition to ``slurm.remove``."""
    nodes: dict[str, NodeKind] = {}
    budget: tuple[str, ...] = ()
    """The command that lists the granted compute time for this partition, if it differs from ``cost.budget``. Project
    files and scripts cannot set this key.
    """


class Qos(NamedTuple):
    """A QoS that a job can request with ``--qos``. The limits of a QoS replace the limits of the partition.

    hpcml refuses a request beyond a limit, and names a partition or QoS that would accept the request. If
    ``[facts]`` marks the limit as ``reported`` or ``guessed``, hpcml only prints a note, and Slurm decides.
    """

    description: str = ""
    """The purpose of the QoS."""
    partitions: tuple[str, ...] = ()
    """The partitions in which jobs can use the QoS; empty: all partitions."""
    min_nodes: int = 0
    """The smallest number of nodes for one job."""
    max_nodes: int = 0
    """The largest number of nodes for one job."""
    max_time: TimeLimit = TimeLimit()
    """The longest time limit."""
    max_jobs: int = 0
    """The largest number of submitted jobs per user. hpcml shows this limit, but does not check it."""
    whole_nodes: bool = False
    """Slurm allocates whole nodes to each job, even without ``--exclusive``. By default, hpcml then requests all CPUs
    and all memory of each node.
    """
    without_gpus: bool = False
    """Jobs with this QoS run on nodes without GPUs. ``hpcml doctor`` warns if this QoS is the default."""


class Runtime(NamedTuple):
    """The environment of the run's processes."""

    kind: str = "python"
    """Where a run's processes run. ``python``: directly on the nodes. ``image``: in the image ``runtime.image``.
    The option ``--image`` sets ``image`` for one run.
    """
    python: str = ""
    """The absolute path of Python on the nodes, without ``~`` and ``$VARIABLE``. Empty: the Python that runs hpcml.
    If ``kind`` is ``image``, the path is in the image; empty: ``python3``.
    """
    image: str = ""
    """The absolute path of the image, on a file system that all nodes share."""
    container: str = "apptainer"
    """The program that runs images: ``apptainer``, ``singularity``, or a program's path."""
    binds: tuple[str, ...] = ()
    """More paths to mount in the image, such as ``"/data"``, ``"/data:/inside"`` or ``"/data:/inside:ro"``. hpcml
    always mounts the run's directory, the folder you submitted from, ``/tmp`` and ``paths.scratch``.
    """
    options: tuple[str, ...] = ()
    """More options for the container program, such as ``--writable-tmpfs``."""
    stage: str = "none"
    """Copy the image to each node's own disk before the run's processes start. ``none``: do not copy. ``sbcast``: Slurm
    reads the image once and sends it to all nodes. ``copy``: each node reads the image itself.
    """
    stage_to: str = ""
    """The folder for the image's copy on every node. In this path, ``$VARIABLES`` have the values of the first node.
    Empty: ``paths.scratch``, else ``TMPDIR``, else ``/tmp``.
    """
    modules: tuple[str, ...] = ()
    """Modules that the job loads (``module load``), in this order, after ``setup``."""
    setup: tuple[str, ...] = ()
    """Lines of bash that the job runs first. If a line needs a command or a file that does not exist, the run ends
    before its processes start.
    """
    setup_errors: str = "warn"
    """What happens if a line of ``setup`` fails in another way. ``warn``: the run continues and shows a warning.
    ``end``: the run ends. A line with ``|| true`` never fails.
    """


class Workers(NamedTuple):
    """The Dask workers."""

    per_node: int = 0
    """Dask workers per node. With ``--gpus-per-node`` there is one worker per GPU instead. 0: as Dask's
    ``LocalCluster`` divides a machine, from the CPUs that the job requests of each node (16 CPUs: 4 workers with 4
    threads), but no worker with less than 2 GiB of memory. If the CPUs are unknown, and for the local site, sweeps,
    elastic clusters and ``hpcml interconnect``: one worker.
    """
    threads: int = 0
    """Threads per worker; 0: an equal share of the node's CPUs, or one thread per GPU worker. If ``workers.per_node``
    is 0, there are as many workers as these threads allow.
    """
    memory_limit: Memory = Memory()
    """Host memory of each worker; empty: an equal share of the job's memory on the node. hpcml refuses a
    limit that is too small to start a worker (at least 80 MiB).
    """
    resources: tuple[str, ...] = ()
    """Dask's worker resources, each as ``NAME=NUMBER``, such as ``GPU=1``."""
    restarts: int = 3
    """How many times hpcml restarts a worker before the worker counts as lost; likewise the process that starts a
    node's workers.
    """
    restart_on_cuda_error: bool = True
    """Restart a worker if one of its tasks raises a CUDA error after which the process cannot use its GPU, such as
    ``cudaErrorIllegalAddress`` or ``cudaErrorAssert``. The error reaches the script, and Dask does not
    repeat this task. Dask repeats the worker's other work. The restart counts for ``workers.restarts``.
    """
    on_loss: str = "continue"
    """What happens when a worker is lost. ``continue``: the run continues while at least one worker remains. ``fail``:
    the run ends with status 82.
    """
    start: str = "auto"
    """When the Dask cluster starts. ``early``: before the script. ``late``: when the script opens its first Dask
    client. ``auto``: ``early`` if the command, the script or a module beside it names Dask, otherwise ``late``. It is
    always ``early`` for notebooks, JupyterLab, sweeps, ``--profile`` and ``--own-clusters``.
    """


class Gpu(NamedTuple):
    """Settings of GPU workers. Most keys have the names of dask-cuda's options.

    An amount of memory is a size (``40G``), a fraction of the GPU's memory (``0.8``) or ``none``.
    """

    cuda: str = "any"
    """The CUDA version that the machine's driver supports. hpcml warns if a run's RAPIDS is built for another
    version.
    """
    rmm_pool_size: str = "auto"
    """The size of RMM's memory pool. ``auto``: nearly all memory of the GPU, but less on the first GPU of the first
    node, because the script and the Dask scheduler use this GPU too.
    """
    rmm_maximum_pool_size: str = "none"
    """The maximum size of RMM's memory pool."""
    rmm_managed_memory: bool = False
    """Use CUDA's managed memory. cuda_ipc cannot transfer data in managed memory."""
    rmm_async: bool = False
    """Use CUDA's asynchronous allocator. cuda_ipc cannot transfer data that this allocator allocated."""
    rmm_release_threshold: str = "none"
    """With ``gpu.rmm_async``: a worker returns unused GPU memory if its memory pool is larger than this size."""
    rmm_allocator_libs: tuple[str, ...] = ("cupy",)
    """Libraries that allocate from RMM if they are installed: ``cupy``, ``torch``."""
    rmm_log_directory: str = ""
    """The folder for each worker's log of RMM allocations. The path may contain ``$VARIABLES`` of the node."""
    rmm_track_allocations: bool = False
    """Show in Dask's dashboard how much memory RMM has allocated. This slows down each allocation."""
    device_memory_limit: str = "0.8"
    """The amount of GPU data above which Dask spills to host memory; ``none``: never."""
    spill_pinned: str = "auto"
    """The host memory that each worker may pin for data spilled from its GPU. ``auto``: 60 % of the worker's memory.
    ``none``: the worker allocates host memory for each spilled object without pinning, as in dask-cuda.
    """
    spill_order: str = "keep"
    """The order of spilling. ``keep``: if a program repeatedly reads more data than fits on the GPU, a fixed part
    of the data stays on the GPU. ``lru``: Dask spills the least recently used data first, as in dask-cuda.
    """
    cudf_spill: bool = False
    """Use cuDF's own spilling."""
    cudf_spill_stats: int = 0
    """With ``gpu.cudf_spill``: the level of cuDF's spilling statistics."""
    gds: str = "auto"
    """How cuDF reads files. ``on``: with GPUDirect Storage (``KVIKIO_COMPAT_MODE=OFF``). Then reading fails or
    hangs if cuFile or the file system does not support GPUDirect Storage. ``off``: through host memory. ``auto``:
    KvikIO decides.
    """
    pre_import: tuple[str, ...] = ()
    """Modules that each node imports once, before it forks the workers."""


class Advice(NamedTuple):
    """One rule for the report's advice. ``NAME`` is the name of an hpcml rule to change, or of a new rule.

    A new rule needs ``figure``, ``sentence``, and ``above`` or ``below``.
    """

    figure: str = ""
    """The measured value that the rule checks, such as ``gpu_use``."""
    above: str = ""
    """Show the advice if the measured value is larger than this number."""
    below: str = ""
    """Show the advice if the measured value is smaller than this number."""
    sentence: str = ""
    """The text of the advice. hpcml replaces a name in braces, such as ``{energy_kwh}``, with the measured value."""
    off: bool = False
    """Switch this rule off."""


class Report(NamedTuple):
    """What hpcml measures during a run, and which advice the report of the run gives."""

    sample_every: Seconds = Seconds("5s")
    """The time between two samples of a node; in a run's first minute at most one second. ``0s``: no samples."""
    advice: dict[str, Advice] = {}


class Paths(NamedTuple):
    """Where hpcml keeps runs, and where workers spill."""

    runs: str = "~/.hpcml/runs"
    """The runs folder, on a file system that all nodes share. The path may contain ``~`` and ``$VARIABLES``."""
    scratch: str = ""
    """The node-local folder for spilled data. The path may contain ``$VARIABLES`` of the node, but not ``~``. Empty:
    Dask's ``temporary-directory``, else ``TMPDIR``, else ``/tmp``. hpcml refuses a folder if other users can replace
    its contents.
    """
    trust: tuple[str, ...] = ()
    """Users and groups (``@NAME``) that you trust: they may replace the contents of the runs folder or of a folder
    above it. Project files and scripts cannot set this key.
    """


class Login(NamedTuple):
    """How hpcml on a laptop reaches the machine, with OpenSSH and your ssh configuration.

    Project files and scripts cannot set these keys.
    """

    host: str = ""
    """The login node's name, as in ``ssh HOST``."""
    hosts: tuple[str, ...] = ()
    """The names of all login nodes behind ``login.host``. On any of these nodes, ``hpcml tunnel`` prints commands
    with that node's name.
    """
    hpcml: str = "hpcml"
    """The command that starts hpcml on the login node; it may contain options."""
    renew: str = ""
    """The command that requests a new ssh certificate."""
    route: str = "auto"
    """How a laptop reaches a compute node. ``direct``: the laptop's ssh logs in to the compute node, with the login
    node as jump host. ``twohop``: a second ssh, from the login node. ``srun``: ssh to an sshd in a job step. ``auto``:
    the first of these routes that works.
    """
    logins: int = 5
    """The largest number of new ssh logins per hour."""
    control: str = "~/.hpcml/cm"
    """The folder of ssh's control sockets. Its path must be short, and only you may have access to this folder."""


class Code(NamedTuple):
    """Each run's copy of the script's folder."""

    snapshot: str = "folder"
    """``folder``: copy the script and the small files of its folder. ``script``: copy only the script. ``none``: the
    run uses the original files.
    """
    max_file: Memory = Memory("1M")
    """hpcml does not copy larger files: the copy has links to these files instead."""
    max_total: Memory = Memory("50M")
    """The largest size of all copied files together. A file or a whole folder that does not fit becomes a link."""
    max_files: int = 2000
    """The largest number of copied files; further files become links. The number of links has the same limit."""


class Cost(NamedTuple):
    """What a job costs. If these keys are set, hpcml shows the cost before the submission."""

    unit: str = ""
    """The unit of the charge, such as ``core-h``; empty: ``billing-h``."""
    weights: dict[str, str] = {}
    """The hourly price of each resource, as in Slurm's ``TRESBillingWeights``: ``cpu``, ``gres/gpu``, ``node``, and
    ``mem`` with a unit (``0.25G``: 0.25 per GiB).
    """
    largest: bool = False
    """The cost is the price of the most expensive resource, not the sum (Slurm's ``PriorityFlags=MAX_TRES``)."""
    budget: tuple[str, ...] = ()
    """The command that lists granted compute time, such as ``["saldo", "-b"]``. Project files and scripts cannot set
    this key.
    """
    budget_row: str = ""
    """A regular expression for an account's row in the output of ``cost.budget``. ``{account}`` is the account's name.
    The named groups ``total`` and ``used`` match numbers in ``cost.unit``. Project files and scripts cannot set this
    key.
    """
    ask: bool = False
    """Ask Slurm when the job would start (``sbatch --test-only``). With ``--dry-run``, also ask for the partition's
    charges (``scontrol show partition``).
    """


class Notes(NamedTuple):
    """Notes that hpcml prints at a submission."""

    always: str = ""
    """A note for each submission."""
    nodes: str = ""
    """A note for runs on several nodes."""
    gpus: str = ""
    """A note for runs with GPUs."""
    image: str = ""
    """A note for runs with an image."""


class Fact(NamedTuple):
    """The source of one value, or of all values of a table. ``NAME`` is the key of the value or table, in quotes.

    All keys except ``value`` are required.
    """

    confidence: str = ""
    """How certain the value is. ``confirmed``: the machine itself shows the value. ``documented``: from the site's
    pages. ``reported``: from users' job scripts and notes. ``guessed``: derived from other values.
    """
    date: str = ""
    """The date of the source, as ``2026-11-20``, or the day on which you read the source."""
    source: str = ""
    """Where the value comes from: a page, a command or a person."""
    value: str = ""
    """The value, if the profile has no key for it, for example the lifetime of a certificate."""


class Repairs(NamedTuple):
    """Which known errors of Dask, RAPIDS, UCX and cloudpickle hpcml corrects during a run.

    ``repairs = false`` sets all keys to false. A repair is also off if the installed version of its library differs
    from the tested versions. `docs/upstream/README.md` lists these versions.
    """

    finder: bool = True
    """Prevent a deadlock of two threads that import parts of Dask (rapids-dask-dependency)."""
    file_names: bool = True
    """Show file and line in tracebacks of tasks (cloudpickle)."""
    closing: bool = True
    """Close large Dask clusters faster (distributed)."""
    switching: bool = True
    """Receive large data faster beside tasks that compute in Python (distributed)."""
    spilling: bool = True
    """Spill GPU data to pinned host memory, and keep a part of the data on the GPU (dask-cuda). If ``false``,
    ``gpu.spill_pinned`` and ``gpu.spill_order`` have no effect.
    """
    dead_worker_memory: bool = True
    """Release the GPU memory of a killed worker on the other workers of its node (UCX)."""


class Site(NamedTuple):
    """A machine, as its profile and the settings over it describe it.

    :func:`hpcml.sites.lookup.load` leaves the ``facts`` that speak of a value in force.
    """

    name: str = ""
    """The site's name; hpcml sets this key to the name of the profile's file without ``.toml``."""
    description: str = ""
    """One line of text that ``hpcml site ls`` shows."""
    extends: str = ""
    """The name of another profile. If this profile does not set a value, the other profile's value applies, except for
    ``identify`` and ``description``.
    """
    scheduler: str = "slurm"
    """``slurm``: hpcml submits jobs to Slurm. ``local``: hpcml runs jobs on this machine."""
    unsupported: str = ""
    """The reason why hpcml does not work on this machine. hpcml then refuses each submission with this sentence
    (status 65).
    """
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
    interconnect: Interconnect = Interconnect()
    deadlines: Deadlines = Deadlines()
    repairs: Repairs = Repairs()
    report: Report = Report()
    paths: Paths = Paths()
    code: Code = Code()
    cost: Cost = Cost()
    login: Login = Login()
    environment: dict[str, str] = {}
    """Environment variables for all processes of the job."""
    facts: dict[str, Fact] = {}

    def doubtful(self, key: str) -> str:
        """Return the confidence in a doubtful value (``reported``), nothing if it is certain or the user's own."""
        fact = self.facts.get(key)
        return fact.confidence if fact and fact.confidence in DOUBTFUL else ""

    def doubts(self) -> int:
        """Return the number of reported or guessed values: a fact without a date is not the profile's."""
        return sum(fact.confidence in DOUBTFUL and bool(fact.date) for fact in self.facts.values())


# How a fact is known, best first: seen on the machine (its own answer or log), said by the site's pages, said by users
# (job scripts, notes), concluded from something else.
CONFIDENCE = ("confirmed", "documented", "reported", "guessed")
DOUBTFUL = CONFIDENCE[2:]
CHOICES = {
    "scheduler": ("slurm", "local"),
    "slurm.gpu_request": ("gres", "gpus-per-node", "none"),
    "runtime.kind": ("python", "image"),
    "runtime.setup_errors": ("warn", "end"),
    "runtime.stage": ("none", "sbcast", "copy"),
    "workers.on_loss": ("continue", "fail"),
    "workers.start": ("auto", "early", "late"),
    "gpu.cuda": ("any", "12", "13"),
    "gpu.gds": ("auto", "on", "off"),
    "gpu.spill_order": ("keep", "lru"),
    "network.protocol": ("auto", "tls", "tcp", "ucx"),
    "interconnect.require": ("none", "warn", "rdma"),
    "login.route": ("auto", "direct", "twohop", "srun"),
    "code.snapshot": ("folder", "script", "none"),
}
