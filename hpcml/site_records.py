"""The records of a profile that a run's processes read too, from the schema to plan.json and the nodes."""

# No `from __future__ import annotations`, and NamedTuples: as in hpcml/sites/schema.py.
from typing import NamedTuple

from hpcml.units import Seconds


class Network(NamedTuple):
    """The network of Dask's connections."""

    interface: str = ""
    """The interface for Dask, such as ``ib0``; empty: the first InfiniBand interface with an address. If a
    node has no such interface, hpcml uses the address of the node's host name, or the first interface except loopback.
    """
    protocol: str = "auto"
    """Dask's protocol. ``auto``: UCX for several GPUs if other users cannot connect to UCX's TCP; TLS for other runs.
    ``ucx``: UCX, even if other users can connect to its TCP. ``tls``: TLS. ``tcp``: data over TCP that is **not
    encrypted**; connections need the run's key.
    """
    private: bool = False
    """``true``: only you can connect to the network of your job's nodes, because the site keeps other users out. If
    the job also has whole nodes, ``auto`` then uses UCX over TCP.
    """
    adapters: tuple[str, ...] = ()
    """A node's RDMA adapters, such as ``mlx5_0``. hpcml warns at the submission if ``NCCL_IB_HCA`` or
    ``UCX_NET_DEVICES`` names other adapters.
    """


class Interconnect(NamedTuple):
    """The check of the interconnect before the script starts."""

    require: str = "warn"
    """``none``: no check. ``warn``: hpcml warns if the interconnect is slow. ``rdma``: the run ends with status 89
    unless the check finds RDMA between nodes and cuda_ipc between a node's GPUs. A script without Dask has no check
    unless its cluster starts later.
    """
    nccl: bool = True
    """Also test an all-reduce with NCCL. For ranks on GPUs, this is the only test of the interconnect."""


class Deadlines(NamedTuple):
    """How long each phase of a run may take after the end of the previous phase.

    The keys ``answer``, ``connect_notice``, ``idle_notice`` and ``idle`` apply while the script runs.
    """

    stage: Seconds = Seconds("300s")
    """The longest time for copying the image (``runtime.stage``)."""
    scheduler: Seconds = Seconds("60s")
    """The longest time for starting the Dask scheduler."""
    workers: Seconds = Seconds("120s")
    """The longest time until all workers are registered with the Dask scheduler. While the script runs, a worker that
    is missing for this time counts as lost.
    """
    interconnect: Seconds = Seconds("30s")
    """The longest time for checking the interconnect; NCCL gets half of this time."""
    script_grace: Seconds = Seconds("20s")
    """How long hpcml waits for the script's end after SIGTERM, before SIGKILL. Keep this time below Slurm's
    ``KillWait`` (``scontrol show config``).
    """
    teardown: Seconds = Seconds("10s")
    """The longest time for ending the Dask scheduler and the workers."""
    answer: Seconds = Seconds("10m")
    """How long hpcml's supervisor waits for an answer of the Dask scheduler or of a node of ranks, and these of the
    supervisor. hpcml warns after a tenth of this time. After the whole time, the run ends with status 82. Time in which
    a job is suspended, or a process waits for a file system, does not count.
    """
    connect_notice: Seconds = Seconds("60s")
    """Warn after this time if the script has not connected to its Dask cluster; ``0s``: never."""
    idle_notice: Seconds = Seconds("10m")
    """Warn after this time if nothing uses the Dask cluster, or no rank uses a CPU; ``0s``: never."""
    idle: Seconds = Seconds("0s")
    """End an idle run after this time (status 93); ``0s``: never. It is off by default, because a script may wait for a
    good reason: a file, a licence, a computation elsewhere. Without it, a run that hangs keeps its nodes until the time
    limit.
    """
