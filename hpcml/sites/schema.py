"""What a machine is: the records and the allowed values of a site profile."""

# No `from __future__ import annotations`: layers.build reads the records' annotations. They are NamedTuples because a
# frozen dataclass of ten fields takes 1.9 ms to define, ten times as long, and `hpcml submit` defines 25 records.
from typing import NamedTuple

from hpcml.site_records import Deadlines, Interconnect, Network
from hpcml.units import Memory, Seconds, TimeLimit


class Identify(NamedTuple):
    """hpcml recognizes a machine if all set keys of ``hostname``, ``environment`` and ``command`` match."""

    hostname: tuple[str, ...] = ()
    """Shell patterns for the machine's host name. At least one pattern must match."""
    environment: dict[str, str] = {}
    """Environment variables and their shell patterns. Each variable's value must match its pattern."""
    command: str = ""
    """A program that must be on PATH."""
    order: int = 50
    """If several profiles match, hpcml uses the profile with the smallest ``order``."""
    never: bool = False
    """If true, hpcml uses this profile only if you set the profile's name with ``--site``."""


class Defaults(NamedTuple):
    """A run requests these values if the command line sets no other values."""

    nodes: int = 1
    """The default number of nodes."""
    gpus_per_node: int = 0
    """The default number of GPUs per node. If no file sets this key, ``hpcml submit`` requests all GPUs of each node
    for a script that uses GPU libraries.
    """
    time: TimeLimit = TimeLimit()
    """The default time limit. An empty value means the partition's ``DefaultTime``, or no limit on the local site."""
    account: str = ""
    """The default Slurm account."""
    partition: str = ""
    """The default partition. If the request does not fit, hpcml chooses another partition and prints a note. hpcml also
    chooses another partition if the partition's nodes have GPUs and the job requests no GPUs.
    """
    qos: str = ""
    """The default Slurm QoS."""


class Resources(NamedTuple):
    """A run requests these resources on each node."""

    cpus_per_node: int = 0
    """The CPUs to request per node. 0 means the profile's value for the partition, or else Slurm's default. If the
    profile lists no partitions, set this key to the number of CPUs of a node. With ``resources.node_gpus``, a job for
    only some of a node's GPUs requests the same fraction of the node's CPUs.
    """
    memory_per_node: Memory = Memory()
    """The memory to request per node. The default is the profile's value for the partition, or else Slurm's default. If
    the profile lists no partitions, this key is the memory of a node. A job for only some of a node's GPUs requests the
    same fraction of the node's memory. For a job without GPUs, the fraction is that of the CPUs, except on whole nodes.
    """
    node_gpus: int = 0
    """The number of GPUs in a node, for a profile without partitions. 0 means that the number is unknown. hpcml ignores
    ``resources.node_gpus`` for a QoS with ``without_gpus = true``.
    """
    exclusive: bool = False
    """If true, hpcml requests whole nodes (``--exclusive``)."""


class SlurmOptions(NamedTuple):
    """hpcml uses these keys to request resources from the site's Slurm."""

    gpu_request: str = "gpus-per-node"
    """The Slurm option for GPUs: ``--gres=gpu:N``, ``--gpus-per-node=N``, or no option."""
    gpu_type: str = ""
    """The GPU type in a request. With ``a100``, hpcml requests 4 GPUs as ``gpu:a100:4``."""
    extra: tuple[str, ...] = ()
    """Additional sbatch options, such as ``--constraint=gpu``. Each additional option replaces hpcml's option of the
    same name. hpcml refuses ``--comment`` and ``--array``.
    """
    remove: tuple[str, ...] = ()
    """Options that hpcml must not pass to sbatch, such as ``--mem``."""
    signal_lead: Seconds = Seconds("60s")
    """The time before the time limit at which hpcml warns the script, at most half of the time limit."""
    export: str = "ALL"
    """The value of sbatch's ``--export``."""
    account_required: bool = False
    """If true, hpcml refuses a job without an account."""
    srun_extra: tuple[str, ...] = ()
    """Options that hpcml adds to each ``srun``."""
    timeout: Seconds = Seconds("60s")
    """The longest time that hpcml waits for sbatch."""
    exclude_failed: bool = False
    """If true, hpcml excludes nodes whose faults ended one of your runs in the last 24 hours. ``--exclude`` or
    ``--nodelist`` on the command line replaces hpcml's list of excluded nodes.
    """


