"""dask-cuda's merge benchmark on an hpcml run, on a LocalCUDACluster and on a cluster by hand: the same code and data.

Both clusters work on the same GPUs of one node, take turns, and are started anew for every round, so that what is
compared is the throughput of the cluster that a user gets: placement, transports, memory pool and authentication. The
cluster by hand has its scheduler in a process of its own, as hpcml's has; a LocalCUDACluster's shares the script's. With
``tcp`` hpcml's connections are encrypted (TLS) and the other's are not: that ratio is told, not judged.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from harness import SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result
from slurm import wait_for

DEADLINE = 240
ABOUT = 45  # seconds of one cluster with its benchmarks
ENOUGH = 0.95  # hpcml's throughput over the other's
ENOUGH_BY_HAND = 0.97
STARTS = 5  # of a cluster by hand and of a run
START = 60  # seconds for a scheduler by hand
LARGE, SMALL = 100_000_000, 50_000_000  # rows of a chunk
LARGE_NEEDS_MIB = 60_000  # of GPU memory
RUNS = 3


def cases(world: World) -> list[Case]:
    """Return a case for each number of GPUs and each protocol; UCX first, then how much it gains over TCP."""
    shared: dict[str, float] = {}
    hand = [Case(f"{world.gpus} GPUs, by hand", ABOUT * 2, partial(_against_hand, world, world.gpus))]
    counts = [count for count in (2, 4) if count <= world.gpus]
    if world.cpu_only:
        counts = counts[:1]
    found = [
        Case(f"{count} GPUs, {protocol}", ABOUT * 2, partial(_measure, world, count, protocol, shared))
        for protocol in ("ucx", "tcp")
        for count in counts
    ]
    return found + hand if found else [Case("merge", 0, lambda: [failure("merge", "it needs two GPUs")])]


def rows(world: World, protocol: str) -> list[int]:
    """Return the sizes that fit into the GPUs' memory; over TCP the smallest tells enough."""
    if world.cpu_only:
        return [200_000]
    sizes = [SMALL, LARGE] if world.memory_mib >= LARGE_NEEDS_MIB else [SMALL // 5]
    return sizes if protocol == "ucx" else sizes[:1]


def _measure(world: World, count: int, protocol: str, shared: dict[str, float]) -> list[Result]:
    world.shape(1, count)
    found: dict[str, list[dict[str, Any]]] = {"hpcml": [], "local": []}
    errors: list[str] = []
    for number in range(world.rounds if protocol == "ucx" else 1):
        for name in ("local", "hpcml")[:: -1 if number % 2 else 1]:
            if world.left() < ABOUT and all(found.values()):
                break
            try:
                found[name].append(
                    _hpcml(world, count, protocol) if name == "hpcml" else _local(world, count, protocol)
                )
            except HarnessError as error:
                errors.append(f"{name}: {error}")
    return summary(count, protocol, rows(world, protocol), found, errors, shared)


def summary(
    count: int, protocol: str, sizes: list[int], found: dict[str, list[dict[str, Any]]], errors: list[str],
    shared: dict[str, float],
) -> list[Result]:  # fmt: skip
    """Return one result for each size: throughputs of both, their ratio, and that of UCX over TCP once both are known."""
    results = []
    for size in sizes:
        title = f"{count} GPUs, {protocol}, {size // 1_000_000}M rows"
        values = {name: [one[str(size)] for one in many if str(size) in one] for name, many in found.items()}
        if not all(values.values()):
            results.append(failure(title, "; ".join(errors) or "no time was left"))
            continue
        throughput = {name: statistics.median(one["gib_s"] for one in many) for name, many in values.items()}
        pairs = {name: statistics.median(one["pair_gib_s"] for one in many) for name, many in values.items()}
        ratio = throughput["hpcml"] / throughput["local"]
        figures: dict[str, Any] = {
            "hpcml_gib_s": round(throughput["hpcml"], 3), "local_gib_s": round(throughput["local"], 3),
            "hpcml_pair_gib_s": round(pairs["hpcml"], 3), "local_pair_gib_s": round(pairs["local"], 3),
            "hpcml_s": round(statistics.median(one["wall_s"] for one in values["hpcml"]), 4),
            "local_s": round(statistics.median(one["wall_s"] for one in values["local"]), 4),
            "rounds": len(values["hpcml"]), "each": values,
        }  # fmt: skip
        shared[f"{count} {protocol} {size}"] = throughput["hpcml"]
        other = shared.get(f"{count} ucx {size}")
        if protocol == "tcp" and other:
            figures["ucx_over_tcp"] = round(other / throughput["hpcml"], 2)
        low = (
            ""
            if ratio >= ENOUGH or protocol == "tcp"
            else f"hpcml has {ratio:.2f} of the other's throughput, {ENOUGH} is expected"
        )
        results.append(result(title, ok=not low and not errors, figures=figures, ratio=round(ratio, 3),
                              error="; ".join([*errors, low] if low else errors)))  # fmt: skip
    return results


def _against_hand(world: World, count: int) -> list[Result]:
    """Compare with a cluster by hand, over UCX and at the larger size: so many starts of each, taking turns."""
    world.shape(1, count)
    size = rows(world, "ucx")[-1]
    contenders = {"hpcml": partial(_hpcml, world, count, "ucx", [size]), "hand": partial(_hand, world, count, [size])}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(STARTS if not world.cpu_only else 1):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            if world.left() >= ABOUT or not all(found.values()):
                found[name].append(contenders[name]()[str(size)]["gib_s"])
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["hpcml"] / medians["hand"]
    figures: dict[str, Any] = {f"{name}_gib_s": round(value, 3) for name, value in medians.items()}
    figures |= {"starts": len(found["hand"]), "each": found,
                "hpcml_spread": _spread(found["hpcml"]), "hand_spread": _spread(found["hand"])}  # fmt: skip
    low = "" if ratio >= ENOUGH_BY_HAND else f"{ratio:.2f} of the throughput by hand, {ENOUGH_BY_HAND} is expected"
    return [
        result(
            f"{count} GPUs, by hand, {size // 1_000_000}M rows",
            ok=not low,
            figures=figures,
            ratio=round(ratio, 3),
            error=low,
        )
    ]


def _spread(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def _hand(world: World, count: int, sizes: list[int]) -> dict[str, Any]:
    """Run it on a scheduler and workers as dask-cuda's documentation starts them, each with a CUDA context before UCX."""
    folder = world.folder("merge-hand")
    address = folder / "scheduler.json"
    gpu = not world.cpu_only
    environment = {"DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT": str(gpu)}
    pool = {"DASK_DISTRIBUTED_UCXX__RMM__POOL_SIZE": "1GB"} if gpu else {}
    file = ["--scheduler-file", str(address)]
    scheduler = [world.python, "-m", "dask", "scheduler", "--protocol", "ucx", "--host", "127.0.0.1", "--port", "0",
                 "--no-dashboard", "--dashboard-address", "127.0.0.1:0", *file]  # fmt: skip
    own = (
        ["cuda", "worker", "--rmm-pool-size", str(world.pool)]
        if gpu
        else ["worker", "--nworkers", "2", "--nthreads", "1"]
    )
    worker = [
        world.python,
        "-m",
        "dask",
        *own,
        "--protocol",
        "ucx",
        "--local-directory",
        str(folder),
        "--no-dashboard",
        *file,
    ]
    with world.started(scheduler, environment={**environment, **pool}, cwd=folder) as first:
        if not wait_for(address.exists, START):
            raise HarnessError(f"by hand: no scheduler\n{last_lines(first.output())}")
        with world.started(worker, environment=environment, cwd=folder) as second:
            variables = {**environment, **pool, "DASK_SCHEDULER_ADDRESS": read_json(address)["address"]}
            words = [world.python, str(SCRIPTS / "merge.py"), "run", *_arguments(world, count, "ucx", folder, sizes),
                     "--workers", str(count if gpu else 2)]  # fmt: skip
            done = world.command(words, timeout=DEADLINE, cwd=folder, environment=variables)
            said = second.output()
    if not (folder / "result.json").exists():
        raise HarnessError(f"by hand: exit status {done.status}\n{last_lines(done.output)}\n{last_lines(said)}")
    return read_json(folder / "result.json")


def _arguments(world: World, count: int, protocol: str, folder: Path, sizes: list[int]) -> list[str]:
    devices = ",".join(str(number) for number in range(count))
    words = ["--result", str(folder / "result.json"), "--rows", ",".join(str(size) for size in sizes)]
    words += ["--protocol", protocol, "--devices", devices, "--runs", str(RUNS)]
    return [*words, "--cpu"] if world.cpu_only else [*words, "--pool", str(world.pool)]


def _local(world: World, count: int, protocol: str) -> dict[str, Any]:
    folder = world.folder("merge-local")
    words = [
        world.python,
        str(SCRIPTS / "merge.py"),
        "local",
        *_arguments(world, count, protocol, folder, rows(world, protocol)),
    ]
    done = world.command(words, timeout=DEADLINE, cwd=folder)
    if not (folder / "result.json").exists():
        raise HarnessError(f"exit status {done.status}\n{last_lines(done.output)}")
    return read_json(folder / "result.json")


def _hpcml(world: World, count: int, protocol: str, sizes: list[int] | None = None) -> dict[str, Any]:
    folder = world.folder("merge-hpcml")
    settings = ["workers.per_node=2"] if world.cpu_only else [
        f"gpu.rmm_pool_size={world.pool >> 30}G", "gpu.device_memory_limit=none"]  # fmt: skip
    run = world.submit(SCRIPTS / "merge.py", ["run", *_arguments(world, count, protocol, folder, sizes or rows(world, protocol))], nodes=1, gpus=count,
                       settings=[*settings, "interconnect.require=none"], protocol=protocol, timeout=DEADLINE)  # fmt: skip
    if not (folder / "result.json").exists():
        raise HarnessError(run.why())
    return read_json(folder / "result.json")
