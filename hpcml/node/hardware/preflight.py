"""What is wrong with a node, and how the nodes of a run differ, in sentences; decided from their probes alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hpcml.node.hardware.sysfs import from_ranges
from hpcml.units import RDMA, format_bytes

Facts = Mapping[str, Any]


class Trouble(NamedTuple):
    """Something that is wrong with a node."""

    sentence: str  # without capital and full stop, so that a node's name can go before it
    hint: str  # what to do about it, one sentence
    fatal: bool = False  # the run cannot work with it; else it works slowly or in part, or nothing came in time


class _Needs(NamedTuple):
    driver: int  # the oldest driver's major number
    cuda: tuple[int, int]  # what that driver speaks
    capability: tuple[int, int]  # the oldest GPU's


# docs.nvidia.com/datascience/platform-support, RAPIDS 26.10: CUDA 12.2-12.9 with driver 535 or newer and compute
# capability 7.0 (Volta), CUDA 13.0-13.3 with driver 580 or newer and 7.5 (Turing).
_NEEDS = {12: _Needs(535, (12, 2), (7, 0)), 13: _Needs(580, (13, 0), (7, 5))}


def troubles(facts: Facts, *, gpus_expected: int, cuda: str, protocol: str) -> list[Trouble]:
    """Return what is wrong with a node for a run, the fatal first.

    Parameters
    ----------
    facts
        The node's probe.
    gpus_expected
        GPUs that the run was promised on this node; 0 for CPU workers, for which GPUs are not looked at.
    cuda
        The profile's ``gpu.cuda``: the CUDA that the site's driver can run (``12``, ``13``), empty if it does not say.
    protocol
        ``ucx``, ``tls`` or ``auto``: what the run's comms speak.
    """
    gpu, ucx = gpus_expected > 0, protocol == "ucx"
    sentences: list[Trouble] = []
    if gpu:
        sentences += [*_gpus_missing(facts, gpus_expected), *_wrong_cuda(facts, cuda), *_old_gpus(facts)]
    if gpu or ucx:
        sentences += [*_mixed_packages(facts), *_parts_missing(facts, gpu=gpu, ucx=ucx)]
        sentences += [*(_ucx_without_rdma(facts) if ucx else ()), *_ports(facts)]
    if gpu:
        sentences += _gpu_parts(facts)
    return sorted(sentences, key=lambda trouble: not trouble.fatal)


def _gpus_missing(facts: Facts, expected: int) -> Iterable[Trouble]:
    fault, given, there = facts["gpu_error"], facts["visible_devices"], len(facts["gpus"])
    seen = int(facts["visible_count"])
    if fault and not there:
        late = "nvml" in facts["late"]
        hint = "Ask for nodes with GPUs; the environment needs nvidia-ml-py and the driver's library."
        if late:
            hint = "The driver starts slowly or hangs: if the workers do not come either, leave this node out."
        elif facts["modules"].get("nvidia"):
            hint = "The node has NVIDIA's driver: start the container with --nv,"
            hint += " and have nvidia-ml-py in the environment."
        yield Trouble(f"no GPU can be seen ({fault})", hint, fatal=not late)
        return
    if fault:
        yield Trouble(f"NVML reports a fault ({fault})", "Tell the site, and leave this node out.")
    if seen < expected:
        why = "CUDA_VISIBLE_DEVICES is not set" if given is None else f"CUDA_VISIBLE_DEVICES is '{given}'"
        sentence = f"{_count(seen, 'GPU') or '0 GPUs'} visible where {expected} were asked for"
        hint = "Look at how the profile asks for GPUs (slurm.gpu_request), and at this node's health."
        yield Trouble(f"{sentence} ({why}, the driver shows {there})", hint, fatal=True)


def _wrong_cuda(facts: Facts, cuda: str) -> Iterable[Trouble]:
    built, driver, speaks = _built_for(facts), str(facts["driver"]), str(facts["cuda_driver"])
    profile_cuda = _numbers(cuda)[:1]
    environment = f"but this environment's RAPIDS is built for CUDA {built}"
    if built in _NEEDS and driver and not _runs(built, driver, speaks):
        fitting = [major for major in _NEEDS if _runs(major, driver, speaks)]
        hint = f"Use the cuda{fitting[-1]} extra or image." if fitting else ""
        sentence = f"driver {driver} speaks CUDA {speaks or 'of an unknown version'}, {environment}"
        yield Trouble(
            f"{sentence}, which needs driver {_NEEDS[built].driver} or newer",
            hint or "Ask the site for a newer driver, or use an older RAPIDS.",
            fatal=True,
        )
    elif profile_cuda and built and profile_cuda != (built,):
        able = f", which driver {driver} can run" if built in _NEEDS and driver else ""
        sentence = f"the profile's gpu.cuda is {profile_cuda[0]}, {environment}{able}"
        yield Trouble(sentence, f"Use the cuda{profile_cuda[0]} extra or image, or correct gpu.cuda.")


def _runs(cuda: int, driver: str, speaks: str) -> bool:
    """Whether a driver runs RAPIDS for a CUDA; an older one speaks that CUDA through NVIDIA's package cuda-compat."""
    needs = _NEEDS[cuda]
    return _numbers(driver) >= (needs.driver,) or _numbers(speaks) >= needs.cuda