class NodeKind(NamedTuple):
    """The table describes nodes of one kind, in a partition with several kinds. You choose the kinds' names.

    If a kind without GPUs has enough CPUs and memory, hpcml considers only such kinds for a job without GPUs. If
    several kinds can serve a request, the smallest kind sets the job's default CPUs and memory.
    """

    max_nodes: int = 0
    """The number of nodes of this kind, or the largest number of these nodes for one job."""
    gpus_per_node: int = 0
    """The number of GPUs in each node."""
    gpu_type: str = ""
    """The type of the GPUs, as in a request. A node with GPUs of two types belongs to two kinds."""
    cpus_per_node: int = 0
    """The number of CPUs in each node."""
    memory_per_node: Memory = Memory()
    """The memory of each node."""


class Partition(NamedTuple):
    """The table describes a Slurm partition and its limits. hpcml does not check a limit that is 0 or empty."""

    min_nodes: int = 0
    """The smallest number of nodes for one job."""
    max_nodes: int = 0
    """The largest number of nodes for one job."""
    max_time: TimeLimit = TimeLimit()
    """The longest time limit."""
    gpus_per_node: int = 0
    """The number of GPUs in each node."""
    cpus_per_node: int = 0
    """The number of CPUs in each node. By default, a job requests all CPUs of a node. A job for only some of a node's
    GPUs requests the same fraction of the node's CPUs.
    """
    memory_per_node: Memory = Memory()
    """The memory of each node. By default, a job requests all memory of a node. A job for only some of a node's GPUs
    requests the same fraction of the node's memory. For a job without GPUs, the fraction is that of the CPUs, except on
    whole nodes.
    """
    whole_nodes: bool = False
    """If true, Slurm allocates whole nodes to each job, even without ``--exclusive``. By default, hpcml requests all
    CPUs and all memory of whole nodes.
    """
    needs_gpus: bool = False
    """If true, the partition accepts only jobs with GPUs."""
    account: str = ""
    """The account for jobs in this partition, instead of ``defaults.account``. ``--account`` replaces both accounts. If
    your settings set ``defaults.account``, the accounts of the profile's partitions have no effect.
    """
    qos: str = ""
    """The QoS for jobs in this partition, instead of ``defaults.qos``. ``--qos`` replaces both QoS. If your settings
    set ``defaults.qos``, the QoS of the profile's partitions have no effect.
    """
    gpu_type: str = ""
    """The GPU type in a request, instead of ``slurm.gpu_type``."""
    constraint: str = ""
    """The features that a node must have (``--constraint``)."""
    extra: tuple[str, ...] = ()
    """Additional sbatch options for this partition. Each option replaces the same option of ``slurm.extra``."""
    remove: tuple[str, ...] = ()
    """Options that hpcml must not pass to sbatch for jobs in this partition, in addition to ``slurm.remove``."""
    nodes: dict[str, NodeKind] = {}
    budget: tuple[str, ...] = ()
    """The command that lists the granted compute time for this partition, if the command differs from ``cost.budget``.
    Project files and scripts cannot set this key.
    """


class Qos(NamedTuple):
    """The table describes a QoS for ``--qos``. The limits of the QoS replace the limits of the partition.

    hpcml refuses a request beyond a limit. The error names a partition or QoS that would accept the request. If
    ``[facts]`` marks the limit as ``reported`` or ``guessed``, hpcml submits the job and prints a note.
    """

    description: str = ""
    """The purpose of the QoS."""
    partitions: tuple[str, ...] = ()
    """The partitions in which jobs can use the QoS. An empty list means all partitions."""
    min_nodes: int = 0
    """The smallest number of nodes for one job."""
    max_nodes: int = 0
    """The largest number of nodes for one job."""
    max_time: TimeLimit = TimeLimit()
    """The longest time limit."""
    max_jobs: int = 0
    """The largest number of submitted jobs per user. hpcml shows this limit, but does not check the limit."""
    whole_nodes: bool = False
    """If true, Slurm allocates whole nodes to each job, even without ``--exclusive``. By default, hpcml requests all
    CPUs and all memory of whole nodes.
    """
    without_gpus: bool = False
    """If true, jobs with this QoS run on nodes without GPUs. ``hpcml doctor`` warns if this QoS is the default."""


