"""A node as the probe describes it: one record, its JSON, and the oldest drivers; who judges a node reads no other.

The login node reads it too. The JSON has a table for each record; a
record in `_SPREAD` has its fields in the table of the record that holds it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeVar

from hpcml import typed_json

SCHEMA = 1  # of the JSON; a change that readers must know of raises it
T = TypeVar("T")


class Needs(NamedTuple):
    """What RAPIDS for one major version of CUDA needs."""

    driver: int  # major number of the oldest driver
    cuda: tuple[int, int]  # the CUDA that this driver speaks; a driver with cuda-compat may be older
    capability: tuple[int, int]  # compute capability of the oldest GPU
    first_driver: int  # major number of the first driver for any program of this CUDA


# docs.nvidia.com/datascience/platform-support, RAPIDS 26.10: CUDA 12.2-12.9 with driver 535 or newer and compute
# capability 7.0 (Volta), CUDA 13.0-13.3 with driver 580 or newer and 7.5 (Turing). NVIDIA, CUDA Compatibility: 525 is
# the first driver for CUDA 12, 580 for CUDA 13.
NEEDS = {12: Needs(535, (12, 2), (7, 0), 525), 13: Needs(580, (13, 0), (7, 5), 580)}


class Place(NamedTuple):
    """Where a device is in the PCI tree; empty if it is no PCI device, or the kernel hides it."""

    bus_id: str = ""  # domain:bus:device.function
    path: tuple[str, ...] = ()  # from the host bridge down to the device
    numa: int = -1  # NUMA node; -1: not known


class Link(NamedTuple):
    """The link of an RDMA port."""

    state: str  # ACTIVE, DOWN …
    physical_state: str  # LinkUp, Polling …
    rate: str  # as the kernel writes it: 100 Gb/sec (2X HDR)
    gigabits: float  # Gbit/s; 0: not known
    link_layer: str  # InfiniBand or Ethernet


class Port(NamedTuple):
    """An InfiniBand or RoCE port."""

    name: str  # mlx5_0:1
    device: str  # mlx5_0
    port: int  # from 1
    link: Link
    pci: Place


class Interface(NamedTuple):
    """A network interface."""

    name: str
    kind: str  # ethernet, infiniband, loopback or type N
    ipv4: tuple[str, ...]  # addresses


class Network(NamedTuple):
    """How a node is reached."""

    infiniband: tuple[Port, ...] = ()  # RDMA ports, by name
    interfaces: tuple[Interface, ...] = ()  # by name


class Modules(NamedTuple):
    """Kernel modules and device files for GPUs and RDMA."""

    nvidia: str | None = None  # version of the GPUs' driver
    verbs: tuple[str, ...] | None = None  # files in /dev/infiniband; None: not known


class System(NamedTuple):
    """Host, kernel and programs."""

    hostname: str = ""
    kernel: str = ""  # release
    machine: str = ""  # architecture: x86_64
    python: str = ""  # version
    in_image: bool = False  # whether the probe ran inside an image
    programs: dict[str, str] = {}  # paths of programs for images, by name
    modules: Modules = Modules()


class Limit(NamedTuple):
    """A limit of processes; None: unlimited."""

    soft: int | None
    hard: int | None


class Cpus(NamedTuple):
    """CPUs as Linux counts them."""

    count: int = 0  # type: ignore[assignment]  # that the probe may use; 0: not known
    list: str = ""  # 0-15,32
    online: int = 0  # that the node has
    threads: int = 0  # of a core; 0: not known


class Process(NamedTuple):
    """What a process on the node gets."""

    limits: dict[str, Limit] = {}  # locked_memory in bytes, open_files
    cpus: Cpus = Cpus()
    environment: dict[str, str] = {}  # variables of CUDA, NCCL, RAPIDS and UCX, without secrets


class Memory(NamedTuple):
    """Memory of the node, in bytes."""

    total: int = 0  # 0: not known
    shm: int = 0  # size of /dev/shm
    shm_used: int = 0
    shm_left: tuple[str, ...] = ()  # names of old files of this user in /dev/shm, twenty at most
    shm_left_bytes: int = 0  # of all of them


class Disk(NamedTuple):
    """The file system that a folder is on."""

    kind: str = ""  # ext4, tmpfs …
    bytes: int = 0
    free: int = 0  # bytes
    error: str = ""  # why it cannot be used


class Disks(NamedTuple):
    """Node-local folders."""

    scratch: str = ""  # the folder for node-local files of a run
    folders: dict[str, Disk] = {}  # by path


class Packages(NamedTuple):
    """What the Python environment has installed."""

    packages: dict[str, str] = {}  # version by common name
    built_for: dict[str, tuple[str, ...]] = {}  # distributions by the major version of CUDA
    importable: tuple[str, ...] = ()  # modules that Python finds


class Ucx(NamedTuple):
    """The UCX that Python uses."""

    version: str = ""
    library: str = ""  # path of the loaded libucp
    modules: tuple[str, ...] = ()  # beside it; ib and rdmacm are missing from pip's build
    transports: dict[str, tuple[str, ...]] = {}  # devices by transport that may be used


class GpuShape(NamedTuple):
    """What one GPU is; None: it did not answer."""

    memory: int | None = None  # bytes
    capability: tuple[int, ...] | None = None  # compute capability: (8, 0)
    mig: bool | None = None  # whether it is divided
    cpus: str = ""  # CPUs next to it: 0-15


class Gpu(NamedTuple):
    """A GPU as its driver describes it."""

    index: int  # type: ignore[assignment]  # the driver's
    uuid: str
    name: str
    bus_id: str
    pci: Place
    visible: bool  # whether a program of the job sees it
    shape: GpuShape
    errors: dict[str, str]  # the driver's refusals, by question


class Slot(NamedTuple):
    """A GPU in the PCI tree, also one that the job may not use."""

    bus_id: str
    nearest: str  # name of the nearest RDMA port that carries data; empty without one
    distances: dict[str, str]  # by name of the RDMA port: PIX, PXB, PHB, NODE or SYS


class Smi(NamedTuple):
    """A GPU as the vendor's command describes it."""

    bus_id: str
    driver: str  # version
    mig: str  # Enabled, Disabled or [N/A]
    compute_mode: str  # Default, Prohibited …