def _built_for(facts: Facts) -> int:
    """Return the CUDA that the environment's packages are built for; 0 if there are none, or several are mixed."""
    major, *others = _majors(facts) or [0]
    return 0 if others else major


def _majors(facts: Facts) -> dict[int, list[str]]:
    """Return the distributions by CUDA's major, without NCCL's, of which either build serves both."""
    kept = {int(key): [name for name in names if "nccl" not in name] for key, names in facts["built_for"].items()}
    return {major: names for major, names in sorted(kept.items()) if names}


def _old_gpus(facts: Facts) -> Iterable[Trouble]:
    built = _built_for(facts)
    for gpu in facts["gpus"] if built in _NEEDS else ():
        if gpu["visible"] and gpu["capability"] and tuple(gpu["capability"]) < _NEEDS[built].capability:
            has, least = (".".join(map(str, pair)) for pair in (gpu["capability"], _NEEDS[built].capability))
            sentence = f"GPU {gpu['index']} ({gpu['name']}) has compute capability {has}"
            yield Trouble(f"{sentence}, and RAPIDS for CUDA {built} needs {least}", "Ask for newer GPUs.", fatal=True)


def _mixed_packages(facts: Facts) -> Iterable[Trouble]:
    majors = _majors(facts)
    if len(majors) > 1:
        lists = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in majors.items())
        hint = "Make the environment anew with one of the extras cuda12 and cuda13."
        yield Trouble(f"the environment mixes packages for different CUDA versions ({lists})", hint, fatal=True)


def _parts_missing(facts: Facts, *, gpu: bool, ucx: bool) -> Iterable[Trouble]:
    extra = f"cuda{_built_for(facts)}" if _built_for(facts) else "cuda12 or cuda13"
    missing = {"dask_cuda", "distributed_ucxx"} - set(facts["importable"]) if not facts["importable_error"] else set()
    if gpu and "dask_cuda" in missing:
        yield Trouble(
            "GPU workers need dask-cuda, which is not installed", f"Install hpcml's extra {extra}.", fatal=True
        )
    if ucx and "distributed_ucxx" in missing:
        hint = f"Install hpcml's extra {extra}, or use --set network.protocol=tls."
        yield Trouble("protocol ucx needs distributed-ucxx, which is not installed", hint, fatal=True)
    elif ucx and facts["ucx_error"]:
        hint = "Look at the variables UCX_*, and at which UCX is loaded."
        yield Trouble(f"UCX does not work here ({facts['ucx_error']})", hint, fatal="ucx" not in facts["late"])


