"""Look at nodes: one short job, submitted as any run, and what the probes of its nodes mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import schedulers, units
from hpcml.doctor.checks import judge_adapters
from hpcml.doctor.finding import (
    RED,
    ByNode,
    Examination,
    Finding,
    clause,
    green,
    leave_out,
    not_applicable,
    red,
    yellow,
)
from hpcml.errors import HpcmlError
from hpcml.images import sif
from hpcml.node.hardware import record
from hpcml.node.hardware.record import NEEDS, Disk, Disks, Node, Port, Slot
from hpcml.plan.container import image_of
from hpcml.plan.plan import ADAPTERS
from hpcml.request.record import NOT_SAID, RunRequest
from hpcml.runs import directories, handle, why
from hpcml.runs import submit as submission
from hpcml.schedulers import partitions
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Partition
from hpcml.units import Memory, TimeLimit

_NEAR = ("PIX", "PXB")
_SHM_LEAST = 1 << 30  # bytes; NCCL, UCX and Dask's workers pass data through it
_LEFT_LEAST = 1 << 20  # bytes of old files that are worth a word
_SKEW, _SKEW_BAD = 1.0, 60.0  # seconds; beyond the second a run's certificates are refused


def request(loaded: LoadedSite, spec: RunRequest) -> tuple[LoadedSite, RunRequest]:
    """Return the site and the request of the doctor's job: one worker a node, over TLS, whatever its interface.

    It asks for one GPU where the partition has some, or for as many as the request says, but starts no GPU workers:
    their facts are read without any package for GPUs.
    """
    site = loaded.site
    spec = schedulers.get(site.scheduler).with_variables(spec, loaded.is_from_this_call)
    name = spec.place.partition or site.defaults.partition
    partition = site.partitions.get(name, Partition())
    node_gpus = partitions.gpus_of_node(
        site, name, spec.changed(gpus_per_node=0, qos=spec.place.qos or site.defaults.qos)
    )
    gpus = min(1, node_gpus) if spec.size.gpus_per_node == NOT_SAID else spec.size.gpus_per_node
    pairs = tuple(schedulers.get(site.scheduler).gpu_directives(site, gpus, spec.size.gpu_type))
    plain = {name: one._replace(needs_gpus=False, gpus_per_node=0) for name, one in site.partitions.items()}
    site = site._replace(
        partitions=plain,
        resources=site.resources._replace(node_gpus=0),
        network=site.network._replace(interface="", protocol="tls"),
        interconnect=site.interconnect._replace(require="none"),
        workers=site.workers._replace(per_node=1),
    )
    nodes = spec.size.nodes
    if nodes == NOT_SAID:
        nodes = 1 if schedulers.get(site.scheduler).ONE_MACHINE else min(2, partition.max_nodes or 2)
    spec = spec.changed(
        nodes=nodes,
        gpus_per_node=0,
        gpu_type="",
        cpus_per_node=2,
        memory_per_node=Memory("2G"),
        time=TimeLimit("5"),
        sbatch=(*spec.place.sbatch, *pairs),
    )
    return loaded._replace(site=site), spec


def look(exam: Examination, patience: float, tell: Callable[[str], None]) -> list[Finding]:
    """Submit the job, wait for its end and judge what it saw; it is cancelled if it does not end in time.

    Parameters
    ----------
    patience
        Seconds for the job to start and end.
    tell
        Called with a line on what is waited for.
    """
    names = ["job", *JUDGES]
    try:
        prepared = exam.prepared()
    except HpcmlError:
        return [
            not_applicable("no job was submitted, because the check 'request' failed")._replace(check="job"),
            *_nothing(names[1:]),
        ]
    try:
        run = submission.submit(prepared)
    except HpcmlError as error:
        sentence = clause(error.message)
        first = red(f"the job that checks the nodes was not submitted: {sentence}", error.hint)
        return [first._replace(check="job"), *_nothing(names[1:])]
    one = handle.RunHandle(run)
    try:
        tell(f"a job checks {units.counted(exam.spec.size.nodes, 'node')} (run {run.id})")
        status = one.wait_status(patience)
    except BaseException as error:
        handle.cancel(run)
        if not isinstance(error, TimeoutError):
            raise
        waited = one.now()
        why_not = f": {waited.message}" if waited.message else ""
        sentence = (
            f"the job that checks the nodes did not end within {units.format_seconds(patience)}{why_not}; "
            "hpcml cancelled the job"
        )
        return [not_applicable(sentence, "To wait longer: --patience 1h.")._replace(check="job"), *_nothing(names[1:])]
    if status.ending.exit_status:
        answer = why.of_status(run, status)
        sentence = f"the job that checks the nodes failed: {answer.cause or status.message}"
        hint = answer.next_step or status.hint or f"For more details: hpcml why {run.id}"
        return [red(sentence, hint, run=run.id)._replace(check="job"), *_nothing(names[1:])]
    table = directories.read_json(run.paths.out / "doctor.json")
    answers = {name: node for name, node in (table.facts if table else {}).items() if isinstance(node, dict)}
    nodes = status.allocation.nodes
    clocks = {**dict.fromkeys(nodes[:1], (0.0, 0.0)), **status.progress.clocks}  # the others' are against the first's
    directories.remove_folder(run.paths.directory)
    took = units.format_seconds(status.seconds() or 0)
    job = judge_answers(answers, nodes, took)
    job = job._replace(check="job", facts={"nodes": sorted(answers), "job": run.job})
    return [job, *(judge(exam, answers, clocks) if answers else _nothing(names[1:]))]


def judge_answers(by_node: Mapping[str, object], nodes: Sequence[str], took: str) -> Finding:
    """Return whether each of the job's nodes told of itself; ``took``: how long the run lasted."""
    if not by_node:
        return red("the job succeeded, but no node reported any results", "Try again: hpcml doctor --node.")
    if silent := [node for node in nodes if node not in by_node]:
        sentence = f"the job succeeded, but the results below are incomplete: {', '.join(silent)} reported nothing"
        return yellow(sentence, "Try again: hpcml doctor --node.")
    return green(f"a run started on {', '.join(by_node)} and ended after {took}")


