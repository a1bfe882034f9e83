"""What the login node and a job on a node show, in a profile: container program, GPUs, network and disks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hpcml import units
from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware import record
from hpcml.node.hardware.record import NEEDS, Node
from hpcml.survey.profile_draft import LOGIN, NODE, Draft, How

_SCRATCH = ("CINECA_SCRATCH", "SCRATCH", "PSCRATCH", "WORK", "FAST", "PROJECT", "GPFS_PROJECTS", "WORKSPACE")
_CONTAINERS = ("apptainer", "singularity")


class Login(NamedTuple):
    """What the login node shows: its name, the user's groups, variables, programs on PATH, modules of containers.

    ``mounts`` are kinds of file systems by where they are mounted.
    """

    host: str
    groups: tuple[str, ...]
    environment: Mapping[str, str]
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    mounts: Mapping[str, str] = {}


def runtime(draft: Draft, login: Login, node: Node | None) -> None:
    """Write which program runs images."""
    programs = node.system.programs if node else {}
    on_node = [name for name in _CONTAINERS if name in programs]
    here = [name for name in _CONTAINERS if name in login.programs]
    if node and on_node:
        draft.set(("runtime",), "container", on_node[0], How(NODE, f"on PATH of {node.job.node}"))
    elif here and not node:
        draft.set(("runtime",), "container", here[0], How(LOGIN, "on PATH", concluded=True))
    elif login.modules:
        name = "singularity" if "singularity" in login.modules[0] else "apptainer"
        draft.set(("runtime",), "container", name, How(LOGIN, "module avail", concluded=True))
        draft.ask(
            ("runtime",),
            f"which module loads the container program (runtime.modules): {', '.join(login.modules)}?",
        )
    elif programs:
        draft.ask(
            ("runtime",),
            f"which program can start images? The nodes have {', '.join(sorted(programs))}, "
            "which hpcml does not support",
        )


def gpus(draft: Draft, node: Node | None) -> None:
    """Write the GPUs and their driver."""
    if not node or not node.gpu.names:
        return
    seen = How(NODE, f"the {VENDOR.name} driver of {node.job.node}")
    cuda = node.gpu.cuda_driver.partition(".")[0]
    able = [number for number, needs in NEEDS.items() if record.major(node.driver) >= needs.first_driver]
    if cuda in map(str, NEEDS):
        draft.set(("gpu",), "cuda", cuda, seen)
    elif able:
        draft.set(("gpu",), "cuda", str(max(able)), seen._replace(concluded=True))
    draft.tell("gpu.driver", node.driver, seen)
    counts = Counter(node.gpu.names)
    draft.tell("gpu.names", ", ".join(f"{count} × {name}" for name, count in counts.items()), seen)
    near = [
        f"{slot.bus_id}: {', '.join(f'{port} {far}' for port, far in slot.distances.items())}"
        for slot in node.gpu.slots
        if slot.distances
    ]
    draft.tell("gpu.adapters", "; ".join(near), How(NODE, f"the PCI tree of {node.job.node}"))


def network(draft: Draft, node: Node | None) -> None:
    """Write the network interfaces and adapters."""
    if not node:
        draft.ask(
            ("network",),
            "which network interface and adapters do the nodes have? hpcml site init --probe examines a node",
        )
        return
    ports = node.network.infiniband
    seen = How(NODE, f"the kernel of {node.job.node}")
    every = [interface for interface in node.network.interfaces if interface.ipv4]
    fast = [interface.name for interface in every if interface.kind == "infiniband"]
    draft.set(("network",), "interface", fast[0] if fast else "", seen)
    adapters = list(dict.fromkeys(port.device for port in ports if port.link.state == "ACTIVE"))
    draft.set(("network",), "adapters", adapters, seen)
    links = [f"{port.name} {port.link.state} {port.link.link_layer} {port.link.rate}" for port in ports]
    draft.tell("network.ports", "; ".join(links), seen)
    addresses = [f"{interface.name} {interface.ipv4[0]}" for interface in every if interface.name != "lo"]
    draft.tell("network.interfaces_seen", "; ".join(addresses), seen)
    if len(fast) > 1:
        several = f"the InfiniBand interfaces {', '.join(fast)} have IP addresses"
        draft.ask(("network",), f"{several}: do all nodes reach each other over {fast[0]}?")
    if locked := node.process.limits.get("locked_memory"):
        size = "unlimited" if locked.soft is None else units.format_bytes(locked.soft)
        draft.tell("network.locked_memory", size, How(NODE, f"memlock of the job on {node.job.node}"))
    draft.tell("login.nodes", node.job.ssh, How(NODE, f"ssh between two nodes, from {node.job.node}"))


def disks(draft: Draft, login: Login, node: Node | None) -> None:
    """Write the folders for files of runs, and ask which ones all nodes share."""
    for name in _SCRATCH:
        if path := login.environment.get(name, ""):
            kind = next((f", {login.mounts[at]}" for at in _above(path) if at in login.mounts), "")
            draft.tell(f"paths.said.{name}", f"{path}{kind}", How(LOGIN, f"${name}"))
    folders = node.disks.folders if node else {}
    for folder, disk in folders.items():
        if node and not disk.error:
            size, free = units.format_bytes(disk.bytes), units.format_bytes(disk.free)
            key = re.sub(r"\W+", "_", folder).strip("_")
            how = How(NODE, f"what is mounted on {node.job.node}")
            draft.tell(f"paths.node.{key}", f"{folder}: {disk.kind} of {size}, {free} free", how)
    if "/tmp" in folders and folders["/tmp"].kind == "tmpfs":
        draft.ask(
            ("paths",),
            "Dask would spill to /tmp, which is in memory: do the nodes have a local disk (paths.scratch)?",
        )
    draft.ask(("paths",), "do all nodes share your home folder, or is another folder better for runs (paths.runs)?")


def _above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