def _ucx_without_rdma(facts: Facts) -> Iterable[Trouble]:
    """The silent case: UCX starts, and moves everything over TCP."""
    build = facts["ucx"]
    if not _up(facts) or not build["transports"] or any(map(RDMA.fullmatch, build["transports"])):
        return
    why = "it was built without InfiniBand"
    hint = "pip's UCX has no InfiniBand: use the image, conda-forge's ucx with rdma-core, or the site's own UCX"
    hint += " (RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true)."
    if not facts["modules"].get("verbs", True):
        why = "/dev/infiniband is not there"
        hint = "Bind /dev/infiniband into the container, or start it without --contain."
    elif {"ib", "ib_mlx5"} & set(build["modules"]):
        why = "it found no device that it may use"
        hint = "Look at the variables UCX_TLS and UCX_NET_DEVICES, and at rdma-core in the image."
    which = f"UCX {build['version']} ({build['library']})"
    yield Trouble(f"{which} would use TCP between nodes, not this node's RDMA network: {why}", hint)


def _ports(facts: Facts) -> Iterable[Trouble]:
    infiniband = [port for port in facts["infiniband"] if port["link_layer"] == "InfiniBand"]
    for port in infiniband:
        if port["state"] != "ACTIVE":
            state = f"{port['state'] or 'in no known state'} ({port['physical_state'] or 'no physical state'})"
            hint = "If the other nodes' port is active, tell the site and leave this node out."
            yield Trouble(f"InfiniBand port {port['name']} is {state}", hint)
    limit = facts["limits"].get("locked_memory", {"soft": None})
    if infiniband and limit["soft"] is not None:
        hint = "Ask the site for unlimited locked memory in jobs (slurm.conf: PropagateResourceLimitsExcept=MEMLOCK)."
        if limit["hard"] is None:
            hint = "The hard limit allows it: put 'ulimit -l unlimited' before the run."
        sentence = f"locked memory is limited to {format_bytes(limit['soft'])}, and InfiniBand needs it unlimited"
        yield Trouble(sentence, hint)


def _gpu_parts(facts: Facts) -> Iterable[Trouble]:
    gpus = [gpu for gpu in facts["gpus"] if gpu["visible"]]
    if divided := [gpu for gpu in gpus if gpu["mig"]]:
        sentence = f"MIG divides {_gpus(divided)}, and parts of GPUs have neither NVLink nor CUDA IPC"
        yield Trouble(sentence, "Ask for whole GPUs.")
    own = facts["cpus"].get("list", "")
    allowed = from_ranges(own)
    far = [gpu for gpu in gpus if gpu["cpus"] and not allowed & from_ranges(gpu["cpus"])]
    if allowed and far:
        cores = _and(sorted({gpu["cpus"] for gpu in far}))
        sentence = f"this task may use the CPUs {own}, none of those next to {_gpus(far)} ({cores})"
        yield Trouble(sentence, "Ask for all CPUs of the node.")


class _Trait(NamedTuple):
    """Something in which nodes should not differ."""

    noun: str
    phrase: str  # with {} for the text
    of: Callable[[Facts], str | None]  # a node's text, empty if it has none, None if that cannot be compared


def differences(probes: Mapping[str, Facts]) -> list[str]:
    """Return sentences that name what single nodes have otherwise than most, the gravest first.

    ``n3: driver 535.104 where 3 other nodes have 535.274``. Of two equally common values that of the earlier node is
    taken as the usual one. Nodes without a probe are for the caller to name.
    ``probes`` are by name, in the allocation's order.
    """
    sentences = []
    for trait in _traits(probes.values()):
        values = {node: value for node, facts in probes.items() if (value := trait.of(facts)) is not None}
        counts = Counter(values.values())
        usual = max(counts, key=counts.__getitem__, default="")  # the first met among equals
        holders = [node for node, value in values.items() if value == usual]
        for value in (value for value in counts if value != usual):
            nodes = [node for node, own in values.items() if own == value]
            has = trait.phrase.format(value) if value else f"no {trait.noun}"
            other = usual or "none"
            if value and other.removesuffix("s").endswith(f" {trait.noun}"):
                other = other.partition(" ")[0]  # "3 GPUs where the others have 4"
            sentences.append(f"{_nodes(nodes)}: {has} where {_others(holders, len(probes) - len(nodes))} {other}")
    return sentences


