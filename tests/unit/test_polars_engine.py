"""The engine for Polars queries, on a Dask cluster in this process: cuDF-Polars and RMM are stand-ins."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
from distributed import Client, LocalCluster, SchedulerPlugin

import hpcml


class Engine:
    """A DaskEngine that takes its memory as the real one does, on the worker."""

    def __init__(self, dask_client: Client, *, engine_options: dict[str, Any], **options: Any) -> None:
        self.client, self.options, self.engine_options = dask_client, options, engine_options
        module, _, name = engine_options["memory_resource_config"].qualname.rpartition(".")
        self.memory = getattr(sys.modules[module], name)()
        sys.modules["rmm"].mr.set_current_device_resource(f"the engine's, on {self.memory}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Cuda:
    """A resource without a pool."""


@pytest.fixture
def rmm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a worker's memory resource; cudf_polars is there too."""
    state = SimpleNamespace(current="the run's pool")
    resources = SimpleNamespace(
        get_current_device_resource=lambda: state.current,
        set_current_device_resource=lambda one: setattr(state, "current", one),
        CudaMemoryResource=Cuda,
        CudaAsyncMemoryResource=lambda: "CUDA's asynchronous pool",
    )
    contents: dict[str, dict[str, Any]] = {
        "rmm": {"mr": resources},
        "cudf_polars.engine.dask": {"DaskEngine": Engine},
        "cudf_polars.engine.hardware_binding": {"HardwareBindingPolicy": lambda enabled: ("bound by it", enabled)},
        "cudf_polars.utils.config": {"MemoryResourceConfig": SimpleNamespace},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return state


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def opened(client: Client, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AbstractContextManager[Any]:
    monkeypatch.setenv("HPCML_RUN_DIR", "/a/run")
    monkeypatch.setenv("HPCML_GPUS", "1")
    return hpcml.polars_engine(client, **options)


def ttl(client: Client) -> float:
    return float(client.cluster.scheduler.worker_ttl)


def test_it_uses_the_workers_pool_and_gives_it_back(
    client: Client, rmm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(client, monkeypatch, engine_options={"raise_on_fail": False}, executor_options={"a": 1}) as engine:
        assert engine.client is client
        assert engine.memory == "the run's pool"
        assert rmm.current == "the engine's, on the run's pool"
        assert engine.engine_options["hardware_binding"] == ("bound by it", False)
        assert engine.engine_options["raise_on_fail"] is False
        assert engine.options == {"executor_options": {"a": 1}}
    assert rmm.current == "the run's pool"


def test_workers_without_a_pool_get_one_of_cudas(
    client: Client, rmm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rmm.current = Cuda()
    with opened(client, monkeypatch) as engine:
        assert engine.memory == "CUDA's asynchronous pool"
    assert rmm.current is before


def test_a_worker_that_is_silent_in_a_query_is_kept_until_the_engine_closes(
    client: Client, rmm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    reporter = SchedulerPlugin()
    reporter.send = lambda **fields: said.append(fields)
    monkeypatch.setitem(client.cluster.scheduler.plugins, "hpcml-reporter", reporter)
    before = ttl(client)
    with pytest.raises(ZeroDivisionError), opened(client, monkeypatch):
        assert math.isinf(ttl(client))
        assert said == [{"event": "polars-engine"}]  # the report's rules of tasks do not hold for this run
        raise ZeroDivisionError
    assert ttl(client) == before
    assert rmm.current == "the run's pool"


def test_without_a_client_it_uses_the_one_that_is_open(
    client: Client, rmm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client would hand the script's environment over again, and say what the workers get of it."""
    monkeypatch.setattr("hpcml.script_api.connect", lambda: pytest.fail("a second client was opened"))
    monkeypatch.setenv("HPCML_RUN_DIR", "/a/run")
    monkeypatch.setenv("HPCML_GPUS", "1")
    with hpcml.polars_engine() as engine:
        assert engine.client is client
    assert rmm.current == "the run's pool"


def test_without_cudf_polars_the_error_names_what_installs_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudf_polars", None)
    with (
        pytest.raises(RuntimeError, match=r"cudf-polars .*Install hpcml\[polars-cuda12\] or hpcml\[polars-cuda13\]"),
        opened(client, monkeypatch),
    ):
        pass  # pragma: no cover


def test_without_gpus_it_is_polars_own_engine() -> None:
    with hpcml.polars_engine() as engine:
        assert engine == "streaming"
