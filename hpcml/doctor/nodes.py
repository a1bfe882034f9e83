"""Look at nodes: one short job, submitted as any run, and what its facts of each node mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml import schedulers, units
from hpcml.doctor import ports
from hpcml.doctor.finding import (
    ByNode,
    Examination,
    Facts,
    Finding,
    clause,
    green,
    leave_out,
    not_applicable,
    red,
    yellow,
)
from hpcml.errors import HpcmlError
from hpcml.images import facts as images
from hpcml.plan.container import image_of
from hpcml.request.record import NOT_SAID, RunRequest
from hpcml.runs import directories, handle, removal, why
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
    """Return the site and the request of the doctor's job: one worker a node, over TLS, whatever interface is there.

    It asks for one GPU where the partition has some, or for as many as the request says, but starts no GPU workers:
    their facts are read without any package for GPUs.
    """
    site = loaded.site
    spec = schedulers.get(site.scheduler).with_variables(spec, loaded.is_from_this_call)
    name = spec.place.partition or site.defaults.partition
    partition = site.partitions.get(name, Partition())
    there = partitions.gpus_of_node(site, name, spec.changed(gpus_per_node=0, qos=spec.place.qos or site.defaults.qos))
    gpus = min(1, there) if spec.size.gpus_per_node == NOT_SAID else spec.size.gpus_per_node
    pairs = tuple(schedulers.get(site.scheduler).gpu_directives(site, gpus, spec.size.gpu_type))
    plain = {name: one._replace(needs_gpus=False, gpus_per_node=0) for name, one in site.partitions.items()}
    site = site._replace(
        partitions=plain,
        resources=site.resources._replace(node_gpus=0),
        network=site.network._replace(interface="", protocol="tls"),
        fabric=site.fabric._replace(require="none"),
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
            not_applicable("there is no request to submit: see request")._replace(check="job"),
            *_nothing(names[1:]),
        ]
    try:
        run = submission.submit(prepared)
    except HpcmlError as error:
        words = clause(error.message)
        first = red(f"the job for the nodes was not submitted: {words}", error.hint)
        return [first._replace(check="job"), *_nothing(names[1:])]
    tell(f"a job looks at {exam.spec.size.nodes} node{'s' if exam.spec.size.nodes > 1 else ''} (run {run.id})")
    one = handle.RunHandle(run)
    try:
        status = one.wait_status(patience)
    except BaseException as error:
        handle.cancel(run)
        if not isinstance(error, TimeoutError):
            raise
        waited = one.status()
        why_not = f": {waited.message}" if waited.message else ""
        sentence = (
            f"the job for the nodes did not end within {units.format_seconds(patience)}{why_not}; it is cancelled"
        )
        return [not_applicable(sentence, "--patience 1h waits longer.")._replace(check="job"), *_nothing(names[1:])]
    if status.exit_status:
        answer = why.of_status(run, status)
        sentence = f"the job for the nodes failed: {answer.cause or status.message}"
        hint = answer.next_step or status.hint or f"hpcml why {run.id} says more."
        return [red(sentence, hint, run=run.id)._replace(check="job"), *_nothing(names[1:])]
    table = directories.read_json(run.paths.out / "doctor.json")
    told = table.facts if table else {}
    by_node: ByNode = {node: facts for node, facts in told.items() if isinstance(facts, dict)}
    clocks = {**dict.fromkeys(status.nodes[:1], (0.0, 0.0)), **status.clocks}  # the others' are against the first's
    removal.remove_folder(run.paths.directory)
    took = units.format_seconds(status.seconds() or 0)
    job = judge_answers(by_node, status.nodes, took)
    job = job._replace(check="job", facts={"nodes": sorted(by_node), "job": run.job})
    return [job, *(judge(exam, by_node, clocks) if by_node else _nothing(names[1:]))]


def judge_answers(by_node: ByNode, nodes: Sequence[str], took: str) -> Finding:
    """Return whether each of the job's nodes told of itself; ``took``: how long the run lasted."""
    if not by_node:
        return red("the run ended well, and no node told anything of itself", "Try again: hpcml doctor --node.")
    if silent := [node for node in nodes if node not in by_node]:
        sentence = f"the run ended well, and {', '.join(silent)} told nothing: nothing below is about it"
        return yellow(sentence, "Try again: hpcml doctor --node.")
    return green(f"a run came up on {', '.join(by_node)} and ended after {took}")


