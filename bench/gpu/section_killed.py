"""GPU workers that are killed come back with their memory, and what is computed meanwhile is right."""

from __future__ import annotations

from functools import partial

from harness import SCRIPTS, Case, World, read_json
from results import Result, failure, result, skipped

DEADLINE = 240
ABOUT = 60  # seconds
BACK = 10.0  # seconds in which a worker is to be back


def cases(world: World) -> list[Case]:
    """Return a case for every way to divide the machine's GPUs."""
    if world.gpus < 2:
        return [Case("killed", 0, lambda: [skipped("killed", "it needs two GPUs")])]
    return [Case(f"{nodes}x{gpus}", ABOUT, partial(_kill, world, nodes, gpus)) for nodes, gpus in world.shapes()]


def _kill(world: World, nodes: int, gpus: int) -> list[Result]:
    world.shape(nodes, gpus)
    folder = world.folder("killed")
    per_node = ("workers.per_node=2",) if world.cpu_only else ()
    words = [str(folder), *(["--cpu"] if world.cpu_only else [])]
    run = world.submit(SCRIPTS / "killed.py", words, nodes=nodes, gpus=gpus, settings=per_node, protocol="ucx",
                       timeout=DEADLINE)  # fmt: skip
    if not (folder / "result.json").exists():
        return [failure(f"{nodes}x{gpus}", run.why())]
    facts = read_json(folder / "result.json")
    least = min(one["pool_gib"] for one in facts["start"])
    found = []
    for event in facts["events"]:
        pools = [one["pool_gib"] for one in event["memory"].values()]
        wrong = [
            said
            for said, bad in (
                (f"{event['workers']} of {facts['workers']} workers", event["workers"] != facts["workers"]),
                (f"back after {event['back_s']} s", event["back_s"] > BACK),
                (f"a pool of {min(pools)} GiB, not {least}", min(pools) < least),
                (event.get("error", "wrong figures"), not event.get("right", True)),
            )
            if bad
        ]
        shown = {key: value for key, value in event.items() if key not in ("when", "memory")}
        figures = {**shown, "least_pool_gib": min(pools), "status": run.status, "memory": event["memory"]}
        found.append(result(f"{nodes}x{gpus}: {event['when']}", ok=not wrong, figures=figures, error="; ".join(wrong)))
    return found
