"""A node before its workers start: what is wrong with it, and how the nodes of a run differ, by their probes alone."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml.node import files
from hpcml.node.hardware import record
from hpcml.node.hardware.record import NEEDS, Gpu, Limit, Node, Port
from hpcml.node.hardware.sysfs import from_ranges
from hpcml.node.processes import Question
from hpcml.units import RDMA, format_bytes

if TYPE_CHECKING:
    from hpcml.node.settings import Context

DEADLINE = 20.0  # seconds; a driver that hangs must not keep the node


class UnfitError(Exception):
    """The node cannot do what the run asks of it."""


class Inspection:
    """The probe of this node, in a child process: it asks NVML and UCX, which the parent of workers must not touch.

    CPU workers over TLS need nothing of it, and their node is not looked at.
    """

    def __init__(self, context: Context) -> None:
        self.context, settings = context, context.settings
        needed = settings.gpus or settings.network.protocol == "ucx" or settings.interconnect.require == "rdma"
        self.question = Question("this node", _probe) if needed else None  # safe: this process has one Python thread

    def end(self) -> None:
        """Wait for the probe, write it down and judge it.

        Raises
        ------
        UnfitError
            If the run cannot work on this node; the sentence says why and what to do.
        """
        if self.question is None:
            return
        table = self.question.answer(time.monotonic() + DEADLINE)
        if "schema" not in table:
            text = f"hpcml could not examine this node's GPUs and network adapters: {table['error']}"
            print(f"hpcml: {text}. The run continues without this check.", file=sys.stderr, flush=True)
            return
        path = self.context.attempt.probe_of(self.context.node)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.write_json(path, table)
        gpu, promised = self.context.settings.workers.gpu, self.context.settings.gpus
        troubles = find_troubles(
            record.from_json(table),
            gpus_expected=promised,
            cuda=gpu.cuda if gpu else "",
            rapids=gpu is not None,
            protocol=self.context.settings.network.protocol,
        )
        for trouble in troubles:
            print(f"hpcml: {trouble.sentence}. {trouble.hint}", file=sys.stderr, flush=True)
        if fatal := [trouble for trouble in troubles if trouble.fatal]:
            raise UnfitError(f"{fatal[0].sentence}. {fatal[0].hint}".rstrip("."))


def _probe() -> dict[str, Any]:
    from hpcml.node.hardware import probe

    return record.to_json(probe.probe())


class Trouble(NamedTuple):
    """Something that is wrong with a node."""

    sentence: str  # without capital and full stop, so that a node's name can go before it
    hint: str  # what to do about it, one sentence
    fatal: bool = False  # the run cannot work with it; else it works slowly or in part, or nothing came in time


def find_troubles(node: Node, *, gpus_expected: int, cuda: str, protocol: str, rapids: bool = True) -> list[Trouble]:
    """Return what is wrong with a node for a run, the fatal first.

    Parameters
    ----------
    node
        Its probe.
    gpus_expected
        GPUs that the run was promised on this node; 0 for CPU workers, for which GPUs are not looked at.
    cuda
        The profile's ``gpu.cuda``: the CUDA that the site's driver can run (``12``, ``13``), empty if it does not say.
    protocol
        ``ucx``, ``tls`` or ``auto``: what the run's comms speak.
    rapids
        Whether the run's processes use RAPIDS and UCX: then their packages are judged too.
    """
    gpu, ucx = gpus_expected > 0, protocol == "ucx"
    sentences: list[Trouble] = []
    if gpu:
        sentences += _gpus_missing(node, gpus_expected)
    if gpu and rapids:
        sentences += [*_wrong_cuda(node, cuda), *_old_gpus(node)]
    if (gpu or ucx) and rapids:
        sentences += [*_mixed_packages(node), *_parts_missing(node, gpu=gpu, ucx=ucx)]
        sentences += [*(_ucx_without_rdma(node) if ucx else ()), *_ports(node)]
    if gpu:
        sentences += _gpu_parts(node)
    return sorted(sentences, key=lambda trouble: not trouble.fatal)


def _gpus_missing(node: Node, expected: int) -> Iterable[Trouble]:
    fault, given, count = node.probing.errors.get("gpu"), node.gpu.visible_devices, len(node.gpu.gpus)
    seen = node.gpu.visible_count
    if fault and not count:
        late = "nvml" in node.probing.late
        hint = "Request nodes with GPUs. The run's environment needs nvidia-ml-py and the library of NVIDIA's driver."
        if late:
            hint = "NVIDIA's driver starts slowly or hangs. If the workers do not start, exclude this node."
        elif node.system.modules.nvidia:
            hint = "The node has NVIDIA's driver: start the container with --nv,"
            hint += " and install nvidia-ml-py in the environment."
        yield Trouble(f"no GPU is visible ({fault})", hint, fatal=not late)
        return
    if fault:
        yield Trouble(f"NVML reports a fault ({fault})", "Exclude this node, and report it to the site's support.")
    if seen < expected:
        why = "CUDA_VISIBLE_DEVICES is not set" if given is None else f"CUDA_VISIBLE_DEVICES is '{given}'"
        sentence = f"the job sees {_count(seen, 'GPU') or '0 GPUs'}, but the run requests {expected}"
        hint = "Check slurm.gpu_request in the profile, and run nvidia-smi on this node."
        yield Trouble(f"{sentence} ({why}, the driver shows {_count(count, 'GPU') or '0 GPUs'})", hint, fatal=True)


def _wrong_cuda(node: Node, cuda: str) -> Iterable[Trouble]:
    built, driver, speaks = _built_for(node), node.gpu.driver, node.gpu.cuda_driver
    profile_cuda = _numbers(cuda)[:1]
    environment = f"but this environment's RAPIDS is built for CUDA {built}"
    if built in NEEDS and driver and not _runs(built, driver, speaks):
        fitting = [major for major in NEEDS if _runs(major, driver, speaks)]
        hint = f"Install hpcml's extra cuda{fitting[-1]}, or use an image for CUDA {fitting[-1]}." if fitting else ""
        sentence = f"driver {driver} supports CUDA {speaks or 'of an unknown version'}, {environment}"
        yield Trouble(
            f"{sentence}, which needs driver {NEEDS[built].driver} or newer",
            hint or "Ask the site for a newer driver, or use an older RAPIDS.",
            fatal=True,
        )
    elif profile_cuda and built and profile_cuda != (built,):
        able = f", which driver {driver} can run" if built in NEEDS and driver else ""
        sentence = f"the profile's gpu.cuda is {profile_cuda[0]}, {environment}{able}"
        yield Trouble(sentence, f"Use an environment or image for CUDA {profile_cuda[0]}, or correct gpu.cuda.")


def _runs(cuda: int, driver: str, speaks: str) -> bool:
    """Whether a driver runs RAPIDS for a CUDA; an older one speaks that CUDA through NVIDIA's package cuda-compat."""
    needs = NEEDS[cuda]
    return _numbers(driver) >= (needs.driver,) or _numbers(speaks) >= needs.cuda