class Runtime(NamedTuple):
    """These keys set the environment of the run's processes."""

    kind: str = "python"
    """The place where a run's processes run. ``python`` means directly on the nodes. ``image`` means in the image
    ``runtime.image``. The option ``--image`` sets ``image`` for one run.
    """
    python: str = ""
    """The absolute path of Python on the nodes, without ``~`` and ``$VARIABLE``. The default is the Python that runs
    hpcml. If ``kind`` is ``image``, the path is in the image, and the default is ``python3``.
    """
    image: str = ""
    """The absolute path of the image, on a file system that all nodes share."""
    container: str = "apptainer"
    """The program that runs images: ``apptainer``, ``singularity``, or a program's path."""
    binds: tuple[str, ...] = ()
    """Additional paths to mount in the image, such as ``"/data"``, ``"/data:/inside"`` or ``"/data:/inside:ro"``. hpcml
    always mounts the run's directory, the folder of the submission, ``/tmp`` and ``paths.scratch``.
    """
    options: tuple[str, ...] = ()
    """Additional options for the container program, such as ``--writable-tmpfs``."""
    stage: str = "none"
    """The copy of the image on each node's own disk. ``none`` means no copy. With ``sbcast``, Slurm reads the image
    once and sends the image to all nodes. With ``copy``, each node reads the image itself.
    """
    stage_to: str = ""
    """The folder for the image's copy on every node. In this path, ``$VARIABLES`` have the values of the first node.
    The default is ``paths.scratch``, else ``TMPDIR``, else ``/tmp``.
    """
    modules: tuple[str, ...] = ()
    """Modules that the job loads (``module load``), in this order, after ``setup``."""
    setup: tuple[str, ...] = ()
    """Lines of bash that the job runs first. If a line uses a command or a file that does not exist, the run ends
    before its processes start.
    """
    setup_errors: str = "warn"
    """The effect of an error in ``setup``, except a missing command or file. With ``warn``, the run continues and shows
    a warning. With ``end``, the run ends. A line with ``|| true`` never fails.
    """


class Workers(NamedTuple):
    """These keys are the settings of the Dask workers."""

    per_node: int = 0
    """The number of Dask workers per node. With ``--gpus-per-node``, hpcml starts one worker per GPU. With 0, hpcml
    divides the job's CPUs of each node like Dask's ``LocalCluster`` (16 CPUs: 4 workers with 4 threads). With 0, each
    worker has at least 2 GiB of memory. If the CPUs are unknown, 0 means one worker. 0 also means one worker for the
    local site, sweeps, elastic clusters and ``hpcml interconnect``.
    """
    threads: int = 0
    """The number of threads per worker. 0 means an equal share of the node's CPUs, or one thread per GPU worker. If
    ``workers.per_node`` is 0, hpcml starts as many workers with ``workers.threads`` threads as a node's CPUs allow.
    """
    memory_limit: Memory = Memory()
    """The host memory of each worker. The default is an equal share of the job's memory on the node. hpcml refuses a
    limit that is too small to start a worker (at least 80 MiB).
    """
    resources: tuple[str, ...] = ()
    """Dask's worker resources, each as ``NAME=NUMBER``, such as ``GPU=1``."""
    restarts: int = 3
    """The number of restarts of a worker before the worker counts as lost. The number also applies to the process that
    starts a node's workers.
    """
    restart_on_cuda_error: bool = True
    """If true, hpcml restarts a worker after a CUDA error that makes the GPU unusable for the worker's process.
    Examples are ``cudaErrorIllegalAddress`` and ``cudaErrorAssert``. The script gets the failed task's error. Dask
    repeats only the worker's other tasks. The restart counts for ``workers.restarts``.
    """
    on_loss: str = "continue"
    """The effect of a lost worker. With ``continue``, the run continues while at least one worker remains. With
    ``fail``, the run ends with status 82.
    """
    start: str = "auto"
    """The time at which the Dask cluster starts. ``early`` means before the script. ``late`` means at the script's
    first Dask client. ``auto`` means ``early`` if the command, the script or a module beside the script names Dask, and
    otherwise ``late``. hpcml always uses ``early`` for notebooks, JupyterLab, sweeps, ``--profile`` and
    ``--own-clusters``.
    """


