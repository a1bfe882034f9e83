"""How long tiny tasks take, where nothing but messages is moved: hpcml over UCX and over TLS, and a LocalCUDACluster."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from harness import SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result

DEADLINE = 120
ABOUT = 25  # seconds of one cluster
LOCAL = "LocalCUDACluster, ucx"


def cases(world: World) -> list[Case]:
    """Return the one case, on all GPUs of one node."""
    count = min(world.gpus, 4)
    return [Case(f"{count} GPUs", ABOUT * 3, partial(_measure, world, count))]


def _measure(world: World, count: int) -> list[Result]:
    world.shape(1, count)
    contenders = {
        "hpcml, ucx": partial(_hpcml, world, count, "ucx"),
        "hpcml, tls": partial(_hpcml, world, count, "tls"),
        LOCAL: partial(_local, world, count),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    errors: dict[str, str] = {}
    names = list(contenders)
    for number in range(world.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if world.left() < ABOUT or name in errors:
                continue
            try:
                found[name].append(contenders[name]())
            except HarnessError as error:
                errors[name] = str(error)
    local = [one["many_ms"] for one in found[LOCAL]]
    results = []
    for name, many in found.items():
        title = f"{count} GPUs: {name}"
        if not many:
            results.append(failure(title, errors.get(name, "no time was left")))
            continue
        keys = [key for key, value in many[0].items() if isinstance(value, int | float)]
        figures: dict[str, Any] = {key: round(statistics.median(one[key] for one in many), 3) for key in keys}
        figures |= {"least_ms": round(min(one["many_ms"] for one in many), 1),
                    "most_ms": round(max(one["many_ms"] for one in many), 1), "runs": len(many), "each": many}  # fmt: skip
        ratio = round(figures["many_ms"] / statistics.median(local), 3) if local else None
        results.append(result(title, ok=name not in errors, figures=figures, ratio=ratio, error=errors.get(name, "")))
    return results


def _pool(world: World) -> int:
    return 0 if world.cpu_only else world.pool


def _hpcml(world: World, count: int, protocol: str) -> dict[str, Any]:
    folder = world.folder("tasks-hpcml")
    settings = ["workers.per_node=2"] if world.cpu_only else [f"gpu.rmm_pool_size={world.pool >> 30}G"]
    words = ["run", "--result", str(folder / "result.json")]
    run = world.submit(SCRIPTS / "tasks.py", words, nodes=1, gpus=count, settings=[*settings, "interconnect.require=none"],
                       protocol=protocol, timeout=DEADLINE)  # fmt: skip
    run.must_be(0)
    found = read_json(folder / "result.json")
    began, up = run.when("allocated"), run.when("scheduler-up")
    return found | ({"scheduler_up_s": round(up - began, 3)} if began and up else {})


def _local(world: World, count: int) -> dict[str, Any]:
    folder = world.folder("tasks-local")
    devices = ",".join(str(number) for number in range(count))
    words = [world.python, str(SCRIPTS / "tasks.py"), "local", "--result", str(folder / "result.json"),
             "--devices", devices, "--pool", str(_pool(world))]  # fmt: skip
    done = world.command(words, timeout=DEADLINE, cwd=folder)
    if not Path(folder / "result.json").exists():
        raise HarnessError(f"exit status {done.status}\n{last_lines(done.output)}")
    return read_json(folder / "result.json")