def _built_for(node: Node) -> int:
    """Return the CUDA that the environment's packages are built for; 0 if there are none, or several are mixed."""
    major, *others = _majors(node) or [0]
    return 0 if others else major


def _majors(node: Node) -> dict[int, list[str]]:
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
            yield Trouble(f"{sentence}, but RAPIDS for CUDA {built} needs {least}", "Request newer GPUs.", fatal=True)


def _mixed_packages(node: Node) -> Iterable[Trouble]:
    majors = _majors(node)
    if len(majors) > 1:
        lists = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in majors.items())
        hint = "Create the environment again with only one of the extras cuda12 and cuda13."
        yield Trouble(f"the environment mixes packages for different CUDA versions ({lists})", hint, fatal=True)


def _parts_missing(node: Node, *, gpu: bool, ucx: bool) -> Iterable[Trouble]:
    errors = node.probing.errors
    extra = f"cuda{_built_for(node)}" if _built_for(node) else "cuda12 or cuda13"
    importable = set(node.packages.importable)
    missing = {"dask_cuda", "distributed_ucxx"} - importable if not errors.get("importable") else set()
    if gpu and "dask_cuda" in missing:
        yield Trouble(
            "GPU workers need dask-cuda, which is not installed", f"Install hpcml's extra {extra}.", fatal=True
        )
    if ucx and "distributed_ucxx" in missing:
        hint = f"Install hpcml's extra {extra}, or use --set network.protocol=tls."
        yield Trouble("protocol ucx needs distributed-ucxx, which is not installed", hint, fatal=True)
    elif ucx and (fault := errors.get("ucx")):
        hint = "Check the environment variables UCX_*, and which UCX library is loaded."
        yield Trouble(f"UCX does not work here ({fault})", hint, fatal="ucx" not in node.probing.late)