def _nothing(names: Sequence[str]) -> list[Finding]:
    return [
        not_applicable("the job on the nodes reported nothing: see the check 'job'")._replace(check=name)
        for name in names
    ]


def judge(exam: Examination, answers: Mapping[str, object], clocks: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Return what the answers of nodes mean, check by check; ``answers`` are probes as JSON, by node."""
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
    addresses = _by_value(by_node, lambda node: {one.name: one.ipv4 for one in node.network.interfaces if one.ipv4})
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
        return not_applicable("the nodes have no NVIDIA GPU")
    pairs = [(node, gpu["bus_id"], gpu["nearest"]) for node, rows in gpus.items() for gpu in rows]
    if without := [node for node, rows in gpus.items() if not rows]:
        sentence = f"{', '.join(without)} {'have' if len(without) > 1 else 'has'} no NVIDIA GPU, but other nodes do"
        return yellow(sentence, "Request nodes of one kind, or report missing GPUs to the site's support.", gpus=gpus)
    if not any(near for _, _, near in pairs):
        return not_applicable("no node has both a GPU and an active RDMA port")
    far = [(node, bus, near) for node, bus, near in pairs if near.get("distance") not in _NEAR]
    if far:
        node, bus, near = far[0]
        way = (
            f"at distance {near['distance']} from port {near['port']} (as in nvidia-smi topo -m)"
            if near
            else "without a near port"
        )
        one = f"GPU {bus} of {node} is {way}"
        sentence = f"{len(far)} of {len(pairs)} GPUs share no PCIe switch with an RDMA port: {one}"
        return yellow(
            sentence, "Transfers may not reach the port's speed. Measure the speed with hpcml fabric.", gpus=gpus
        )
    return green("each GPU shares a PCIe switch with an RDMA port", gpus=gpus)


def _slot_row(slot: Slot) -> dict[str, Any]:
    near = {"port": slot.nearest, "distance": slot.distances[slot.nearest]} if slot.nearest else {}
    return {"bus_id": slot.bus_id, "nearest": near}


def _locked_memory(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    limits = _by_value(by_node, lambda node: node.process.limits["locked_memory"].soft)
    low = {name: limit for name, limit in limits.items() if limit is not None and by_node[name].network.infiniband}
    if not any(node.network.infiniband for node in by_node.values()):
        return not_applicable("the nodes have no RDMA, so no memory needs to be locked", limits=limits)
    if not low:
        return green("locked memory is unlimited in jobs", limits=limits)
    node, least = min(low.items(), key=lambda one: one[1])
    sentence = f"locked memory is limited to {units.format_bytes(least)} on {node}, "
    sentence += "but InfiniBand needs unlimited locked memory"
    hint = "Raise your shell's limit (ulimit -l unlimited), or ask the site for unlimited locked memory in jobs."
    return red(sentence, hint, limits=limits)


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
    size = units.format_bytes(min(one["size"] for one in shm.values())) if shm else "0 B"
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
            return yellow(
                sentence, "If the node has a disk, set paths.scratch to a folder on this disk.", scratch=scratch
            )
    folders = ", ".join(sorted({f"{one['folder']} ({one['type']})" for one in scratch.values()}))
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
    del exam
    rows = _by_value(by_node, lambda node: [list(row) for row in node.gpu.smi])
    data = {"nvidia_smi": rows, "mps": _by_value(by_node, lambda node: node.gpu.mps)}
    each = [(name, row) for name, node in by_node.items() for row in node.gpu.smi]
    if closed := [(name, row) for name, row in each if row.compute_mode == "Prohibited"]:
        name, row = closed[0]
        return red(
            f"GPU {row.bus_id} of {name} accepts no programs (compute mode)",
            "Report this GPU to the site's support.",
            **data,
        )
    if busy := [name for name, node in by_node.items() if node.gpu.mps]:
        sentence = f"NVIDIA's MPS runs on {', '.join(busy)}: your workers would share GPUs with other programs"
        hint = "Request whole GPUs, or stop the MPS server if it is yours (echo quit | nvidia-cuda-mps-control)."
        return yellow(sentence, hint, **data)
    if parts := [(name, row) for name, row in each if row.mig == "Enabled"]:
        name, row = parts[0]
        sentence = f"MIG divides GPU {row.bus_id} of {name}: MIG instances cannot use NVLink or CUDA IPC"
        return yellow(sentence, "Request whole GPUs.", **data)
    if not each:
        why_not = "nvidia-smi does not respond" if any(node.gpu.slots for node in by_node.values()) else "no GPU"
        return not_applicable(f"hpcml cannot detect whether MIG divides the nodes' GPUs: {why_not}")
    if silent := [name for name, node in by_node.items() if node.gpu.slots and not node.gpu.smi]:
        sentence = f"nvidia-smi responds on other nodes, but not on {', '.join(silent)}"
        return yellow(sentence, leave_out(silent), **data)
    return green("MIG does not divide the GPUs, and NVIDIA's MPS does not run", **data)


def _driver(exam: Examination, by_node: ByNode) -> Finding:
    drivers = _by_value(by_node, lambda node: node.driver)
    if not any(drivers.values()):
        return not_applicable("the nodes have no NVIDIA driver")
    path = image_of(exam.site, exam.spec)
    cuda = sif.inspect(Path(path)).cuda if path else exam.site.gpu.cuda
    need = str(NEEDS[int(cuda)].driver) if cuda in map(str, NEEDS) else ""
    whose = f"the image's CUDA {cuda}" if path else f"CUDA {cuda} of the profile"
    data: dict[str, Any] = {"drivers": drivers, "cuda": cuda, "needs": need}
    if not need:
        silent = "the image" if path else "gpu.cuda of the profile"
        return not_applicable(f"{silent} does not name one CUDA version that hpcml knows", **data)
    for node, driver in drivers.items():
        if record.major(driver) < int(need):
            sentence = f"the GPU driver of {node} is {driver or 'missing'}, but {whose} needs driver {need} or newer"
            return red(sentence, "Use an image for an older CUDA, or ask the site for a newer GPU driver.", **data)
    return green(f"the GPU driver, {' or '.join(sorted({*drivers.values()}))}, supports {whose}", **data)


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


# -- RDMA ports: those of the adapters that the profile names, or all that carry data ---------------------------------


Ports = Mapping[str, Sequence[Port]]  # by node
_INFINIBAND = "InfiniBand"


def judge_ports(exam: Examination, by_node: ByNode) -> Finding:
    """Return whether each node has the ports that runs use, active and of one link type."""
    ports: Ports = {name: node.network.infiniband for name, node in by_node.items()}
    named = exam.site.network.adapters
    faults = list(_faults(ports, named))
    if not any(ports.values()) and not named:
        return not_applicable("the nodes have no InfiniBand or RoCE port")
    if all(ports.values()):
        faults += _wrong_variables(ports, named, by_node)
    worst = next((one for one in faults if one.state == RED), faults[0] if faults else _ports_well(ports, named))
    rows = {name: [_port_row(port) for port in several] for name, several in ports.items()}
    return worst._replace(facts={"ports": rows, **worst.facts})


def _port_row(port: Port) -> dict[str, Any]:
    link = port.link
    row = {"name": port.name, "device": port.device, "state": link.state, "physical_state": link.physical_state}
    return {**row, "link_layer": link.link_layer, "rate": link.rate}


def _faults(ports: Ports, named: Sequence[str]) -> Iterator[Finding]:
    without = [node for node, several in ports.items() if not several]
    if without and len(without) < len(ports):
        sentence = f"{', '.join(without)} {'have' if len(without) > 1 else 'has'} no RDMA port, but other nodes do"
        yield red(sentence, leave_out(without))
    elif without and named:
        sentence = f"network.adapters of the profile contains {', '.join(named)}, but the nodes have no RDMA port"
        yield yellow(sentence, "Set network.adapters = [] in the profile, or request nodes with RDMA ports.")
    elif not without:
        yield from _of_named(ports, named) if named else _of_all(ports)


def _of_named(ports: Ports, named: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the adapters that the profile names; all others are spare."""
    lacking = {node: [name for name in named if name not in _devices(several)] for node, several in ports.items()}
    nowhere = [name for name in named if all(name in lacks for lacks in lacking.values())]
    here = {
        node: several for node, lacks in lacking.items() if (several := [name for name in lacks if name not in nowhere])
    }
    if here:
        node, names = next(iter(here.items()))
        yield red(f"{node} has no adapter {', '.join(names)}, but other nodes do", leave_out([*here]))
    down = [(node, port) for node, several in ports.items() for port in _down(several) if port.device in named]
    yield from _told_down(down)
    layers = {
        (node, name): layer
        for node, several in ports.items()
        for name, layer in _active(several).items()
        if name in named
    }
    yield from _mixed(layers, named, len(ports))
    if nowhere:
        nodes = ", ".join(ports)
        sentence = (
            f"network.adapters of the profile contains {', '.join(nowhere)}, "
            f"but {nodes} {'have' if len(ports) > 1 else 'has'} no such adapter"
        )
        adapters = [name for name in named if name not in nowhere] or _on_each(ports)
        yield yellow(
            sentence,
            f"Set network.adapters = {adapters} in the profile, or report the missing adapters to the site's support.",
        )


def _mixed(layers: Mapping[tuple[str, str], str], named: Sequence[str], nodes: int) -> Iterator[Finding]:
    """Yield which named adapters are not of the link type that most are of; ``layers`` is by node and adapter."""
    counts = Counter(layers.values())
    usual = max(counts, key=lambda layer: (counts[layer], layer == _INFINIBAND), default="")
    odd = [pair for pair, layer in layers.items() if layer != usual]
    if not odd:
        return
    node, name = odd[0]
    others = [pair for pair, layer in layers.items() if layer == usual]
    at, other = min(others, key=lambda pair: (pair[1] != name, pair[0] != node))
    sentence = f"adapter {name} of {node} uses {layers[node, name]}, but {other} of {at} uses {usual}"
    names = {one for _, one in odd}
    if len(odd) == nodes * len(names):  # the same on each node: so they are meant
        hint = (
            "List only adapters of one link type in the profile: "
            f"network.adapters = {[one for one in named if one not in names]}."
        )
        yield red(sentence, hint)
    else:
        yield red(sentence, leave_out(dict.fromkeys(one for one, _ in odd)))


def _of_all(ports: Ports) -> Iterator[Finding]:
    """Yield what is wrong with the ports where the profile names no adapters.

    Data goes over InfiniBand where a node has it, else over Ethernet; what is beside it is for files or management.
    """
    active = {node: _active(several) for node, several in ports.items()}
    if dark := [node for node in ports if not active[node]]:
        first = ports[dark[0]][0]
        sentence = f"{_port_state(dark[0], first)}, and the node has no active port"
        expected = any(active.values()) or any(port.link.link_layer == _INFINIBAND for port in ports[dark[0]])
        yield (
            red(sentence, leave_out(dark))
            if expected
            else yellow(sentence, "If the port should be active, report the port to the site's support.")
        )
        return
    kinds = {node: _kind(several) for node, several in active.items()}
    if len({*kinds.values()}) > 1:
        each = "; ".join(f"{node}: {kind}" for node, kind in kinds.items())
        yield red(f"nodes have ports of different link types ({each})", "Request nodes of one kind.")
        return
    kind = next(iter(kinds.values()))
    down = [(node, port) for node, several in ports.items() for port in _down(several) if port.link.link_layer == kind]
    yield from _told_down(
        [(node, port) for node, port in down if any(port.device in several for several in active.values())]
    )
    counts = {node: sum(layer == kind for layer in several.values()) for node, several in active.items()}
    if fewer := [node for node, count in counts.items() if count < max(counts.values())]:
        most = max(counts, key=lambda node: counts[node])
        sentence = f"{fewer[0]} has {counts[fewer[0]]} active adapters of {kind}, but {most} has {counts[most]}"
        yield yellow(sentence, leave_out(fewer))
    if down:
        node, port = down[0]
        sentence = f"{_port_state(node, port)}, and the profile does not say if runs use this port"
        yield yellow(
            sentence,
            f"Set network.adapters = {_on_each(ports)} in the profile, or report the port to the site's support.",
        )


def _told_down(down: Sequence[tuple[str, Port]]) -> Iterator[Finding]:
    if down:
        node, port = down[0]
        yield red(_port_state(node, port), leave_out(dict.fromkeys(node for node, _ in down)))


def _wrong_variables(ports: Ports, named: Sequence[str], by_node: ByNode) -> Iterator[Finding]:
    """Yield what variables of the jobs choose that a node does not have, or leave unused."""
    for node, several in ports.items():
        active = _active(several)
        used = [name for name in named if name in active] or [name for name in active if active[name] == _kind(active)]
        environment = by_node[node].process.environment
        values = {name: environment[name] for name in ADAPTERS if environment.get(name)}
        finding = judge_adapters(values, tuple(active), used, f"the active adapters of {node} are")
        if values and finding.state != "green":
            yield finding


def _ports_well(ports: Ports, named: Sequence[str]) -> Finding:
    spare = sorted({port.device for several in ports.values() for port in _down(several)} - {*named})
    also = f"; the unused {', '.join(spare)} {'are' if len(spare) > 1 else 'is'} down" if spare else ""
    whose = f"the ports of {', '.join(names)}" if (names := named or _on_each(ports)) else "the nodes' ports"
    return green(f"{whose} are active and of one link type on each node{also}")


def _devices(ports: Sequence[Port]) -> list[str]:
    return sorted({port.device for port in ports})


def _active(ports: Sequence[Port]) -> dict[str, str]:
    """Return the link type of each adapter of a node that has an active port: InfiniBand, if one of its ports is."""
    active = sorted((port for port in ports if port.link.state == "ACTIVE"), key=lambda port: port.device)
    infiniband = {port.device for port in active if port.link.link_layer == _INFINIBAND}
    return {port.device: _INFINIBAND if port.device in infiniband else port.link.link_layer for port in active}


def _down(ports: Sequence[Port]) -> list[Port]:
    """Return a port of each adapter of a node that has none that is active."""
    active = _active(ports)
    first = {port.device: port for port in reversed(ports)}
    return [first[name] for name in _devices(ports) if name not in active]


def _kind(active: Mapping[str, str]) -> str:
    """Return the link type over which a node's data goes."""
    return _INFINIBAND if _INFINIBAND in active.values() else next(iter(active.values()), "")


def _on_each(ports: Ports) -> list[str]:
    """Return the adapters that are active on each node and of the kind that carries data there."""
    active = [_active(several) for several in ports.values()]
    names = [{name for name, layer in one.items() if layer == _kind(one)} for one in active]
    return sorted(set.intersection(*names)) if names else []


def _port_state(node: str, port: Port) -> str:
    state = f"{port.link.state or 'in no known state'} ({port.link.physical_state or 'no physical state'})"
    return f"{port.link.link_layer or 'RDMA'} port {port.name} of {node} is {state}"


# -- all checks of nodes, by name --------------------------------------------------------------------------------------


class _Judging(NamedTuple):
    """A check of nodes, and the parts of the probe that it needs."""

    check: Callable[[Examination, ByNode], Finding]
    parts: tuple[str, ...] = ()


JUDGES: dict[str, _Judging] = {
    "interface": _Judging(_interface, ("interfaces",)),
    "ports": _Judging(judge_ports, ("infiniband",)),
    "gpu-distance": _Judging(_distance, ("slots",)),
    "locked-memory": _Judging(_locked_memory, ("limits", "infiniband")),
    "shared-memory": _Judging(_shared_memory, ("memory",)),
    "scratch": _Judging(_scratch, ("disks",)),
    "clocks": _Judging(lambda _, by_node: _clocks({}, by_node)),
    "shared-gpus": _Judging(_shared_gpus, ("slots",)),
    "driver": _Judging(_driver, ("modules",)),
    "container": _Judging(_container, ("system",)),
    "architecture": _Judging(_architecture, ("system",)),
}
