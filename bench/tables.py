#!/usr/bin/env python3
"""Put the figures of docs/benchmarks/*.json that these benches wrote into the pages that show them, between markers.

python3 bench/tables.py            write the pages
python3 bench/tables.py --check    exit 1 if a page does not show what its files hold
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import bringup
import hold
import image_start
import image_wheels
import listing
import newcomer
import others
import report
import sampling
import seeds
import sizes
import suite
import tenths
import thousand
import upstream
import worker_shapes
from figures import read_figures

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "benchmarks"


def _bringup(document: dict[str, Any]) -> str:
    return bringup.table(document["runs"], document)


def _startup(document: dict[str, Any]) -> str:
    lines = ["| command | processor time | on the clock | allowed |", "|---|---|---|---|"]
    for command, figures in document["ratios"].items():
        cells = [
            f"{middle:.2f} ({low:.2f} to {high:.2f})" for low, middle, high in (figures["processor"], figures["clock"])
        ]
        lines.append(f"| `{command}` | {' | '.join(cells)} | {figures['at_most'] or ''} |")
    machine = document["machine"]
    facts = f"{document['date']}, {machine['cores']} cores, {machine['python']}; `{document['command']}`"
    return "\n".join([*lines, "", facts])


def _protocols(document: dict[str, Any]) -> str:
    import data_protocols  # it needs Dask

    return data_protocols.text(document)


# Page, name of the place in it, file of figures (None: several), and what writes them as Markdown.
PLACES: tuple[tuple[Path, str, Path | None, Callable[[dict[str, Any]], str]], ...] = (
    (ROOT / "docs/seeds.md", "seeds", None, seeds.table),
    (ROOT / "docs/first-run.md", "newcomer", newcomer.FIGURES, newcomer.table),
    (ROOT / "docs/first-run.md", "sizes", sizes.FIGURES, sizes.table),
    (ROOT / "README.md", "sizes in short", sizes.FIGURES, sizes.array),
    (ROOT / "docs/install.md", "sizes of wheels", sizes.FIGURES, sizes.wheels),
    (ROOT / "docs/hold.md", "16 cores", FIGURES / "hold-16.json", hold.table),
    (ROOT / "docs/hold.md", "a GPU", FIGURES / "hold-gpu.json", hold.table),
    (FIGURES / "cpu.md", "worker shapes", FIGURES / "worker_shapes.json", worker_shapes.page),
    (FIGURES / "cpu.md", "start", FIGURES / "image-start.json", image_start.table),
    (FIGURES / "cpu.md", "wheels", FIGURES / "image-wheels.json", image_wheels.table),
    (ROOT / "docs/images.md", "bring-up", FIGURES / "bringup-image.json", bringup.inside_or_outside),
    (FIGURES / "cpu.md", "startup", FIGURES / "startup.json", _startup),
    (FIGURES / "cpu.md", "startup on a disk", FIGURES / "startup-disk.json", _startup),
    (FIGURES / "cpu.md", "bring-up", FIGURES / "bringup.json", _bringup),
    (FIGURES / "README.md", "startup in short", FIGURES / "bringup.json", bringup.in_short),
    (FIGURES / "cpu.md", "tenths", tenths.FIGURES, tenths.table),
    (FIGURES / "cpu.md", "bring-up inside", FIGURES / "bringup-image.json", _bringup),
    (FIGURES / "cpu.md", "bring-up in an allocation", FIGURES / "bringup-allocation.json", _bringup),
    (FIGURES / "cpu.md", "data protocols", FIGURES / "data-protocols.json", _protocols),
    (FIGURES / "cpu.md", "listing", FIGURES / "listing.json", listing.table),
    (
        ROOT / "docs/upstream/README.md",
        "spilling",
        FIGURES / "gpu-1-memory-kinds-passes-1-5-idle.json",
        upstream.spilling,
    ),
    (ROOT / "docs/upstream/README.md", "closing", FIGURES / "upstream-close.json", upstream.closing),
    (FIGURES / "cpu.md", "many nodes", thousand.FIGURES, thousand.page),
    (FIGURES / "cpu.md", "thousand", thousand.FIGURES, thousand.table),
    (FIGURES / "cpu.md", "suite", suite.FIGURES, suite.table),
    (FIGURES / "cpu.md", "others", FIGURES / "others.json", others.table),
    (FIGURES / "cpu.md", "sampling", FIGURES / "sampling.json", sampling.table),
    (FIGURES / "cpu.md", "report", FIGURES / "report.json", report.table),
)


def page_with(page: str, name: str, text: str) -> str:
    """Return a page with a text between the markers of a place.

    Raises
    ------
    ValueError
        If a marker is missing.
    """
    begin, end = f"<!-- figures: {name} (bench/tables.py) -->", f"<!-- figures: end of {name} -->"
    before, found, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not found or not last:
        raise ValueError(f"the page lacks {begin} or {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not up to date")
    options = parser.parse_args(arguments)
    stale = []
    for path, name, file, write in PLACES:
        old = path.read_text(encoding="utf-8")
        new = page_with(old, name, write(read_figures(file) if file else {}))
        if new != old:
            held = file.relative_to(ROOT) if file else "docs/benchmarks"
            stale.append(f"{path.relative_to(ROOT)} ({name}) does not show what {held} holds.")
            if not options.check:
                path.write_text(new, encoding="utf-8")
    if options.check:
        for line in stale:
            print(f"{line} Run: python3 bench/tables.py", file=sys.stderr)
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