def _ucx_without_rdma(node: Node) -> Iterable[Trouble]:
    """The silent case: UCX starts, and moves everything over TCP."""
    build = node.ucx
    if not _up(node) or not build.transports or any(map(RDMA.fullmatch, build.transports)):
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
    yield Trouble(f"{which} would use TCP between nodes, not this node's RDMA network: {why}", hint)


def _ports(node: Node) -> Iterable[Trouble]:
    infiniband = [port for port in node.network.infiniband if port.link.link_layer == "InfiniBand"]
    for port in infiniband:
        if port.link.state != "ACTIVE":
            state = f"{port.link.state or 'in no known state'} ({port.link.physical_state or 'no physical state'})"
            hint = "If this port is active on other nodes, exclude this node and report it to the site's support."
            yield Trouble(f"InfiniBand port {port.name} is {state}", hint)
    limit = node.process.limits.get("locked_memory", Limit(None, None))
    if infiniband and limit.soft is not None:
        hint = "Ask the site for unlimited locked memory in jobs (slurm.conf: PropagateResourceLimitsExcept=MEMLOCK)."
        if limit.hard is None:
            hint = "The hard limit is unlimited: add 'ulimit -l unlimited' to runtime.setup."
        sentence = (
            f"locked memory is limited to {format_bytes(limit.soft)}, but InfiniBand needs unlimited locked memory"
        )
        yield Trouble(sentence, hint)


def _gpu_parts(node: Node) -> Iterable[Trouble]:
    gpus = [gpu for gpu in node.gpu.gpus if gpu.visible]
    if divided := [gpu for gpu in gpus if gpu.shape.mig]:
        sentence = f"MIG divides {_gpus(divided)}, but parts of GPUs have neither NVLink nor CUDA IPC"
        yield Trouble(sentence, "Request whole GPUs.")
    cpus = node.process.cpus.list
    allowed = from_ranges(cpus)
    far = [gpu for gpu in gpus if gpu.shape.cpus and not allowed & from_ranges(gpu.shape.cpus)]
    if allowed and far:
        cores = _and(sorted({gpu.shape.cpus for gpu in far}))
        sentence = f"this process may use the CPUs {cpus}, but not the CPUs closest to {_gpus(far)} ({cores})"
        yield Trouble(sentence, "Request all CPUs of the node.")


class _Trait(NamedTuple):
    """Something in which nodes should not differ."""

    noun: str
    phrase: str  # with {} for the text
    of: Callable[[Node], str | None]  # a node's text, empty if it has none, None if that cannot be compared


