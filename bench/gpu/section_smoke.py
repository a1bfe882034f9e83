"""Whether RAPIDS works here at all: its imports, a computation on the GPU, and UCX with cuda_ipc."""

from __future__ import annotations

from harness import Case, World

DEADLINE = 150


def cases(world: World) -> list[Case]:
    """Return the one case; what fails here fails everywhere, so the other sections are not tried then."""
    return [Case("rapids", 30, lambda: [world.measured("rapids", "smoke.py", timeout=DEADLINE)])]
