"""The pages of the documentation that `make test-all` leaves out: `make test-slurms` names this file, no search finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster
from test_documentation import LONG, run_page
from tests.doc_blocks import LAB_PAGES

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("page", [page for page in LAB_PAGES if page.name in LONG], ids=lambda page: page.name)
def test_marked_blocks_run(cluster: Cluster, page: Path) -> None:
    run_page(cluster, page)