class Gpus(NamedTuple):
    """GPUs and their driver."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""  # version: 535.274.02
    cuda_driver: str = ""  # the CUDA that it speaks: 12.2
    visible_devices: str | None = None  # the value of the vendor's variable; None: not set
    visible_count: int = 0  # devices that a CUDA program sees
    names: tuple[str, ...] = ()  # of all GPUs of the node
    slots: tuple[Slot, ...] = ()
    smi: tuple[Smi, ...] = ()
    mps: bool = False  # whether a server runs that shares GPUs (MPS)


class Job(NamedTuple):
    """The Slurm job that the probe ran in."""

    node: str = ""  # Slurm's name of the node
    partition: str = ""
    qos: str = ""
    nodes: str = ""  # of the job, in Slurm's notation
    shown: str = ""  # scontrol show node
    ssh: str = ""  # whether the job's other node lets its user in; empty without another


class Probing(NamedTuple):
    """How the probe went."""

    schema: int  # of the JSON
    seconds: float = 0.0  # that it took
    late: tuple[str, ...] = ()  # driver, ucx: those that did not answer in time
    errors: dict[str, str] = {}  # why a part could not be read, by part; empty: it could


class Node(NamedTuple):
    """What a node has. A part that could not be read is empty, and `Probing.errors` has the reason."""

    probing: Probing
    system: System = System()
    process: Process = Process()
    memory: Memory = Memory()
    disks: Disks = Disks()
    network: Network = Network()
    packages: Packages = Packages()
    gpu: Gpus = Gpus()
    ucx: Ucx = Ucx()
    job: Job = Job()

    @property
    def driver(self) -> str:
        """The version of the GPUs' driver by itself, the vendor's command or the kernel; empty without one."""
        return self.gpu.driver or next((row.driver for row in self.gpu.smi), "") or self.system.modules.nvidia or ""


class Contents(NamedTuple):
    """What an image holds, as a program inside it finds."""

    python: str  # version: 3.12
    failed: dict[str, str]  # why a module cannot be imported, by module
    absent: tuple[str, ...]  # modules for GPUs that are not there
    packages: dict[str, str]  # version by common name
    ucx: Ucx
    verbs: str  # why InfiniBand's library cannot be loaded, or nothing
    driver: str  # version of the GPUs' driver
    compute: str  # why one GPU cannot add three numbers, or nothing
    outside: tuple[str, ...]  # files of the host that are in use, eight at most
    library_path: tuple[str, ...]  # folders of the host in LD_LIBRARY_PATH


def major(version: str) -> int:
    """Return the first number of a driver's version; 0 if there is none."""
    match = re.match(r"[0-9]{1,6}", version)
    return int(match[0]) if match else 0


_SPREAD = (Probing, System, Process, Network, Packages, Gpus, Link, GpuShape)


def to_json(node: Node) -> dict[str, Any]:
    """Return a node as a table for JSON; the reason of a part that could not be read is under ``PART_error``."""
    table: dict[str, Any] = typed_json.plain(node, spread=_SPREAD)
    errors = table.pop("errors")
    return table | {f"{part}_error": reason for part, reason in errors.items()}


def from_json(table: object) -> Node:
    """Return the node that a table of JSON describes; raise ValueError if something is missing or of another type."""
    if not isinstance(table, dict):
        raise ValueError("the probe's answer is not a JSON object")  # noqa: TRY004 - as of JSON that is none
    errors = {key.removesuffix("_error"): reason for key, reason in table.items() if key.endswith("_error")}
    return read(Node, table | {"errors": errors})


def read(kind: type[T], table: object) -> T:
    """Return a record from a table of JSON; raise ValueError if something is missing or of another type."""
    return typed_json.read(kind, table, whole=True, spread=_SPREAD)