def differences(probes: Mapping[str, Node]) -> list[str]:
    """Return sentences that name what single nodes have otherwise than most, the gravest first.

    ``n3: driver 535.104 where 3 other nodes have 535.274``. Of two equally common values that of the earlier node is
    taken as the usual one. Nodes without a probe are for the caller to name.
    ``probes`` are by name, in the allocation's order.
    """
    sentences = []
    for trait in _traits(probes.values()):
        values = {name: value for name, node in probes.items() if (value := trait.of(node)) is not None}
        counts = Counter(values.values())
        usual = max(counts, key=counts.__getitem__, default="")  # the first met among equals
        holders = [name for name, value in values.items() if value == usual]
        for value in (value for value in counts if value != usual):
            nodes = [name for name, text in values.items() if text == value]
            has = trait.phrase.format(value) if value else f"no {trait.noun}"
            other = usual or "none"
            if value and other.removesuffix("s").endswith(f" {trait.noun}"):
                other = other.partition(" ")[0]  # "3 GPUs where the other nodes have 4"
            sentences.append(f"{_nodes(nodes)}: {has} where {_others(holders, len(probes) - len(nodes))} {other}")
    return sentences


def _nodes(nodes: list[str]) -> str:
    return _and(nodes) if len(nodes) <= 4 else f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"


def _others(holders: list[str], rest: int) -> str:
    if len(holders) == 1:
        return f"{holders[0]} has"
    return "the other nodes have" if len(holders) == rest else f"{len(holders)} other nodes have"


def _traits(probes: Iterable[Node]) -> list[_Trait]:
    """Return what is compared, the gravest first."""
    nodes = list(probes)
    packages = sorted({name for node in nodes for name in node.packages.packages})
    transports = sorted({name for node in nodes for name in node.ucx.transports})
    return [
        _Trait("GPU", "{}", lambda node: _count(node.gpu.visible_count, "GPU")),
        _Trait("GPU", "{}", lambda node: _each(gpu.name for gpu in node.gpu.gpus)),
        _Trait("GPU memory", "GPU memory {}", _gpu_memory),
        _Trait("driver", "driver {}", lambda node: node.gpu.driver or None),
        _Trait("CUDA driver", "CUDA driver {}", lambda node: node.gpu.cuda_driver or None),
        _Trait("packages for CUDA", "packages for CUDA {}", lambda node: _and([str(key) for key in _majors(node)])),
        *(_Trait(name, f"{name} {{}}", partial(_package, name)) for name in packages),
        _Trait("UCX", "UCX {}", lambda node: node.ucx.version or None),
        *(_Trait(f"UCX transport {name}", f"UCX transport {name}", partial(_transport, name)) for name in transports),
        _Trait("active InfiniBand port", "{}", lambda node: _active(node, "InfiniBand", "InfiniBand")),
        _Trait("active RoCE port", "{}", lambda node: _active(node, "Ethernet", "RoCE")),
        _Trait("port rate", "port rate {}", lambda node: _each(port.link.rate for port in _up(node))),
        _Trait("locked memory", "locked memory {}", _locked_memory),
        _Trait("CPU", "{}", lambda node: _count(node.process.cpus.count, "CPU") or None),
    ]


def _gpu_memory(node: Node) -> str | None:
    sizes = sorted({gpu.shape.memory for gpu in node.gpu.gpus if gpu.shape.memory})
    return _and([format_bytes(size) for size in sizes]) or None


def _package(name: str, node: Node) -> str:
    return node.packages.packages.get(name, "")


def _transport(name: str, node: Node) -> str | None:
    return None if not node.ucx.transports else "it" if name in node.ucx.transports else ""


def _active(node: Node, layer: str, name: str) -> str:
    return _count(sum(port.link.link_layer == layer for port in _up(node)), f"active {name} port")


def _locked_memory(node: Node) -> str | None:
    limit = node.process.limits.get("locked_memory")
    return None if limit is None else "unlimited" if limit.soft is None else format_bytes(limit.soft)


def _up(node: Node) -> list[Port]:
    return [port for port in node.network.infiniband if port.link.state == "ACTIVE"]


def _each(texts: Iterable[str]) -> str | None:
    return _and(sorted(set(texts))) or None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _gpus(gpus: Sequence[Gpu]) -> str:
    return f"GPU{'' if len(gpus) == 1 else 's'} {_and([str(gpu.index) for gpu in gpus])}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: 535.274.02 is (535, 274, 2)."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
