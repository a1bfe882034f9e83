"""What is wrong with a node for a run, by its record alone: what a run's preflight and `hpcml doctor` say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware import ports
from hpcml.node.hardware.record import NEEDS, Limit, Node
from hpcml.node.hardware.sysfs import from_ranges
from hpcml.units import RDMA, counted, format_bytes, listed


class Demand(NamedTuple):
    """What a run asks of a node."""

    gpus: int = 0  # that it was promised; 0: they are not counted
    gpu: bool = False  # whether it uses GPUs
    rdma: bool = False  # whether RDMA ports carry its data
    ucx: bool = False  # whether its comms speak UCX
    rapids: bool = False  # whether its processes use RAPIDS: then their packages are judged
    cuda: str = ""  # the CUDA that GPUs should run: 12, 13; empty: it is not said
    whose: str = "the profile"  # who says so


class Trouble(NamedTuple):
    """Something that is wrong with a node."""

    check: str  # which of the doctor's checks shows it; others are for runs alone
    sentence: str  # without capital and full stop, so that a node's name can go before it
    hint: str  # what to do about it, one sentence
    fatal: bool = False  # the run cannot work with it; else it works slowly or in part, or nothing came in time


def find_troubles(node: Node, demand: Demand) -> list[Trouble]:
    """Return the faults of a node for a run, the fatal first; ``node`` is its probe."""
    found: list[Trouble] = []
    if demand.gpus:
        found += _gpus_missing(node, demand.gpus)
    if demand.gpu:
        found += [*_wrong_cuda(node, demand), *(_old_gpus(node) if demand.rapids else ())]
    if demand.rapids:
        found += [*_mixed_packages(node), *_parts_missing(node, demand)]
    if demand.ucx:
        found += _ucx_without_rdma(node)
    if demand.rdma:
        found += [*_ports(node), *_locked_memory(node)]
    if demand.gpu:
        found += [*_shared(node), *_far_cpus(node)]
    return sorted(found, key=lambda trouble: not trouble.fatal)


def _gpus_missing(node: Node, expected: int) -> Iterable[Trouble]:
    fault, given, count = node.probing.errors.get("gpu"), node.gpu.visible_devices, len(node.gpu.gpus)
    seen = node.gpu.visible_count
    if fault and not count:
        late = "driver" in node.probing.late
        needs = f"nvidia-ml-py and the library of {VENDOR.name}'s driver"
        hint = f"Request nodes with GPUs. The run's environment needs {needs}."
        if late:
            hint = f"{VENDOR.name}'s driver starts slowly or hangs. If the workers do not start, exclude this node."
        elif node.system.modules.nvidia:
            hint = f"The node has {VENDOR.name}'s driver: start the container with {VENDOR.image_option},"
            hint += " and install nvidia-ml-py in the environment."
        yield Trouble("gpus", f"no GPU is visible ({fault})", hint, fatal=not late)
        return
    if fault:
        yield Trouble(
            "gpus",
            f"{VENDOR.interface} reports a fault ({fault})",
            "Exclude this node, and report it to the site's support.",
        )
    if seen < expected:
        why = f"{VENDOR.visible} is not set" if given is None else f"{VENDOR.visible} is '{given}'"
        sentence = f"the job sees {counted(seen, 'GPU')}, but the run requests {expected}"
        hint = f"Check slurm.gpu_request in the profile, and run {VENDOR.tool} on this node."
        sentence = f"{sentence} ({why}, the driver shows {counted(count, 'GPU')})"
        yield Trouble("gpus", sentence, hint, fatal=True)


def _wrong_cuda(node: Node, demand: Demand) -> Iterable[Trouble]:
    built, driver, speaks = _built_for(node) if demand.rapids else 0, node.driver, node.gpu.cuda_driver
    (profile_cuda,) = _numbers(demand.cuda)[:1] or (0,)
    needed = built or profile_cuda
    environment = f"this environment's RAPIDS is built for CUDA {built}"
    if needed in NEEDS and driver and not _runs(needed, driver, speaks):
        fitting = [major for major in NEEDS if _runs(major, driver, speaks)]
        hint = "Ask the site for a newer driver, or use an image or environment for an older CUDA."
        if fitting:
            hint = f"Install hpcml's extra cuda{fitting[-1]}, or use an image for CUDA {fitting[-1]}."
        needs = f"{environment}, which needs" if built else f"CUDA {needed} of {demand.whose} needs"
        able = f" supports CUDA {speaks}, but" if speaks else " is too old:"
        sentence = f"driver {driver}{able} {needs} driver {NEEDS[needed].driver} or newer"
        yield Trouble("driver", sentence, hint, fatal=bool(built))
    elif profile_cuda and built and profile_cuda != built:
        able = f", which driver {driver} can run" if built in NEEDS and driver else ""
        sentence = f"{demand.whose} names CUDA {profile_cuda}, but {environment}{able}"
        hint = f"Use an environment or image for CUDA {profile_cuda}, or correct gpu.cuda."
        yield Trouble("environment", sentence, hint)


def _runs(cuda: int, driver: str, speaks: str) -> bool:
    """Whether a driver runs RAPIDS for a CUDA; an older one speaks that CUDA through NVIDIA's package cuda-compat."""
    needs = NEEDS[cuda]
    return _numbers(driver) >= (needs.driver,) or _numbers(speaks) >= needs.cuda


