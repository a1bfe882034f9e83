"""What the machine itself can do: memory, bus, NVLink, files and drawing, which docs/benchmarks/hardware-limits.md compares the headlines with."""

from __future__ import annotations

from harness import Case, World

DEADLINE = 120
ABOUT = 35  # seconds


def cases(world: World) -> list[Case]:
    """Return the one case."""
    return [Case("machine", ABOUT, lambda: [world.measured("machine", "rates.py", timeout=DEADLINE)])]
