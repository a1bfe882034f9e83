#!/usr/bin/env python3
"""Draw docs/pictures/shape.svg: where scheduler, workers, image, interconnect and tunnel of a run are.

tests/pictures/shape.py        write the picture; a test compares the file with what this draws
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).resolve().parents[2] / "docs/pictures/shape.svg"
WIDTH, HEIGHT = 720, 470
INK, EDGE, GREY = "#1f2328", "#8b949e", "#57606a"
HPCML, DASK, SCRIPT, IMAGE, TUNNEL, WIRE = "#ddf4ff", "#fff1cc", "#dafbe1", "#f6f8fa", "#8250df", "#cf222e"


def box(x: int, y: int, width: int, height: int, fill: str, *lines: str, dashed: bool = False) -> list[str]:
    """Return a box with lines of text in its middle."""
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{EDGE}"{dash}/>',
    ]
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    return parts + [
        text(x + width // 2, first + 18 * number, line, "middle", bold=not number) for number, line in enumerate(lines)
    ]


def text(x: float, y: float, words: str, anchor: str = "start", *, bold: bool = False, colour: str = INK) -> str:
    """Return a line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{weight}>{words}</text>'


def line(*points: tuple[int, int], colour: str, width: int = 3) -> str:
    """Return a line through some points."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def node(x: int, title: str, *, first: bool) -> list[str]:
    """Return a compute node with its image, and the processes in the image."""
    parts = box(x, 170, 320, 212, "#ffffff")
    parts += [text(x + 14, 194, title, bold=True)]
    parts += box(x + 12, 206, 296, 164, IMAGE, dashed=True)
    parts += [text(x + 24, 228, "Apptainer image (optional)", colour=GREY)]
    if first:
        parts += box(x + 24, 240, 128, 52, SCRIPT, "your script")
        parts += box(x + 168, 240, 128, 52, DASK, "Dask scheduler")
    for number in range(4):
        parts += box(x + 24 + 70 * number, 306, 62, 52, DASK, "worker", f"GPU {number}")
    return parts


def draw() -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="white"/>',
        *box(20, 20, 200, 76, HPCML, "laptop", "browser, hpcml tunnel"),
        *box(400, 20, 300, 76, HPCML, "login node", "hpcml submit → sbatch, Slurm"),
        line((220, 48), (400, 48), colour=TUNNEL),
        text(310, 40, "SSH tunnel", "middle", colour=TUNNEL, bold=True),
        text(310, 70, "to dashboard,", "middle", colour=TUNNEL),
        text(310, 86, "JupyterLab, services", "middle", colour=TUNNEL),
        *box(10, 134, 700, 328, "none", dashed=True),
        text(24, 156, "the job, on nodes that Slurm reserves", colour=GREY),
        line((420, 96), (420, 116), (316, 116), (316, 170), colour=TUNNEL),
        *node(20, "node 1: hpcml's supervisor and agent", first=True),
        *node(380, "node 2 and others: hpcml's agent", first=False),
        line((180, 382), (180, 408), (540, 408), (540, 382), colour=WIRE, width=5),
        text(360, 401, "interconnect", "middle", colour=WIRE, bold=True),
        text(360, 432, "GPUs: UCX over InfiniBand (RDMA) and NVLink; else encrypted TCP (TLS)", "middle", colour=WIRE),
        text(360, 452, "hpcml measures the interconnect before a GPU script starts", "middle", colour=GREY),
        "</svg>",
    ]
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
