"""What the documentation marks to be run on the lab runs there, as written.

Those of long_pages.py run with other versions of Slurm alone: they take minutes, or have the lines of first-run.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster
from tests.doc_blocks import LAB_PAGES, of_page, session

pytestmark = pytest.mark.lab

LONG = ("lab.md", "3-lab.md", "4-machine.md", "tutorial.md")


def lines(page: Path) -> set[str]:
    return {line for line in session(of_page(page), on_lab=True).splitlines() if not line.startswith("check ")}


SHORT = {page: lines(page) for page in LAB_PAGES if page.name not in LONG}
# README.md shows the first lines of first-run.md.
PAGES = [page for page, own in SHORT.items() if not any(own < others for others in SHORT.values())]


def run_page(cluster: Cluster, page: Path) -> None:
    script = session(of_page(page), on_lab=True)
    folder = cluster.write(f"docs-{page.stem}/session.sh", script).parent
    cluster.run("mkdir", "-p", str(folder / "tour"))
    done = cluster.run("bash", "session.sh", cwd=folder, timeout=400)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_marked_blocks_run(cluster: Cluster, page: Path) -> None:
    run_page(cluster, page)