def _nodes(nodes: list[str]) -> str:
    return _and(nodes) if len(nodes) <= 4 else f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"


def _others(holders: list[str], rest: int) -> str:
    if len(holders) == 1:
        return f"{holders[0]} has"
    return "the others have" if len(holders) == rest else f"{len(holders)} other nodes have"


def _traits(probes: Iterable[Facts]) -> list[_Trait]:
    """Return what is compared, the gravest first."""
    nodes = list(probes)
    packages = sorted({name for facts in nodes for name in facts["packages"]})
    transports = sorted({name for facts in nodes for name in facts["ucx"]["transports"]})
    return [
        _Trait("GPU", "{}", lambda facts: _count(facts["visible_count"], "GPU")),
        _Trait("GPU", "{}", lambda facts: _each(facts["gpus"], "name")),
        _Trait("GPU memory", "GPU memory {}", _gpu_memory),
        _Trait("driver", "driver {}", lambda facts: facts["driver"] or None),
        _Trait("CUDA driver", "CUDA driver {}", lambda facts: facts["cuda_driver"] or None),
        _Trait("packages for CUDA", "packages for CUDA {}", lambda facts: _and([str(key) for key in _majors(facts)])),
        *(_Trait(name, f"{name} {{}}", partial(_package, name)) for name in packages),
        _Trait("UCX", "UCX {}", lambda facts: facts["ucx"]["version"] or None),
        *(_Trait(f"UCX transport {name}", f"UCX transport {name}", partial(_transport, name)) for name in transports),
        _Trait("active InfiniBand port", "{}", lambda facts: _active(facts, "InfiniBand", "InfiniBand")),
        _Trait("active RoCE port", "{}", lambda facts: _active(facts, "Ethernet", "RoCE")),
        _Trait("port rate", "port rate {}", lambda facts: _each(_up(facts), "rate")),
        _Trait("locked memory", "locked memory {}", _locked_memory),
        _Trait("CPU", "{}", lambda facts: _count(facts["cpus"]["count"], "CPU") if facts["cpus"] else None),
    ]


def _gpu_memory(facts: Facts) -> str | None:
    sizes = sorted({gpu["memory"] for gpu in facts["gpus"] if gpu["memory"]})
    return _and([format_bytes(size) for size in sizes]) or None


def _package(name: str, facts: Facts) -> str:
    return str(facts["packages"].get(name, ""))


def _transport(name: str, facts: Facts) -> str | None:
    transports = facts["ucx"]["transports"]
    return None if not transports else "it" if name in transports else ""


def _active(facts: Facts, layer: str, name: str) -> str:
    return _count(sum(port["link_layer"] == layer for port in _up(facts)), f"active {name} port")


def _locked_memory(facts: Facts) -> str | None:
    limit = facts["limits"].get("locked_memory")
    return None if limit is None else "unlimited" if limit["soft"] is None else format_bytes(limit["soft"])


def _up(facts: Facts) -> list[Facts]:
    return [port for port in facts["infiniband"] if port["state"] == "ACTIVE"]


def _each(things: Iterable[Facts], key: str) -> str | None:
    return _and(sorted({str(thing[key]) for thing in things})) or None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _gpus(gpus: Sequence[Facts]) -> str:
    return f"GPU{'' if len(gpus) == 1 else 's'} {_and([str(gpu['index']) for gpu in gpus])}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: 535.274.02 is (535, 274, 2)."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