def _built_for(node: Node) -> int:
    """Return the CUDA that the environment's packages are built for; 0 if there are none, or several are mixed."""
    major, *others = majors(node) or [0]
    return 0 if others else major


def majors(node: Node) -> dict[int, list[str]]:
    """Return the distributions by CUDA's major, without NCCL's, of which either build serves both."""
    built_for = node.packages.built_for.items()
    kept = {int(key): [name for name in names if "nccl" not in name] for key, names in built_for}
    return {major: names for major, names in sorted(kept.items()) if names}


def _old_gpus(node: Node) -> Iterable[Trouble]:
    built = _built_for(node)
    for gpu in node.gpu.gpus if built in NEEDS else ():
        capability = gpu.shape.capability
        if gpu.visible and capability and capability < NEEDS[built].capability:
            has, least = (".".join(map(str, pair)) for pair in (capability, NEEDS[built].capability))
            sentence = f"GPU {gpu.index} ({gpu.name}) has compute capability {has}"
            sentence += f", but RAPIDS for CUDA {built} needs {least}"
            yield Trouble("environment", sentence, "Request newer GPUs.", fatal=True)


def _mixed_packages(node: Node) -> Iterable[Trouble]:
    by_cuda = majors(node)
    if len(by_cuda) > 1:
        lists = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in by_cuda.items())
        hint = "Create the environment again with only one of the extras cuda12 and cuda13."
        sentence = f"the environment mixes packages for different CUDA versions ({lists})"
        yield Trouble("environment", sentence, hint, fatal=True)


def _parts_missing(node: Node, demand: Demand) -> Iterable[Trouble]:
    errors = node.probing.errors
    extra = f"cuda{_built_for(node)}" if _built_for(node) else "cuda12 or cuda13"
    importable = set(node.packages.importable)
    missing = {"dask_cuda", "distributed_ucxx"} - importable if not errors.get("importable") else set()
    if demand.gpu and "dask_cuda" in missing:
        sentence = "GPU workers need dask-cuda, which is not installed"
        yield Trouble("environment", sentence, f"Install hpcml's extra {extra}.", fatal=True)
    if demand.ucx and "distributed_ucxx" in missing:
        hint = f"Install hpcml's extra {extra}, or use --set network.protocol=tls."
        yield Trouble("environment", "protocol ucx needs distributed-ucxx, which is not installed", hint, fatal=True)
    elif demand.ucx and (fault := errors.get("ucx")):
        hint = "Check the environment variables UCX_*, and which UCX library is loaded."
        yield Trouble("environment", f"UCX does not work here ({fault})", hint, fatal="ucx" not in node.probing.late)


