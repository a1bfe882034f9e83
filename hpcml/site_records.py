"""The records of a profile that a run's processes read too, from the schema to plan.json and the nodes."""

# No `from __future__ import annotations`, and NamedTuples: as in hpcml/sites/schema.py.
from typing import NamedTuple

from hpcml.units import Seconds


class Network(NamedTuple):
    """These keys describe the network of Dask's connections."""

    interface: str = ""
    """The interface for Dask, such as ``ib0``. The default is the first InfiniBand interface with an address. Without
    an InfiniBand interface, hpcml uses the address of the node's host name, or the first interface except loopback.
    """
    protocol: str = "auto"
    """Dask's protocol. ``auto`` means UCX for several GPUs if other users cannot connect to UCX's TCP, and TLS
    otherwise. ``ucx`` means UCX, even if other users can connect to UCX's TCP. ``tls`` means TLS. ``tcp`` means data
    over TCP that is **not encrypted**. Connections over ``tcp`` need the run's key.
    """
    private: bool = False
    """If true, the site lets only you connect to the network of your job's nodes. If the job also has whole nodes,
    ``auto`` means UCX over TCP.
    """
    adapters: tuple[str, ...] = ()
    """A node's RDMA adapters, such as ``mlx5_0``. If ``NCCL_IB_HCA`` or ``UCX_NET_DEVICES`` names other adapters, hpcml
    warns at the submission.
    """


class Interconnect(NamedTuple):
    """hpcml checks the interconnect before the script starts."""

    require: str = "warn"
    """``none`` means no check. With ``warn``, hpcml warns if the interconnect is slow. With ``rdma``, the check must
    find RDMA between nodes and cuda_ipc between a node's GPUs. If one of them is missing, the run ends with status 89.
    For a script without Dask, hpcml checks the interconnect only if the script's cluster starts later.
    """
    nccl: bool = True
    """If true, hpcml also tests an all-reduce with NCCL. Ranks on GPUs have no other test of the interconnect."""


class Deadlines(NamedTuple):
    """Each phase of a run has a longest time, which begins at the end of the previous phase.

    The keys ``answer``, ``connect_notice``, ``idle_notice`` and ``idle`` apply while the script runs.
    """

    stage: Seconds = Seconds("300s")
    """The longest time for copying the image (``runtime.stage``)."""
    scheduler: Seconds = Seconds("60s")
    """The longest time for starting the Dask scheduler."""
    workers: Seconds = Seconds("120s")
    """The longest time until all workers are registered with the Dask scheduler. While the script runs, a worker that
    is missing for ``deadlines.workers`` counts as lost.
    """
    interconnect: Seconds = Seconds("30s")
    """The longest time for checking the interconnect. The test of NCCL has half of ``deadlines.interconnect``."""
    script_grace: Seconds = Seconds("20s")
    """The longest time from SIGTERM to SIGKILL, in which the script can end. Keep ``deadlines.script_grace`` below
    Slurm's ``KillWait`` (``scontrol show config``).
    """
    teardown: Seconds = Seconds("10s")
    """The longest time for ending the Dask scheduler and the workers."""
    answer: Seconds = Seconds("10m")
    """The longest time for which hpcml's supervisor and the Dask scheduler, or a node of ranks, wait for each other.
    hpcml warns after a tenth of ``deadlines.answer``. After ``deadlines.answer``, the run ends with status 82. Time in
    which a job is suspended, or a process waits for a file system, does not count.
    """
    connect_notice: Seconds = Seconds("60s")
    """hpcml warns after this time if the script has not connected to its Dask cluster. ``0s`` means never."""
    idle_notice: Seconds = Seconds("10m")
    """hpcml warns after this time if nothing uses the Dask cluster, or no rank uses a CPU. ``0s`` means never."""
    idle: Seconds = Seconds("0s")
    """hpcml ends an idle run after this time (status 93). ``0s`` means never. The default is ``0s``, because a script
    may wait for a file, a licence or a computation elsewhere. With ``0s``, a run that hangs keeps its nodes until the
    time limit.
    """
