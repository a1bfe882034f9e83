"""What the first use of an operation costs in a new process: with CuPy's cache of compiled kernels empty, and filled.

A first run begins with an empty one. CuPy sums by CUB's headers, which are long to compile, unless
``CUPY_ACCELERATORS`` is empty.
"""

from __future__ import annotations

from harness import Case, World
from results import Result

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
    return [world.measured(name, "first_use.py", timeout=DEADLINE, environment=variables)
            for name, variables in settings.items()]  # fmt: skip
