"""Why UCX did not take the fast interconnect, and what to do: the first cause that the facts bear out.

The order is that of cause and effect: what was set, what the nodes have, what the library can, what the process may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hpcml.node.fabric.measurement import Measurement, NodeFacts, WorkerFacts
from hpcml.units import RDMA, format_bytes

_ASKS_RDMA = re.compile(r"(all|ib|rc|dc|ud|gga|srd)(_\w+)?")  # what UCX_TLS must name for one of them
_ASKS_IPC = ("all", "cuda", "cuda_ipc")
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


class Cause(NamedTuple):
    """A clause for brackets (``this UCX has no InfiniBand support``) and a sentence without its full stop."""

    reason: str
    remedy: str


TLS = Cause("TLS was asked for", "use --protocol ucx, with GPU workers and an image whose UCX has InfiniBand")


def across(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return why InfiniBand did not carry the bytes of these nodes."""
    nodes = {name: measurement.nodes.get(name, NodeFacts()) for name in sorted(bad)}
    workers = {name: worker for name, worker in measurement.workers.items() if worker.node in nodes}
    return (
        _asked_otherwise(workers)
        or _other_devices(workers, nodes)
        or _no_port(nodes)
        or _no_library(workers)
        or _no_door(workers, nodes)
        or Cause(
            "why is not known",
            f"run with UCX_PROTO_INFO=y and read in the worker's log which lane UCX chose, on {listed(nodes)}",
        )
    )


def _asked_otherwise(workers: dict[str, WorkerFacts]) -> Cause | None:
    for worker in workers.values():
        value = setting(worker, "UCX_TLS")
        if value and not _may(value, rdma=True):
            return Cause(
                f"UCX_TLS={value} leaves InfiniBand out",
                "take UCX_TLS out of the environment that submits, and of the profile's",
            )
    return None


def _other_devices(workers: dict[str, WorkerFacts], nodes: dict[str, NodeFacts]) -> Cause | None:
    ports = {name for node in nodes.values() for name in node.moved.get("infiniband") or {}}
    allowed = ports | {port.partition(":")[0] for port in ports} | {"all"}
    for worker in workers.values():
        value = setting(worker, "UCX_NET_DEVICES")
        if ports and value and not value.startswith("^") and not allowed & set(value.split(",")):
            return Cause(
                f"UCX_NET_DEVICES={value} leaves {listed(ports)} out",
                "take UCX_NET_DEVICES out of the environment: UCX then chooses the adapter nearest to the GPU",
            )
    return None


def _no_port(nodes: dict[str, NodeFacts]) -> Cause | None:
    seen = {name: node.moved.get("infiniband") for name, node in nodes.items()}
    without = [name for name, ports in seen.items() if ports is not None and not ports]
    if without:
        return Cause(
            f"{listed(without)} {'has' if len(without) == 1 else 'have'} no InfiniBand device",
            'ask for nodes that have one (partition, constraint), or take it as it is with fabric.require = "none";'
            " a container must not hide /sys and /dev (apptainer --contain)",
        )
    for name, ports in seen.items():
        if ports and not any(port["state"] in ("ACTIVE", "") for port in ports.values()):
            states = ", ".join(f"{port} is {facts['state']}" for port, facts in ports.items())
            return Cause(f"on {name} {states}", f"tell the site and leave the node out (sbatch --exclude={name})")
    return None


def _no_library(workers: dict[str, WorkerFacts]) -> Cause | None:
    for worker in workers.values():
        can = {*worker.transports, *worker.log.get("available", ())}
        if not can or any(RDMA.fullmatch(transport) for transport in can) or _locked_out(worker):
            continue
        library = str(worker.log.get("library", ""))
        if "/site-packages/libucx" in library or "/dist-packages/libucx" in library:
            return Cause("this UCX, the one of pip's libucx, has no InfiniBand support", PIP_REMEDY)
        return Cause(
            f"this UCX{f', {library},' if library else ''} offers no InfiniBand transport",
            "install rdma-core (libibverbs and its providers) in the image and see that `ucx_info -d` lists rc_mlx5 or"
            f" rc_verbs; with pip's libucx, {PIP_REMEDY}",
        )
    return None


