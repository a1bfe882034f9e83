"""Whether RAPIDS works here at all: its imports, a computation on the GPU, and UCX with cuda_ipc."""

from __future__ import annotations

import json

from harness import SCRIPTS, Case, World, last_lines
from results import Result, failure, result

DEADLINE = 150


def cases(world: World) -> list[Case]:
    """Return the one case; what fails here fails everywhere, so the other sections are not tried then."""
    return [Case("rapids", 30, lambda: [_smoke(world)])]


def _smoke(world: World) -> Result:
    done = world.command(
        [world.python, str(SCRIPTS / "smoke.py"), *(["--cpu"] if world.cpu_only else [])], timeout=DEADLINE
    )
    if done.status:
        return failure("rapids", f"exit status {done.status}:\n{last_lines(done.output)}")
    figures = json.loads(done.output.strip().splitlines()[-1])
    return result("rapids", ok=True, figures=figures)
