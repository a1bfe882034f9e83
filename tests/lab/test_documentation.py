"""What the documentation marks to be run on the lab runs there, as written."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

docs = importlib.import_module("tests.test_docs")  # by this name: tests/ has a conftest of its own


@pytest.mark.parametrize("page", docs.LAB_PAGES, ids=lambda page: page.name)
def test_marked_blocks_run(cluster: Cluster, page: Path) -> None:
    session = docs.session(docs.of_page(page), on_lab=True)
    folder = cluster.write(f"docs-{page.stem}/session.sh", session).parent
    cluster.run("mkdir", "-p", str(folder / "tour"))
    done = cluster.run("bash", "session.sh", cwd=folder, timeout=400)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
