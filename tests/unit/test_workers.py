"""What the workers are told: amounts of GPU memory, contradictions, the protocol, shared variables."""

from __future__ import annotations

import sys
from multiprocessing import spawn
from typing import Any

import pytest

from hpcml.errors import ConfigError
from hpcml.kinds.dask.login import plan as workers
from hpcml.kinds.dask.node import gpus
from hpcml.kinds.dask.node.script import cluster_outside_runs
from hpcml.request.record import RunRequest
from hpcml.sites import schema
from matrix import site_of
from tests.said import in_order


def site(**table: Any) -> schema.Site:
    return site_of(table)


def variables(profile: schema.Site, gpus: int) -> dict[str, str]:
    return dict(workers.environment(profile, RunRequest().changed(gpus_per_node=gpus)))


@pytest.mark.parametrize(("text", "amount"), [
    ("0.5", 0.5), ("1.0", 1.0), ("40G", 40 * 1024.0**3), ("512M", 512 * 1024.0**2), ("none", None), ("", None), ("0", None),
])  # fmt: skip
def test_amounts(text: str, amount: float | None) -> None:
    made = workers.gpu_settings(site(gpu={"rmm_pool_size": text}), 1)
    assert made is not None
    assert made.rmm_pool_size == amount


def test_pinned_memory_is_a_share_of_a_workers_or_what_the_profile_says(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", bool)  # cupy is there
    for text, expected in (("auto", 36 << 30), ("40G", 40 << 30), ("none", 0)):
        with subtests.test(text):
            made = workers.gpu_settings(site(gpu={"spill_pinned": text}), 4)
            assert made is not None
            assert gpus.pinned_memory(made, 60 << 30) == expected
    with pytest.raises(ConfigError, match=r"'0\.5' is not a valid size"):
        workers.gpu_settings(site(gpu={"spill_pinned": "0.5"}), 4)


@pytest.mark.parametrize("chosen", [{"rmm_async": True}, {"rmm_managed_memory": True}])
def test_the_automatic_pool_gives_way_to_another_allocator(chosen: dict[str, Any]) -> None:
    made = workers.gpu_settings(site(gpu=chosen), 1)
    assert made is not None
    assert made.rmm_pool_size is None


@pytest.mark.parametrize(("gpu", "values"), [
    ({"rmm_async": True, "rmm_managed_memory": True}, ("gpu.rmm_async", "gpu.rmm_managed_memory")),
    ({"rmm_release_threshold": "1G"}, ("gpu.rmm_release_threshold", "gpu.rmm_async = false")),
    ({"cudf_spill_stats": 1}, ("gpu.cudf_spill_stats", "gpu.cudf_spill = false")),
    ({"rmm_allocator_libs": ["jax"]}, ("'jax'",)),
    ({"rmm_pool_size": "lots"}, ("'lots'",)),
    ({"device_memory_limit": "-3"}, ("'-3'",)),
    ({"rmm_maximum_pool_size": "10K"}, ("'10K'", "1 MiB")),
])  # fmt: skip
def test_what_dask_cuda_would_refuse_on_the_node_is_refused_at_once(
    gpu: dict[str, Any], values: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=in_order(*values)) as caught:
        workers.gpu_settings(site(gpu=gpu), 1)
    assert caught.value.place.startswith("gpu.")
    assert workers.gpu_settings(site(gpu=gpu), 0) is None  # not a word of it where there is no GPU


def test_resources() -> None:
    assert workers.worker_resources(site(workers={"resources": ["GPU=1", "disk=1e9"]})) == (("GPU", 1.0), ("disk", 1e9))
    with pytest.raises(ConfigError, match="'GPU' is not NAME=NUMBER"):
        workers.worker_resources(site(workers={"resources": ["GPU"]}))


def test_shared_variables() -> None:
    assert variables(site(), 0) == {}
    made = variables(site(network={"interface": "ib0"}, gpu={"cudf_spill": True}), 4)
    assert made["NCCL_SOCKET_IFNAME"] == "ib0"
    assert made["CUDF_SPILL"] == "on"
    assert made["RAPIDS_NO_INITIALIZE"] == "1"
    assert "KVIKIO_COMPAT_MODE" not in made
    for gds, mode in (("on", "OFF"), ("off", "ON")):
        assert variables(site(gpu={"gds": gds}), 4)["KVIKIO_COMPAT_MODE"] == mode
    assert variables(site(network={"protocol": "ucx"}), 0) == {"UCX_WARN_UNUSED_ENV_VARS": "n"}


def test_a_process_of_a_local_cluster_is_told_nothing_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a main guard it would run the script again."""

    def told(name: str) -> list[str]:
        return [key for key in spawn.get_preparation_data(name) if key.startswith("init_main_from_")]

    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/runs/script.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    cluster_outside_runs._leave_out_script()
    assert told("another process") == ["init_main_from_path"]
    assert not told(cluster_outside_runs.WITHOUT_SCRIPT)