class Gpu(NamedTuple):
    """These keys are the settings of GPU workers. Most keys have the names of dask-cuda's options.

    An amount of memory is a size (``40G``), a fraction of the GPU's memory (``0.8``) or ``none``.
    """

    cuda: str = "any"
    """The CUDA version that the machine's driver supports. hpcml warns if a run's RAPIDS is built for another
    version.
    """
    rmm_pool_size: str = "auto"
    """The size of RMM's memory pool. ``auto`` means nearly all memory of the GPU, and no pool in a sweep whose code
    does not name Dask. The first node's first GPU has a smaller pool, because the script also uses this GPU.
    """
    rmm_maximum_pool_size: str = "none"
    """The maximum size of RMM's memory pool."""
    rmm_managed_memory: bool = False
    """If true, workers use CUDA's managed memory. cuda_ipc cannot transfer data in managed memory."""
    rmm_async: bool = False
    """If true, workers use CUDA's asynchronous allocator. cuda_ipc cannot transfer data of this allocator."""
    rmm_release_threshold: str = "none"
    """With ``gpu.rmm_async``, a worker returns unused GPU memory if its memory pool is larger than this size."""
    rmm_allocator_libs: tuple[str, ...] = ("cupy",)
    """Libraries that allocate from RMM if they are installed: ``cupy``, ``torch``."""
    rmm_log_directory: str = ""
    """The folder for each worker's log of RMM allocations. The path may contain ``$VARIABLES`` of the node."""
    rmm_track_allocations: bool = False
    """If true, Dask's dashboard shows the memory that RMM has allocated. Each allocation is then slower."""
    device_memory_limit: str = "0.8"
    """The amount of GPU data above which Dask spills to host memory. With ``none``, Dask never spills."""
    spill_pinned: str = "auto"
    """The host memory that each worker may pin for data spilled from its GPU. ``auto`` means 60 % of the worker's
    memory. With ``none``, the worker allocates unpinned host memory for each spilled object, as in dask-cuda.
    """
    spill_order: str = "keep"
    """The order of spilling. With ``keep``, the same part of the data always stays on the GPU. ``keep`` helps programs
    that repeatedly read more data than fits on the GPU. With ``lru``, Dask spills the least recently used data first,
    as in dask-cuda.
    """
    cudf_spill: bool = False
    """If true, cuDF uses its own spilling."""
    cudf_spill_stats: int = 0
    """The level of cuDF's spilling statistics, with ``gpu.cudf_spill``."""
    gds: str = "auto"
    """The way in which cuDF reads files. With ``on``, cuDF uses GPUDirect Storage (``KVIKIO_COMPAT_MODE=OFF``). Reading
    fails or hangs if cuFile or the file system does not support GPUDirect Storage. With ``off``, cuDF reads through
    host memory. With ``auto``, KvikIO chooses the way.
    """
    pre_import: tuple[str, ...] = ()
    """Modules that each node imports once, before hpcml forks the workers."""


class Advice(NamedTuple):
    """The table is a rule for the report's advice. ``NAME`` is the name of an hpcml rule to change, or of a new rule.

    A new rule needs ``figure``, ``sentence``, and ``above`` or ``below``.
    """

    figure: str = ""
    """The measured value that the rule checks, such as ``gpu_use``."""
    above: str = ""
    """The report shows the advice if the measured value is larger than this number."""
    below: str = ""
    """The report shows the advice if the measured value is smaller than this number."""
    sentence: str = ""
    """The text of the advice. hpcml replaces a name in braces, such as ``{energy_kwh}``, with the measured value."""
    off: bool = False
    """If true, the report does not use this rule."""


class Report(NamedTuple):
    """These keys control the samples during a run and the advice in the run's report."""

    sample_every: Seconds = Seconds("5s")
    """The time between two samples of a node, in a run's first minute at most one second. ``0s`` means no samples."""
    advice: dict[str, Advice] = {}


class Paths(NamedTuple):
    """These keys set the folders of runs and of spilled data."""

    runs: str = "~/.hpcml/runs"
    """The runs folder, on a file system that all nodes share. The path may contain ``~`` and ``$VARIABLES``."""
    scratch: str = ""
    """The node-local folder for spilled data. The path may contain ``$VARIABLES`` of the node, but not ``~``. The
    default is Dask's ``temporary-directory``, else ``TMPDIR``, else ``/tmp``. hpcml refuses a folder if other users can
    replace its contents.
    """
    trust: tuple[str, ...] = ()
    """Users and groups (``@NAME``) that you trust. Trusted users may replace the contents of the runs folder or of a
    folder above it. Project files and scripts cannot set this key.
    """


class Login(NamedTuple):
    """With these keys, hpcml on a laptop reaches the machine by OpenSSH and your ssh configuration.

    Project files and scripts cannot set these keys.
    """

    host: str = ""
    """The login node's name, as in ``ssh HOST``."""
    hosts: tuple[str, ...] = ()
    """The names of all login nodes behind ``login.host``. On any login node, ``hpcml tunnel`` prints commands with that
    node's name.
    """
    hpcml: str = "hpcml"
    """The command that starts hpcml on the login node. The command may contain options."""
    renew: str = ""
    """The command that requests a new ssh certificate."""
    route: str = "auto"
    """The way from a laptop to a compute node. With ``direct``, the laptop's ssh logs in to the node through the login
    node. With ``twohop``, a second ssh runs on the login node. With ``srun``, ssh connects to an sshd in a job step.
    With ``auto``, hpcml uses the first route that works.
    """
    logins: int = 5
    """The largest number of new ssh logins per hour."""
    control: str = "~/.hpcml/cm"
    """The folder of ssh's control sockets. Its path must be short. Only you may have access to the folder."""


