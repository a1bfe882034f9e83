"""Why UCX did not take the fast interconnect, and what to do: the first cause that the facts bear out.

The order is that of cause and effect: what was set, what the nodes have, what the library can, what the process may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from hpcml.node.fabric.measurement import Measurement, NodeFacts, WorkerFacts
from hpcml.units import RDMA, format_bytes

_PortsOf = Mapping[str, Mapping[str, Any] | None]  # by node, its InfiniBand ports by name; None: not known
_ASKS_RDMA = re.compile(r"(all|ib|rc|dc|ud|gga|srd)(_\w+)?")  # what UCX_TLS must name for one of them
_ASKS_IPC = {"all", "cuda", "cuda_ipc"}
_LOW_MEMLOCK = 512 * 1024**2  # bytes; below it UCX 1.13 switched RDMA off (openucx/ucx pull request 8085)
_NO_GPU_POOL = re.compile(r"managed|async", re.IGNORECASE)

PIP_REMEDY = (
    "use an image with conda-forge's ucx and rdma-core, or give it a UCX 1.19 to 1.21 that was built with verbs and set"
    " RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
)
GPUDIRECT = (
    "see that the adapters reach the GPUs' memory: the module nvidia_peermem, or Linux 5.12 and NVIDIA's open kernel"
    " modules"
)
_UNSET = "take UCX_TLS out of the environment that submits, and of the profile's"
_UNLIMIT = (
    "let slurmd start jobs without this limit (LimitMEMLOCK=infinity in its unit, and"
    " PropagateResourceLimitsExcept=MEMLOCK in slurm.conf); the site's administrators can"
)


class Cause(NamedTuple):
    """A clause for brackets (``this UCX has no InfiniBand support``) and a sentence without its full stop."""

    reason: str
    remedy: str


TLS = Cause("TLS was asked for", "set network.protocol=ucx, with GPU workers and an image whose UCX has InfiniBand")


def across(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return why InfiniBand did not carry the bytes of these nodes."""
    nodes = {name: measurement.nodes.get(name, NodeFacts()) for name in sorted(bad)}
    workers = [worker for worker in measurement.workers.values() if worker.node in nodes]
    ports = {name: node.moved.get("infiniband") for name, node in nodes.items()}
    unknown = Cause(
        "why is not known",
        f"run with UCX_PROTO_INFO=y and read in the worker's log which lane UCX chose, on {listed(nodes)}",
    )
    return next(chain(_set(workers, ports), _no_port(ports), _no_library(workers), _no_access(workers, nodes)), unknown)


def _set(workers: list[WorkerFacts], ports_of: _PortsOf) -> Iterator[Cause]:
    for worker in workers:
        if (value := setting(worker, "UCX_TLS")) and not _may_rdma(value):
            yield Cause(f"UCX_TLS={value} leaves InfiniBand out", _UNSET)
    names = {name for ports in ports_of.values() for name in ports or {}}
    allowed = names | {name.partition(":")[0] for name in names} | {"all"}
    for worker in workers:
        value = setting(worker, "UCX_NET_DEVICES")
        if names and value and not value.startswith("^") and not allowed & set(value.split(",")):
            yield Cause(
                f"UCX_NET_DEVICES={value} leaves {listed(names)} out",
                "take UCX_NET_DEVICES out of the environment: UCX then chooses the adapter nearest to the GPU",
            )


def _no_port(ports_of: _PortsOf) -> Iterator[Cause]:
    if without := [name for name, ports in ports_of.items() if ports is not None and not ports]:
        yield Cause(
            f"{listed(without)} {'has' if len(without) == 1 else 'have'} no InfiniBand device",
            'ask for nodes that have one (partition, constraint), or take it as it is with fabric.require = "none";'
            " a container must not hide /sys and /dev (apptainer --contain)",
        )
    for name, ports in ports_of.items():
        if ports and not any(port["state"] in ("ACTIVE", "") for port in ports.values()):
            states = ", ".join(f"{port} is {facts['state']}" for port, facts in ports.items())
            yield Cause(f"on {name} {states}", f"tell the site and leave the node out (sbatch --exclude={name})")


