"""What the probes of nodes mean: what a run's preflight says of each, and what only the nodes side by side show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import units
from hpcml.doctor import ports
from hpcml.doctor.finding import (
    ByNode,
    Examination,
    Finding,
    green,
    leave_out,
    not_applicable,
    red,
    yellow,
)
from hpcml.errors import HpcmlError
from hpcml.gpu_vendor import VENDOR
from hpcml.images import sif
from hpcml.node.hardware import record
from hpcml.node.hardware.problems_for_run import Demand, find_troubles
from hpcml.node.hardware.record import NEEDS, Disk, Disks, Node, Slot
from hpcml.plan.container import image_of

_NEAR = ("PIX", "PXB")
_SHM_LEAST = 1 << 30  # bytes; NCCL, UCX and Dask's workers pass data through it
_LEFT_LEAST = 1 << 20  # bytes of old files that are worth a word
_GRAVE = ("driver", "locked-memory")  # checks whose troubles end no run at its start, but keep it from working
_SKEW, _SKEW_BAD = 1.0, 60.0  # seconds; beyond the second a run's certificates are refused


def judge(exam: Examination, answers: Mapping[str, object], clocks: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Return the findings on the answers of nodes, check by check; ``answers`` are probes as JSON, by node."""
    try:
        by_node = {name: record.from_json(answer) for name, answer in answers.items()}
    except ValueError as error:  # another hpcml's, or cut short
        incomplete = not_applicable(f"the results from the nodes are incomplete ({error})")
        return [incomplete._replace(check=name) for name in JUDGES]
    return [_judged(name, exam, by_node, clocks)._replace(check=name) for name in JUDGES]


def _judged(name: str, exam: Examination, by_node: ByNode, clocks: Mapping[str, tuple[float, float]]) -> Finding:
    judging = JUDGES[name]
    for node, one in by_node.items():
        for part in judging.parts:
            if reason := one.probing.errors.get(part):
                return not_applicable(f"hpcml could not read {part} of node {node} ({reason})")
    try:
        return judging.check(exam, by_node) if name != "clocks" else _clocks(clocks, by_node)
    except HpcmlError as error:
        return not_applicable(f"this check was not possible: {error.message}")
    except KeyError as error:  # a record may lack what its tables should name
        return not_applicable(f"the results from the nodes are incomplete ({error})")


def _by_value(by_node: ByNode, value: Callable[[Node], Any]) -> dict[str, Any]:
    return {name: value(node) for name, node in by_node.items()}


def _interface(exam: Examination, by_node: ByNode) -> Finding:
    wanted = exam.site.network.interface
    addresses = _by_value(by_node, lambda node: {port.name: port.ipv4 for port in node.network.interfaces if port.ipv4})
    if not wanted:
        return green(
            "the profile names no network interface: hpcml chooses an interface on each node", interfaces=addresses
        )
    without = [node for node, names in addresses.items() if wanted not in names]
    if not without:
        return green(f"network interface {wanted} has an IPv4 address on each node", interfaces=addresses)
    others = sorted(set.intersection(*(set(names) for names in addresses.values())) - {"lo"})
    sentence = (
        f"network interface {wanted} has no IPv4 address on {', '.join(without)} "
        f"(interfaces with an address: {', '.join(others) or 'none'})"
    )
    hint = (
        f"Set network.interface = '{others[0]}', or leave network.interface empty."
        if others
        else "Leave network.interface empty."
    )
    return red(sentence, hint, interfaces=addresses)