def _nothing(names: Sequence[str]) -> list[Finding]:
    return [not_applicable("the job told nothing of nodes: see job")._replace(check=name) for name in names]


def judge(exam: Examination, by_node: ByNode, clocks: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Return what the facts of nodes mean, check by check."""
    found = []
    for name, check in JUDGES.items():
        try:
            finding = check(exam, by_node) if name != "clocks" else _clocks(clocks, by_node)
        except HpcmlError as error:
            finding = not_applicable(f"it cannot be judged: {error.message}")
        except (KeyError, TypeError, AttributeError) as error:  # another hpcml's, or cut short
            finding = not_applicable(f"what the nodes told is not complete ({type(error).__name__}: {error})")
        found.append(finding._replace(check=name))
    return found


def _by_value(by_node: ByNode, value: Callable[[Facts], Any]) -> dict[str, Any]:
    return {node: value(facts) for node, facts in by_node.items()}


def _interface(exam: Examination, by_node: ByNode) -> Finding:
    wanted = exam.site.network.interface
    there = _by_value(by_node, lambda facts: {name: ips for name, ips in facts["interfaces"].items() if ips})
    if not wanted:
        return green("the profile names no interface: each node chooses by its own rule", interfaces=there)
    without = [node for node, names in there.items() if wanted not in names]
    if not without:
        return green(f"interface {wanted} has an IPv4 address on each node", interfaces=there)
    others = sorted(set.intersection(*(set(names) for names in there.values())) - {"lo"})
    sentence = (
        f"interface {wanted} has no IPv4 address on {', '.join(without)} (with one: {', '.join(others) or 'none'})"
    )
    hint = f"Set network.interface = '{others[0]}', or leave it empty." if others else "Leave network.interface empty."
    return red(sentence, hint, interfaces=there)


def _distance(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    gpus = _by_value(by_node, lambda facts: facts["gpus"])
    if not any(gpus.values()):
        return not_applicable("the nodes have no GPU of NVIDIA's")
    pairs = [(node, gpu["bus_id"], gpu["nearest"]) for node, own in gpus.items() for gpu in own]
    if without := [node for node, own in gpus.items() if not own]:
        sentence = (
            f"{', '.join(without)} {'have' if len(without) > 1 else 'has'} no GPU of NVIDIA's, and other nodes do"
        )
        return yellow(sentence, "Ask for nodes of one kind, or tell the site if they should have some.", gpus=gpus)
    if not any(near for _, _, near in pairs):
        return not_applicable("the nodes have no active RDMA port beside their GPUs")
    far = [(node, bus, near) for node, bus, near in pairs if near.get("distance") not in _NEAR]
    if far:
        node, bus, near = far[0]
        way = f"{near['distance']} away from {near['port']}" if near else "without a port"
        sentence = f"{len(far)} of {len(pairs)} GPUs share no PCIe switch with an RDMA port: {bus} of {node} is {way}"
        return yellow(sentence, "Expect less than the port's speed; hpcml fabric measures it.", gpus=gpus)
    return green("each GPU shares a PCIe switch with an RDMA port", gpus=gpus)


def _locked_memory(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    limits = _by_value(by_node, lambda facts: facts["locked_memory"])
    low = {node: limit for node, limit in limits.items() if limit is not None and by_node[node]["ports"]}
    if not any(facts["ports"] for facts in by_node.values()):
        return not_applicable("without RDMA no memory is locked", limits=limits)
    if not low:
        return green("locked memory is unlimited in jobs", limits=limits)
    node, least = min(low.items(), key=lambda one: one[1])
    sentence = f"locked memory is limited to {units.format_bytes(least)} on {node}, and InfiniBand needs it unlimited"
    hint = "Raise the shell's limit (ulimit -l unlimited), or ask the site for it in jobs."
    return red(sentence, hint, limits=limits)


def _shared_memory(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    shm = _by_value(by_node, lambda facts: facts["shm"])
    for node, one in shm.items():
        if one["size"] < min(_SHM_LEAST, by_node[node]["memory"]["total"] // 8):
            sentence = f"/dev/shm of {node} holds {units.format_bytes(one['size'])}: NCCL and UCX may not start with it"
            return red(sentence, "Ask the site for a larger /dev/shm, or bind another folder there.", shm=shm)
    for node, one in shm.items():
        if one["left_bytes"] >= _LEFT_LEAST:
            words = f"{len(one['left'])} old files of yours in /dev/shm of {node}"
            sentence = f"{words} take {units.format_bytes(one['left_bytes'])} of the memory of your jobs there"
            hint = f"Remove those that no job of yours uses: rm /dev/shm/{one['left'][0]} …, in a job on {node}."
            return yellow(sentence, hint, shm=shm)
    size = units.format_bytes(min(one["size"] for one in shm.values())) if shm else "0 B"
    return green(f"/dev/shm holds {size} and nothing old of yours", shm=shm)


def _scratch(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    scratch = _by_value(by_node, lambda facts: facts["scratch"])
    for node, one in scratch.items():
        if one["type"] in ("tmpfs", "ramfs"):
            size = f" ({units.format_bytes(one['size'])})" if one["size"] else ""
            sentence = (
                f"{one['folder']} of {node} is a {one['type']}{size}: what is spilled there takes the job's memory"
            )
            return yellow(sentence, "Set paths.scratch to a disk of the node, if it has one.", scratch=scratch)
    folders = ", ".join(sorted({f"{one['folder']} ({one['type']})" for one in scratch.values()}))
    return green(f"node-local files go to {folders}", scratch=scratch)


def _clocks(clocks: Mapping[str, tuple[float, float]], by_node: ByNode) -> Finding:
    measured = {node: round(ahead, 3) for node, (ahead, within) in clocks.items() if math.isfinite(within)}
    if len(by_node) < 2:
        return not_applicable("clocks are compared between nodes, and one was looked at (--nodes 2)")
    surely = {node: max(0.0, abs(ahead) - within) for node, (ahead, within) in clocks.items()}
    node = max(surely, key=lambda one: surely[one], default="")
    if node and surely[node] > _SKEW:
        way = "ahead of" if clocks[node][0] > 0 else "behind"
        words = f"the clock of {node} is {abs(clocks[node][0]):.0f} s {way} the first node's"
        return (red if surely[node] > _SKEW_BAD else yellow)(words, leave_out([node]), ahead=measured)
    if unknown := [node for node in by_node if node not in measured]:
        return not_applicable(f"the run did not measure the clock of {', '.join(unknown)}", ahead=measured)
    return green("the nodes' clocks agree", ahead=measured)


def _shared_gpus(exam: Examination, by_node: ByNode) -> Finding:
    del exam
    rows = _by_value(by_node, lambda facts: facts["smi"])
    facts = {"nvidia_smi": rows, "mps": _by_value(by_node, lambda told: told["mps"])}
    each = [(node, row) for node, own in rows.items() for row in own]
    if closed := [(node, row) for node, row in each if row[3] == "Prohibited"]:
        node, row = closed[0]
        return red(f"GPU {row[0]} of {node} takes no program (compute mode)", "Tell the site.", **facts)
    if busy := [node for node, runs in facts["mps"].items() if runs]:
        sentence = f"NVIDIA's MPS runs on {', '.join(busy)}: your workers would share GPUs with others"
        hint = "Ask for whole GPUs, or end the server if it is yours (echo quit | nvidia-cuda-mps-control)."
        return yellow(sentence, hint, **facts)
    if parts := [(node, row) for node, row in each if row[2] == "Enabled"]:
        node, row = parts[0]
        sentence = f"MIG divides GPU {row[0]} of {node}: parts have neither NVLink nor CUDA IPC"
        return yellow(sentence, "Ask for whole GPUs.", **facts)
    if not each:
        why_not = "nvidia-smi does not answer there" if any(one["gpus"] for one in by_node.values()) else "no GPU"
        return not_applicable(f"whether GPUs are divided is not known: {why_not}")
    if silent := [node for node, own in rows.items() if not own and by_node[node]["gpus"]]:
        sentence = f"nvidia-smi does not answer on {', '.join(silent)}, and it does on other nodes"
        return yellow(sentence, leave_out(silent), **facts)
    return green("the GPUs are whole, and no MPS runs", **facts)


def _driver(exam: Examination, by_node: ByNode) -> Finding:
    drivers = _by_value(by_node, lambda facts: facts["smi"][0][1] if facts["smi"] else facts["driver"])
    if not any(drivers.values()):
        return not_applicable("the nodes show no NVIDIA driver")
    path = image_of(exam.site, exam.spec)
    cuda = images.inspect(Path(path)).cuda if path else exam.site.gpu.cuda
    need = images.pins().get(f"driver-cuda{cuda}", "")
    whose = f"the image's CUDA {cuda}" if path else f"CUDA {cuda} of the profile"
    facts: dict[str, Any] = {"drivers": drivers, "cuda": cuda, "needs": need}
    if not need:
        return not_applicable("which CUDA runs use is not said (gpu.cuda, --image)", **facts)
    for node, driver in drivers.items():
        if int(driver.partition(".")[0] or 0) < int(need):
            sentence = f"the driver of {node} is {driver or 'not there'}, and {whose} needs {need} or newer"
            return red(sentence, "Use an image for an older CUDA, or ask the site for a newer driver.", **facts)
    return green(f"the driver, {' or '.join(sorted({*drivers.values()}))}, runs {whose}", **facts)


def _container(exam: Examination, by_node: ByNode) -> Finding:
    program, site = exam.site.runtime.container, exam.site
    path = image_of(site, exam.spec)
    if all(facts["in_image"] for facts in by_node.values()):
        return green(f"{program} started the image on each node")
    without = [node for node, facts in by_node.items() if not facts["program"] and not facts["in_image"]]
    if not without:
        return green(f"{program} is on each node", programs=_by_value(by_node, lambda facts: facts["program"]))
    if not path:
        return not_applicable(f"runs use no image, and {program} is not on {', '.join(without)}")
    hint = "Load its module (runtime.modules), or name another program (runtime.container)."
    return red(f"{program} is not on {', '.join(without)}", hint)


def _architecture(exam: Examination, by_node: ByNode) -> Finding:
    machines = _by_value(by_node, lambda facts: str(facts["machine"]))
    words = ", ".join(sorted({*machines.values()}))
    each = "; ".join(f"{node}: {machine}" for node, machine in machines.items())
    path = image_of(exam.site, exam.spec)
    built = images.inspect(Path(path)).architecture if path else ""
    others = [node for node, machine in machines.items() if built and machine != built]
    if others:
        hint = f"Build it on a machine that is {machines[others[0]]}."
        sentence = f"the image is built for {built}, and the nodes are {words}"
        if len(others) < len(machines):
            hint = f"Leave out those that are not: --exclude {','.join(others)}."
            sentence = (
                f"the image is built for {built}, and {', '.join(others)} {'is' if len(others) == 1 else 'are'} not"
            )
        return red(sentence, hint, machines=machines)
    if len({*machines.values()}) > 1:
        return yellow(
            f"the nodes are of different architectures ({each})", "Ask for nodes of one kind.", machines=machines
        )
    return green(f"the nodes are {words}{', as the image' if built else ''}", machines=machines)


JUDGES: dict[str, Callable[[Examination, ByNode], Finding]] = {
    "interface": _interface,
    "ports": ports.judge,
    "gpu-distance": _distance,
    "locked-memory": _locked_memory,
    "shared-memory": _shared_memory,
    "scratch": _scratch,
    "clocks": lambda _, by_node: _clocks({}, by_node),
    "shared-gpus": _shared_gpus,
    "driver": _driver,
    "container": _container,
    "architecture": _architecture,
}
