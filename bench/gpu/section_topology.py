"""What the machine has, as hpcml's own probe sees it: GPUs, NVLink, adapters, UCX and its transports."""

from __future__ import annotations

import json

from harness import Case, World, last_lines
from results import Result, failure, result

DEADLINE = 60


def cases(world: World) -> list[Case]:
    return [Case("probe", 10, lambda: [_probe(world)])]


def _probe(world: World) -> Result:
    done = world.command([world.python, "-m", "hpcml.node.hardware.probe"], timeout=DEADLINE)
    if done.status:
        return failure("probe", f"exit status {done.status}:\n{last_lines(done.output)}")
    probe = json.loads(done.output[done.output.index("{") :])
    seen = len(probe.get("gpus") or [])
    enough = world.cpu_only or seen >= world.gpus
    error = "" if enough else f"the probe sees {seen} GPUs, {world.gpus} are to be used"
    figures = {"gpus": seen, "probe_seconds": done.seconds, "probe": probe}
    return result("probe", ok=enough, figures=figures, error=error)