def _distance(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    gpus = _by_value(by_node, lambda node: [_slot_row(slot) for slot in node.gpu.slots])
    if not any(gpus.values()):
        return not_applicable(f"the nodes have no {VENDOR.name} GPU")
    pairs = [(node, gpu["bus_id"], gpu["nearest"]) for node, rows in gpus.items() for gpu in rows]
    if without := [node for node, rows in gpus.items() if not rows]:
        have = "have" if len(without) > 1 else "has"
        sentence = f"{', '.join(without)} {have} no {VENDOR.name} GPU, but other nodes do"
        return yellow(sentence, "Request nodes of one kind, or report missing GPUs to the site's support.", gpus=gpus)
    if not any(near for _, _, near in pairs):
        return not_applicable("no node has both a GPU and an active RDMA port")
    far = [(node, bus, near) for node, bus, near in pairs if near.get("distance") not in _NEAR]
    if far:
        node, bus, near = far[0]
        way = (
            f"at distance {near['distance']} from port {near['port']} (as in {VENDOR.tool} topo -m)"
            if near
            else "without a near port"
        )
        one = f"GPU {bus} of {node} is {way}"
        sentence = f"{len(far)} of {len(pairs)} GPUs share no PCIe switch with an RDMA port: {one}"
        hint = "Transfers may not reach the port's speed. Measure the speed with hpcml interconnect."
        return yellow(sentence, hint, gpus=gpus)
    return green("each GPU shares a PCIe switch with an RDMA port", gpus=gpus)


def _slot_row(slot: Slot) -> dict[str, Any]:
    near = {"port": slot.nearest, "distance": slot.distances[slot.nearest]} if slot.nearest else {}
    return {"bus_id": slot.bus_id, "nearest": near}


def _demand(exam: Examination, node: Node) -> Demand:
    """Return the requirements of a run with GPUs on a node, as far as environment and profile are made for that."""
    image, protocol = image_of(exam.site, exam.spec), exam.wanted.site.network.protocol
    rapids = "dask_cuda" in node.packages.importable
    return Demand(
        gpu=bool(node.gpu.slots or node.gpu.smi or node.driver),
        rdma=True,
        ucx=rapids and protocol in ("auto", "ucx"),
        rapids=rapids,
        cuda=sif.inspect(Path(image)).cuda if image else exam.site.gpu.cuda,
        whose="the image" if image else "the profile",
    )


def _trouble(check: str, exam: Examination, by_node: ByNode, **facts: Any) -> Finding | None:
    """Return the gravest finding of a run's preflight on the nodes for a check; None if it has none."""
    found = {node: find_troubles(one, _demand(exam, one)) for node, one in by_node.items()}
    each = [(node, trouble) for node, several in found.items() for trouble in several if trouble.check == check]
    if not each:
        return None
    _, worst = max(each, key=lambda pair: pair[1].fatal)
    nodes = [node for node, trouble in each if trouble == worst]
    judge_as = red if worst.fatal or check in _GRAVE else yellow
    return judge_as(f"{units.listed(nodes, 3)}: {worst.sentence}", worst.hint, **facts)


def _locked_memory(exam: Examination, by_node: ByNode) -> Finding:
    limits = _by_value(by_node, lambda node: node.process.limits["locked_memory"].soft)
    if not any(node.network.infiniband for node in by_node.values()):
        return not_applicable("the nodes have no RDMA, so no memory needs to be locked", limits=limits)
    well = green("locked memory is unlimited in jobs", limits=limits)
    return _trouble("locked-memory", exam, by_node, limits=limits) or well


def _shared_memory(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    shm = _by_value(by_node, lambda node: _shm_row(node.memory))
    for node, one in shm.items():
        if one["size"] < min(_SHM_LEAST, by_node[node].memory.total // 8):
            size = units.format_bytes(one["size"])
            sentence = f"/dev/shm of {node} has a size of only {size}: NCCL and UCX may fail to start"
            return red(sentence, "Ask the site for a larger /dev/shm, or bind another folder to /dev/shm.", shm=shm)
    for node, one in shm.items():
        if one["left_bytes"] >= _LEFT_LEAST:
            files_left = f"{len(one['left'])} old files of yours in /dev/shm of {node}"
            sentence = (
                f"{files_left} take {units.format_bytes(one['left_bytes'])} of the memory of your jobs on that node"
            )
            hint = f"Remove the unused files, in a job on {node}: rm /dev/shm/{one['left'][0]} …"
            return yellow(sentence, hint, shm=shm)
    size = units.format_bytes(min(system["size"] for system in shm.values())) if shm else "0 B"
    return green(f"/dev/shm has a size of {size} and contains no old files of yours", shm=shm)


def _shm_row(memory: record.Memory) -> dict[str, Any]:
    used = {"size": memory.shm, "used": memory.shm_used}
    return {**used, "left": list(memory.shm_left), "left_bytes": memory.shm_left_bytes}


def _scratch(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    scratch = _by_value(by_node, lambda node: _scratch_row(node.disks))
    for node, one in scratch.items():
        if one["type"] in ("tmpfs", "ramfs"):
            size = f" ({units.format_bytes(one['size'])})" if one["size"] else ""
            sentence = (
                f"{one['folder']} of {node} is a {one['type']}{size}: data spilled to this folder uses the job's memory"
            )
            hint = "If the node has a disk, set paths.scratch to a folder on this disk."
            return yellow(sentence, hint, scratch=scratch)
    folders = ", ".join(sorted({f"{place['folder']} ({place['type']})" for place in scratch.values()}))
    return green(f"node-local files go to {folders}", scratch=scratch)


def _scratch_row(disks: Disks) -> dict[str, Any]:
    disk = disks.folders.get(disks.scratch, Disk())
    return {"folder": disks.scratch, "type": disk.kind, "size": disk.bytes}


def _clocks(clocks: Mapping[str, tuple[float, float]], by_node: ByNode) -> Finding:
    measured = {node: round(ahead, 3) for node, (ahead, within) in clocks.items() if math.isfinite(within)}
    if len(by_node) < 2:
        return not_applicable("to compare clocks, check two nodes (--nodes 2)")
    surely = {node: max(0.0, abs(ahead) - within) for node, (ahead, within) in clocks.items()}
    node = max(surely, key=lambda one: surely[one], default="")
    if node and surely[node] > _SKEW:
        way = "ahead of" if clocks[node][0] > 0 else "behind"
        sentence = f"the clock of {node} is {abs(clocks[node][0]):.0f} s {way} the first node's clock"
        return (red if surely[node] > _SKEW_BAD else yellow)(sentence, leave_out([node]), ahead=measured)
    if unknown := [node for node in by_node if node not in measured]:
        return not_applicable(f"the run did not measure the clock of {', '.join(unknown)}", ahead=measured)
    return green("the nodes' clocks agree", ahead=measured)


def _shared_gpus(exam: Examination, by_node: ByNode) -> Finding:
    rows = _by_value(by_node, lambda node: [list(row) for row in node.gpu.smi])
    data = {"nvidia_smi": rows, "mps": _by_value(by_node, lambda node: node.gpu.mps)}
    if trouble := _trouble("shared-gpus", exam, by_node, **data):
        return trouble
    if not any(rows.values()):
        why_not = f"{VENDOR.tool} does not respond" if any(node.gpu.slots for node in by_node.values()) else "no GPU"
        return not_applicable(f"hpcml cannot detect whether MIG divides the nodes' GPUs: {why_not}")
    if silent := [name for name, node in by_node.items() if node.gpu.slots and not node.gpu.smi]:
        sentence = f"{VENDOR.tool} responds on other nodes, but not on {', '.join(silent)}"
        return yellow(sentence, leave_out(silent), **data)
    return green("MIG does not divide the GPUs, and NVIDIA's MPS does not run", **data)


def _driver(exam: Examination, by_node: ByNode) -> Finding:
    drivers = _by_value(by_node, lambda node: node.driver)
    if not any(drivers.values()):
        return not_applicable(f"the nodes have no {VENDOR.name} driver")
    demand = _demand(exam, next(iter(by_node.values())))
    need = str(NEEDS[int(demand.cuda)].driver) if demand.cuda in map(str, NEEDS) else ""
    data: dict[str, Any] = {"drivers": drivers, "cuda": demand.cuda, "needs": need}
    if trouble := _trouble("driver", exam, by_node, **data):
        return trouble
    if without := [node for node, driver in drivers.items() if not driver]:
        return red(f"{', '.join(without)} has no {VENDOR.name} driver, but other nodes do", leave_out(without), **data)
    if not need:
        return not_applicable(f"{demand.whose} does not name one CUDA version that hpcml knows", **data)
    shown = " or ".join(sorted({*drivers.values()}))
    return green(f"the GPU driver, {shown}, supports CUDA {demand.cuda} of {demand.whose}", **data)


def _environment(exam: Examination, by_node: ByNode) -> Finding:
    built_for = _by_value(by_node, lambda node: {key: list(names) for key, names in node.packages.built_for.items()})
    if not any("dask_cuda" in node.packages.importable for node in by_node.values()):
        return not_applicable("the runs' environment has no dask-cuda, so it is for runs without GPU workers")
    well = green("the environment's packages for GPUs fit the nodes", built_for=built_for)
    return _trouble("environment", exam, by_node, built_for=built_for) or well


def _container(exam: Examination, by_node: ByNode) -> Finding:
    program, site = exam.site.runtime.container, exam.site
    path = image_of(site, exam.spec)
    if all(node.system.in_image for node in by_node.values()):
        return green(f"{program} started the image on each node")
    paths = _by_value(by_node, lambda node: node.system.programs.get(program, ""))
    without = [name for name, node in by_node.items() if not paths[name] and not node.system.in_image]
    if not without:
        return green(f"the container program {program} is on each node", programs=paths)
    if not path:
        return not_applicable(
            f"runs do not use an image, and the container program {program} is missing on {', '.join(without)}"
        )
    hint = "Load the program's module (runtime.modules), or name another program (runtime.container)."
    return red(f"the container program {program} is missing on {', '.join(without)}", hint)


def _architecture(exam: Examination, by_node: ByNode) -> Finding:
    machines = _by_value(by_node, lambda node: node.system.machine)
    names = ", ".join(sorted({*machines.values()}))
    each = "; ".join(f"{node}: {machine}" for node, machine in machines.items())
    path = image_of(exam.site, exam.spec)
    built = sif.inspect(Path(path)).architecture if path else ""
    others = [node for node, machine in machines.items() if built and machine != built]
    if others:
        hint = f"Build the image on a {machines[others[0]]} machine."
        sentence = f"the image is built for {built}, but the nodes are {names}"
        if len(others) < len(machines):
            hint = f"Exclude these nodes: --exclude {','.join(others)}."
            sentence = (
                f"the image is built for {built}, but {', '.join(others)} {'has' if len(others) == 1 else 'have'} "
                "another architecture"
            )
        return red(sentence, hint, machines=machines)
    if len({*machines.values()}) > 1:
        return yellow(
            f"the nodes are of different architectures ({each})", "Request nodes of one kind.", machines=machines
        )
    return green(f"the nodes are {names}{', like the image' if built else ''}", machines=machines)


# -- all checks of nodes, by name --------------------------------------------------------------------------------------


class _Judging(NamedTuple):
    """A check of nodes, and the parts of the probe that it needs."""

    check: Callable[[Examination, ByNode], Finding]
    parts: tuple[str, ...] = ()


JUDGES: dict[str, _Judging] = {
    "interface": _Judging(_interface, ("interfaces",)),
    "ports": _Judging(ports.judge, ("infiniband",)),
    "gpu-distance": _Judging(_distance, ("slots",)),
    "locked-memory": _Judging(_locked_memory, ("limits", "infiniband")),
    "shared-memory": _Judging(_shared_memory, ("memory",)),
    "scratch": _Judging(_scratch, ("disks",)),
    "clocks": _Judging(lambda _, by_node: _clocks({}, by_node)),
    "shared-gpus": _Judging(_shared_gpus, ("slots",)),
    "driver": _Judging(_driver, ("modules",)),
    "environment": _Judging(_environment, ("packages", "importable")),
    "container": _Judging(_container, ("system",)),
    "architecture": _Judging(_architecture, ("system",)),
}
