"""What the first use of an operation costs in a new process: with CuPy's cache of compiled kernels empty, and filled.

Every run inside an image begins with an empty one. CuPy sums by CUB's headers, which are long to compile, unless
``CUPY_ACCELERATORS`` is empty.
"""

from __future__ import annotations

import json

from harness import SCRIPTS, Case, World, last_lines
from results import Result, failure, result

DEADLINE = 120


def cases(world: World) -> list[Case]:
    """Return one case: an empty cache, the same filled, and an empty one without CUB."""
    return [Case("first use", 60 if not world.cpu_only else 10, lambda: _all(world))]


def _all(world: World) -> list[Result]:
    kept, other = world.folder("kernels-kept"), world.folder("kernels-other")
    settings = {
        "empty cache": {"CUPY_CACHE_DIR": str(kept)},
        "filled cache": {"CUPY_CACHE_DIR": str(kept)},
        "empty cache, no CUB": {"CUPY_CACHE_DIR": str(other), "CUPY_ACCELERATORS": ""},
    }
    return [_one(world, name, environment) for name, environment in settings.items()]


def _one(world: World, name: str, environment: dict[str, str]) -> Result:
    words = [world.python, str(SCRIPTS / "first_use.py"), *(["--cpu"] if world.cpu_only else [])]
    done = world.command(words, timeout=DEADLINE, environment=environment)
    if done.status:
        return failure(name, f"exit status {done.status}:\n{last_lines(done.output)}")
    return {**result(name, ok=True, figures=json.loads(done.output.strip().splitlines()[-1])), "seconds": done.seconds}