def _no_door(workers: dict[str, WorkerFacts], nodes: dict[str, NodeFacts]) -> Cause | None:
    limited = "let slurmd start jobs without this limit (LimitMEMLOCK=infinity in its unit, and"
    limited += " PropagateResourceLimitsExcept=MEMLOCK in slurm.conf); the site's administrators can"
    for worker in workers.values():
        if _locked_out(worker):
            return Cause(f"locked memory is limited on {worker.node}, as UCX says", limited)
    for name, node in nodes.items():
        probe = node.probe or {}
        if probe.get("modules", {}).get("verbs") == []:
            return Cause(
                f"/dev/infiniband is not there on {name}",
                "let the container see it (no --contain, or --bind /dev/infiniband)",
            )
        soft = probe.get("limits", {}).get("locked_memory", {}).get("soft")
        if soft is not None and soft < _LOW_MEMLOCK:
            return Cause(f"locked memory is limited to {format_bytes(soft)} on {name}", limited)
    return None


def _locked_out(worker: WorkerFacts) -> bool:
    return any("max locked memory" in said for said in [*worker.log.get("errors", ()), *worker.log.get("warnings", ())])


def within(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return why cuda_ipc did not carry the bytes between the GPUs of these nodes."""
    names = set(bad)
    workers = {name: worker for name, worker in measurement.workers.items() if worker.node in names}
    for name, worker in workers.items():
        value = setting(worker, "UCX_TLS")
        if value and not _may(value, rdma=False):
            return Cause(
                f"UCX_TLS={value} leaves cuda_ipc out",
                "take UCX_TLS out of the environment that submits, and of the profile's",
            )
        visible = worker.environment.get("CUDA_VISIBLE_DEVICES", "")
        if (
            visible
            and "," not in visible
            and any(other is not worker and other.node == worker.node for other in workers.values())
        ):
            return Cause(
                f"{name} sees no GPU but its own (CUDA_VISIBLE_DEVICES={visible})",
                "give all GPUs of a node to one task (no --gpus-per-task, no --gpu-bind): cuda_ipc opens the memory of"
                " a GPU that both sides see",
            )
        if worker.transports and "cuda_ipc" not in worker.transports:
            return Cause(
                "this UCX offers no cuda_ipc",
                "use a UCX built with CUDA (libucx-cu12 or -cu13, as the driver wants)",
            )
        if _NO_GPU_POOL.search(worker.memory_resource):
            return Cause(
                f"cuda_ipc cannot open the memory of RMM's {worker.memory_resource}",
                "use a plain pool (gpu.rmm_pool_size, without rmm_managed_memory and rmm_async)",
            )
    return Cause(
        "why is not known",
        "see that the node's workers share one container or at least its IPC and PID namespaces (apptainer without"
        " --containall, --ipc and --pid), and run with UCX_PROTO_INFO=y",
    )


def setting(worker: WorkerFacts, name: str) -> str:
    """Return a UCX variable as the worker's UCX read it, "" if it is not set."""
    return str(worker.log.get("settings", {}).get(name) or worker.environment.get(name, ""))


def _may(tls: str, *, rdma: bool) -> bool:
    """Whether a value of UCX_TLS allows InfiniBand, or else cuda_ipc; ``^`` before the list means all but these."""
    names = [name.lstrip("\\") for name in tls.lstrip("^").split(",")]
    if not tls.startswith("^"):
        return any(_ASKS_RDMA.fullmatch(name) for name in names) if rdma else any(name in _ASKS_IPC for name in names)
    if not rdma:
        return not {"cuda", "cuda_ipc"} & set(names)
    return not ("ib" in names or {"rc", "dc", "ud"} <= {name.partition("_")[0] for name in names})


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return names as a person lists them: ``n1, n2, n3, n4 and 7 more``."""
    ordered = sorted(names)
    if len(ordered) > most + 1:
        return f"{', '.join(ordered[:most])} and {len(ordered) - most} more"
    return " and ".join(filter(None, [", ".join(ordered[:-1]), ordered[-1]])) if ordered else "the nodes"