def _no_library(workers: list[WorkerFacts]) -> Iterator[Cause]:
    for worker in workers:
        offered = {*worker.transports, *worker.log.get("available", ())}
        if not offered or any(map(RDMA.fullmatch, offered)) or _locked_out(worker):
            continue
        library = str(worker.log.get("library", ""))
        if "/site-packages/libucx" in library or "/dist-packages/libucx" in library:
            yield Cause("this UCX, the one of pip's libucx, has no InfiniBand support", PIP_REMEDY)
        yield Cause(
            f"this UCX{f', {library},' if library else ''} offers no InfiniBand transport",
            "install rdma-core (libibverbs and its providers) in the image and see that `ucx_info -d` lists rc_mlx5 or"
            f" rc_verbs; with pip's libucx, {PIP_REMEDY}",
        )


def _no_access(workers: list[WorkerFacts], nodes: Mapping[str, NodeFacts]) -> Iterator[Cause]:
    for worker in filter(_locked_out, workers):
        yield Cause(f"locked memory is limited on {worker.node}, as UCX says", _UNLIMIT)
    for name, node in nodes.items():
        probe = node.probe or {}
        if probe.get("modules", {}).get("verbs") == []:
            yield Cause(
                f"/dev/infiniband is not there on {name}",
                "let the container see it (no --contain, or --bind /dev/infiniband)",
            )
        soft = probe.get("limits", {}).get("locked_memory", {}).get("soft")
        if soft is not None and soft < _LOW_MEMLOCK:
            yield Cause(f"locked memory is limited to {format_bytes(soft)} on {name}", _UNLIMIT)


def _locked_out(worker: WorkerFacts) -> bool:
    messages = [*worker.log.get("errors", ()), *worker.log.get("warnings", ())]
    return any("max locked memory" in message for message in messages)


def within(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return why cuda_ipc did not carry the bytes between the GPUs of these nodes."""
    nodes = set(bad)
    return next(_causes_within({name: facts for name, facts in measurement.workers.items() if facts.node in nodes}))


def _causes_within(workers: Mapping[str, WorkerFacts]) -> Iterator[Cause]:
    on_node = [worker.node for worker in workers.values()]
    for name, worker in workers.items():
        if (value := setting(worker, "UCX_TLS")) and not _may_ipc(value):
            yield Cause(f"UCX_TLS={value} leaves cuda_ipc out", _UNSET)
        visible = worker.environment.get("CUDA_VISIBLE_DEVICES", "")
        if visible and "," not in visible and on_node.count(worker.node) > 1:
            yield Cause(
                f"{name} sees no GPU but its own (CUDA_VISIBLE_DEVICES={visible})",
                "give all GPUs of a node to one task (no --gpus-per-task, no --gpu-bind): cuda_ipc opens the memory of"
                " a GPU that both sides see",
            )
        if worker.transports and "cuda_ipc" not in worker.transports:
            yield Cause(
                "this UCX offers no cuda_ipc", "use a UCX built with CUDA (libucx-cu12 or -cu13, as the driver wants)"
            )
        if _NO_GPU_POOL.search(worker.memory_resource):
            yield Cause(
                f"cuda_ipc cannot open the memory of RMM's {worker.memory_resource}",
                "use a plain pool (gpu.rmm_pool_size, without rmm_managed_memory and rmm_async)",
            )
    yield Cause(
        "why is not known",
        "see that the node's workers share one container or at least its IPC and PID namespaces (apptainer without"
        " --containall, --ipc and --pid), and run with UCX_PROTO_INFO=y",
    )


def setting(worker: WorkerFacts, name: str) -> str:
    """Return a UCX variable as the worker's UCX read it, "" if it is not set."""
    return str(worker.log.get("settings", {}).get(name) or worker.environment.get(name, ""))


def _transports_of(tls: str) -> set[str]:
    return {name.lstrip("\\") for name in tls.lstrip("^").split(",")}


def _may_rdma(tls: str) -> bool:
    """Whether a value of UCX_TLS allows InfiniBand; ``^`` before the list means all but these."""
    names = _transports_of(tls)
    if tls.startswith("^"):
        return not ("ib" in names or {"rc", "dc", "ud"} <= {name.partition("_")[0] for name in names})
    return any(map(_ASKS_RDMA.fullmatch, names))


def _may_ipc(tls: str) -> bool:
    names = _transports_of(tls)
    return not {"cuda", "cuda_ipc"} & names if tls.startswith("^") else bool(_ASKS_IPC & names)


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return names as a person lists them: ``n1, n2, n3, n4 and 7 more``."""
    ordered = sorted(names)
    if len(ordered) > most + 1:
        return f"{', '.join(ordered[:most])} and {len(ordered) - most} more"
    return " and ".join(filter(None, [", ".join(ordered[:-1]), ordered[-1]])) if ordered else "the nodes"
