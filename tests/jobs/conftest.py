"""Two Dask workers in this process, which the scripts under test connect to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import hpcml


@pytest.fixture(scope="module")  # tests of another tier, in the same process, close Dask's event loop
def client() -> Iterator[Client]:
    no_page: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, **no_page)
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture(autouse=True)
def connected(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpcml, "connect", lambda **_: contextlib.nullcontext(client))