def _ucx_without_rdma(node: Node) -> Iterable[Trouble]:
    """The silent case: UCX starts, and moves everything over TCP."""
    build = node.ucx
    if not ports.active(node.network.infiniband) or not build.transports or any(map(RDMA.fullmatch, build.transports)):
        return
    why = "this UCX was built without InfiniBand"
    hint = "UCX from pip does not support InfiniBand: use hpcml's image, conda-forge's ucx with rdma-core,"
    hint += " or the site's UCX (RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true)."
    if node.system.modules.verbs == ():
        why = "/dev/infiniband does not exist"
        hint = "Bind /dev/infiniband into the container, or start the container without --contain."
    elif {"ib", "ib_mlx5"} & set(build.modules):
        why = "UCX found no usable InfiniBand device"
        hint = "Check the variables UCX_TLS and UCX_NET_DEVICES, and whether the image contains rdma-core."
    which = f"UCX {build.version} ({build.library})"
    yield Trouble("environment", f"{which} would use TCP between nodes, not this node's RDMA network: {why}", hint)


def _ports(node: Node) -> Iterable[Trouble]:
    hint = "If this port is active on other nodes, exclude this node and report it to the site's support."
    for port in ports.down([port for port in node.network.infiniband if port.link.link_layer == ports.INFINIBAND]):
        yield Trouble("ports", ports.described(port), hint)


def _locked_memory(node: Node) -> Iterable[Trouble]:
    limit = node.process.limits.get("locked_memory", Limit(None, None))
    if not node.network.infiniband or limit.soft is None:
        return
    hint = "Ask the site for unlimited locked memory in jobs (slurm.conf: PropagateResourceLimitsExcept=MEMLOCK)."
    if limit.hard is None:
        hint = "The hard limit is unlimited: add 'ulimit -l unlimited' to runtime.setup."
    sentence = f"locked memory is limited to {format_bytes(limit.soft)}, but RDMA needs unlimited locked memory"
    yield Trouble("locked-memory", sentence, hint)


def _shared(node: Node) -> Iterable[Trouble]:
    """What keeps a process from having a GPU whole and alone; only a thorough probe has all of it."""
    if closed := [row.bus_id for row in node.gpu.smi if row.compute_mode == "Prohibited"]:
        sentence = f"{_gpus(closed)} accepts no programs (compute mode)"
        yield Trouble("shared-gpus", sentence, "Report this GPU to the site's support.", fatal=True)
    if node.gpu.mps:
        sentence = "NVIDIA's MPS is running, so workers would share GPUs with other programs"
        hint = "Request whole GPUs, or stop the MPS server if it is yours (echo quit | nvidia-cuda-mps-control)."
        yield Trouble("shared-gpus", sentence, hint)
    divided = [str(gpu.index) for gpu in node.gpu.gpus if gpu.visible and gpu.shape.mig]
    if divided := divided or [row.bus_id for row in node.gpu.smi if row.mig == "Enabled"]:
        sentence = f"MIG divides {_gpus(divided)}, but parts of GPUs have neither NVLink nor CUDA IPC"
        yield Trouble("shared-gpus", sentence, "Request whole GPUs.")


def _far_cpus(node: Node) -> Iterable[Trouble]:
    cpus = node.process.cpus.list
    allowed = from_ranges(cpus)
    far = [gpu for gpu in node.gpu.gpus if gpu.visible and gpu.shape.cpus and not allowed & from_ranges(gpu.shape.cpus)]
    if allowed and far:
        cores = listed(sorted({gpu.shape.cpus for gpu in far}))
        near = _gpus([str(gpu.index) for gpu in far])
        sentence = f"this process may use the CPUs {cpus}, but not the CPUs closest to {near} ({cores})"
        yield Trouble("cpus", sentence, "Request all CPUs of the node.")


def _gpus(names: Sequence[str]) -> str:
    return f"GPU{'' if len(names) == 1 else 's'} {listed(names)}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: 535.274.02 is (535, 274, 2)."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