class Code(NamedTuple):
    """These keys control each run's copy of the script's folder."""

    snapshot: str = "folder"
    """With ``folder``, hpcml copies the script and the small files of its folder. With ``script``, hpcml copies only
    the script. With ``none``, the run uses the original files.
    """
    max_file: Memory = Memory("1M")
    """The largest size of a copied file. The copy has links to larger files instead."""
    max_total: Memory = Memory("50M")
    """The largest size of all copied files together. A file or a whole folder that does not fit becomes a link."""
    max_files: int = 2000
    """The largest number of copied files. Further files become links. This key also limits the number of links."""


class Cost(NamedTuple):
    """These keys describe the price of a job. With these keys, hpcml shows the cost before the submission."""

    unit: str = ""
    """The unit of the charge, such as ``core-h``. The default is ``billing-h``."""
    weights: dict[str, str] = {}
    """The hourly price of each resource, as in Slurm's ``TRESBillingWeights``. The resources are ``cpu``, ``gres/gpu``,
    ``node``, and ``mem`` with a unit (``0.25G``: 0.25 per GiB).
    """
    largest: bool = False
    """If true, the cost is that of the most expensive resource, not the sum (Slurm's ``PriorityFlags=MAX_TRES``)."""
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
    """If true, hpcml requests the job's start time from Slurm (``sbatch --test-only``). With ``--dry-run``, hpcml also
    requests the partition's charges (``scontrol show partition``).
    """


class Notes(NamedTuple):
    """hpcml prints these notes at a submission."""

    always: str = ""
    """A note for each submission."""
    nodes: str = ""
    """A note for runs on several nodes."""
    gpus: str = ""
    """A note for runs with GPUs."""
    image: str = ""
    """A note for runs with an image."""


class Fact(NamedTuple):
    """A fact is the source of a value, or of a table's values. ``NAME`` is the key of the value or table, in quotes.

    All keys except ``value`` are required.
    """

    confidence: str = ""
    """The certainty of the value. ``confirmed``: the machine itself shows the value. ``documented``: the site's pages
    have the value. ``reported``: users' job scripts and notes have the value. ``guessed``: the value is derived.
    """
    date: str = ""
    """The date of the source, such as ``2026-11-20``, or the day on which you read the source."""
    source: str = ""
    """The origin of the value: a page, a command or a person."""
    value: str = ""
    """The value, if the profile has no key for it, for example the lifetime of a certificate."""


class Repairs(NamedTuple):
    """With these keys, hpcml corrects known errors of Dask, RAPIDS, UCX and cloudpickle during a run.

    ``repairs = false`` sets all keys to false. A repair is also off if the installed version of its library differs
    from the tested versions. `docs/upstream/README.md` lists the tested versions.
    """

    finder: bool = True
    """hpcml prevents a deadlock of two threads that import parts of Dask (rapids-dask-dependency)."""
    file_names: bool = True
    """Tracebacks of tasks show file and line (cloudpickle)."""
    closing: bool = True
    """Large Dask clusters close faster (distributed)."""
    switching: bool = True
    """Dask receives large data faster beside tasks that compute in Python (distributed)."""
    spilling: bool = True
    """Workers spill GPU data to pinned host memory, and keep a part of the data on the GPU (dask-cuda). If ``false``,
    ``gpu.spill_pinned`` and ``gpu.spill_order`` have no effect.
    """
    dead_worker_memory: bool = True
    """The other workers of the node release the GPU memory of a killed worker (UCX)."""


class Site(NamedTuple):
    """A machine, as its profile and the settings over it describe it.

    :func:`hpcml.sites.lookup.load` leaves the ``facts`` that speak of a value in force.
    """

    name: str = ""
    """The site's name. hpcml sets this key to the name of the profile's file without ``.toml``."""
    description: str = ""
    """One line of text that ``hpcml site ls`` shows."""
    extends: str = ""
    """The name of another profile. If this profile does not set a value, the other profile's value applies. Exceptions
    are ``identify`` and ``description``.
    """
    scheduler: str = "slurm"
    """With ``slurm``, hpcml submits jobs to Slurm. With ``local``, hpcml runs jobs on this machine."""
    unsupported: str = ""
    """The reason why hpcml does not work on this machine. With this key, hpcml refuses each submission (status 65)."""
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
