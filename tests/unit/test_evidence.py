"""Counters of the interconnect, from trees in the kernel's form and a stand-in for NVML, and what UCX and NCCL log.

InfiniBand is untested on hardware: its trees are written by hand in the form of Linux's sysfs-class-infiniband, and each
log says where its lines come from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.node.interconnect.measurement import (
    counter_difference,
    parse_nccl_log,
    parse_ucx_log,
    read_counters,
    transport_variables,
)

ALL_LINKS = 0xFFFFFFFF


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def port(device: str, sent: int, received: int) -> dict[str, str]:
    place = f"sys/class/infiniband/{device}/ports/1"
    return {
        f"{place}/counters/port_xmit_data": str(sent),
        f"{place}/counters/port_rcv_data": str(received),
        f"{place}/state": "4: ACTIVE",
        f"{place}/link_layer": "InfiniBand",
        f"{place}/rate": "100 Gb/sec (2X HDR)",
    }


def interface(name: str, kind: int, sent: int, received: int) -> dict[str, str]:
    place = f"sys/class/net/{name}"
    return {
        f"{place}/type": str(kind),
        f"{place}/statistics/tx_bytes": str(sent),
        f"{place}/statistics/rx_bytes": str(received),
    }


def test_a_port_counts_words_of_four_bytes(tmp_path: Path) -> None:
    tree(tmp_path, port("mlx5_0", 1000, 50))
    found = read_counters(tmp_path)["infiniband"]
    assert found == {
        "mlx5_0:1": {"tx": 4000, "rx": 200, "state": "ACTIVE", "layer": "InfiniBand", "rate": 12_500_000_000}
    }


def test_a_counter_that_stopped_at_its_end_is_not_known(tmp_path: Path) -> None:
    tree(tmp_path, port("mthca0", 2**32 - 1, 7))
    found = read_counters(tmp_path)["infiniband"]["mthca0:1"]
    assert (found["tx"], found["rx"]) == (None, 28)


def test_interfaces_of_all_kinds(tmp_path: Path) -> None:
    tree(tmp_path, interface("lo", 772, 1, 2) | interface("ib0", 32, 3, 4) | interface("bond0", 1, 5, 6))
    tree(tmp_path, {"sys/class/net/bonding_masters": "bond0"})
    (tmp_path / "sys/class/net/bond0/lower_eth0").mkdir()
    assert read_counters(tmp_path)["interfaces"] == {
        "bond0": {"tx": 5, "rx": 6, "type": 1, "lower": True},
        "ib0": {"tx": 3, "rx": 4, "type": 32, "lower": False},
        "lo": {"tx": 1, "rx": 2, "type": 772, "lower": False},
    }


def test_what_moved(tmp_path: Path) -> None:
    before = read_counters(tree(tmp_path, port("mlx5_0", 1000, 50) | interface("lo", 772, 100, 100)))
    after = read_counters(tree(tmp_path, port("mlx5_0", 1250, 50) | interface("lo", 772, 107, 90)))
    moved = counter_difference(before, after)
    assert (moved["infiniband"]["mlx5_0:1"]["tx"], moved["infiniband"]["mlx5_0:1"]["rx"]) == (1000, 0)
    assert moved["infiniband"]["mlx5_0:1"]["rate"] == 12_500_000_000
    assert moved["interfaces"]["lo"] == {"tx": 7, "rx": None, "type": 772, "lower": False}  # backwards: not known
    assert 0 <= moved["seconds"] < 60
    json.dumps(moved)


class NVMLError(Exception):
    """In the place of pynvml's."""


def nvlink(
    monkeypatch: pytest.MonkeyPatch, links: list[int], fields: dict[tuple[int, str, int], int], *, joined: bool = True
) -> Any:
    """Return what is read of GPUs with so many links and these fields, by (GPU, name, scope); others are not supported."""

    def state(gpu: int, link: int) -> int:
        if link > links[gpu]:
            raise NVMLError
        return int(link < links[gpu])  # the last link is there, but not active

    def field(gpu: int, name: str, scope: int) -> SimpleNamespace:
        number = fields.get((gpu, name, scope))
        value = SimpleNamespace(ullVal=number, uiVal=-1)
        return SimpleNamespace(nvmlReturn=3 if number is None else 0, valueType=3, value=value)

    names = ("THROUGHPUT_DATA_TX", "THROUGHPUT_DATA_RX", "COUNT_XMIT_BYTES", "COUNT_RCV_BYTES")
    made: Any = SimpleNamespace(
        **{f"NVML_FI_DEV_NVLINK_{name}": name for name in names},
        NVMLError=NVMLError, NVMLError_NoPermission=PermissionError, NVML_SUCCESS=0, NVML_ERROR_NOT_SUPPORTED=3, NVML_FEATURE_ENABLED=1,
        NVML_NVLINK_MAX_LINKS=36, NVML_NVLINK_COUNTER_UNIT_BYTES=2, NVML_P2P_CAPS_INDEX_NVLINK=2, NVML_P2P_STATUS_OK=0,
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: len(links), nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}", nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetP2PStatus=lambda *_: 0 if joined else 5,
        nvmlDeviceGetFieldValues=lambda gpu, asked: [field(gpu, *item) for item in asked],
        nvmlDeviceGetNvLinkUtilizationControl=lambda *_: SimpleNamespace(units=2),
        nvmlDeviceGetNvLinkUtilizationCounter=lambda _gpu, link, _counter: (100 + link, 10 + link),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return read_counters(Path("/nowhere"))["nvlink"]


def test_nvlink_is_summed_over_all_links_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {(gpu, f"THROUGHPUT_DATA_{way}", scope): number for gpu in (0, 1)
              for way, number in (("TX", 3), ("RX", 5)) for scope in (0, ALL_LINKS)}  # fmt: skip
    fields[0, "THROUGHPUT_DATA_TX", 0] = 1  # what one gets without a scope
    found = nvlink(monkeypatch, [18, 18], fields)
    assert found["GPU-0"] == {"index": 0, "links": 18, "tx": 3072, "rx": 5120, "peers": ["GPU-1"], "why": ""}


@pytest.mark.parametrize(("names", "scopes", "tx", "rx"), [
    (("THROUGHPUT_DATA_TX", "THROUGHPUT_DATA_RX"), (0, 1), 2 * 7 * 1024, 2 * 9 * 1024),
    (("COUNT_XMIT_BYTES", "COUNT_RCV_BYTES"), (0, 1), 14, 18),
])  # fmt: skip
def test_other_counters_stand_in(
    names: tuple[str, str], scopes: tuple[int, ...], tx: int, rx: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {(0, name, scope): number for name, number in zip(names, (7, 9), strict=True) for scope in scopes}
    found = nvlink(monkeypatch, [2], fields)["GPU-0"]
    assert (found["tx"], found["rx"]) == (tx, rx)


def test_the_oldest_counters_serve_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvlink(monkeypatch, [2], {})["GPU-0"]
    assert (found["tx"], found["rx"]) == (21, 201)  # pynvml returns (rx, tx)


def test_gpus_without_nvlink_and_gpus_that_it_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvlink(monkeypatch, [0, 0], {})
    assert found["GPU-0"] == {
        "index": 0, "links": 0, "tx": None, "rx": None, "peers": [], "why": "no active NVLink"}  # fmt: skip
    assert nvlink(monkeypatch, [4, 4], {}, joined=False)["GPU-1"]["peers"] == []


def log(name: str) -> str:
    return (Path(__file__).parents[1] / f"fixtures/interconnect/{name}.log").read_text()


RAILS = [f"rc_mlx5/mlx5_{number}:1" for number in range(4)]


@pytest.mark.parametrize(("name", "lanes"), [
    ("ucx-self", {"self": ["tcp/eth0", "tcp/lo"], "intra": ["tcp/lo"], "inter": ["tcp/lo"]}),
    ("ucx-protocol-tables", {"self": [], "intra": ["tcp/eth0", "tcp/lo"], "inter": []}),
    ("ucx-rc-and-cuda_ipc", {"self": [], "intra": ["cma/memory", "cuda_ipc/cuda", *RAILS, "sysv/memory"], "inter": RAILS}),
    ("ucx-rc-and-dc", {"self": [], "intra": ["srd/rdmap16s27:1"], "inter": ["dc_mlx5/mlx5_2:1", "rc_mlx5/mlx5_0:1"]}),
])  # fmt: skip
def test_lanes(name: str, lanes: dict[str, list[str]]) -> None:
    assert parse_ucx_log(log(name))["lanes"] == lanes


def test_a_lane_that_only_asks_for_life_carries_nothing() -> None:
    assert "cuda_ipc/cuda" in parse_ucx_log(log("ucx-tcp-and-cuda_ipc"))["lanes"]["intra"]
    alive = parse_ucx_log("UCX  INFO    c inter-node cfg#1 tag(tcp/ib0)  ka(ud_mlx5/mlx5_0:1)\n")
    assert alive["lanes"]["inter"] == ["tcp/ib0"]


def test_version_library_and_settings() -> None:
    found = parse_ucx_log(log("ucx-forced-tcp"))
    assert (found["version"], found["library"].endswith("/libucx/lib/libucp.so")) == ("1.21.0", True)
    assert found["settings"]["UCX_TLS"] == "tcp,cuda_copy"


def test_transports_that_are_not_there() -> None:
    found = parse_ucx_log(log("ucx-no-infiniband"))
    assert "tcp" in found["available"]
    (warning,) = found["warnings"]  # and not what UCXX's own variable provokes
    assert warning.startswith("transports 'rc','cuda_copy' are not available")
    alone = parse_ucx_log(log("ucx-nothing-usable"))
    assert alone["errors"] == ["no usable transports/devices (asked rc on network:intra-node:accelerator:loopback:)"]


def test_nccl_over_infiniband() -> None:
    found = parse_nccl_log(log("nccl-infiniband"))
    assert (found["version"], found["net"], found["devices"]) == ("2.24.3", "IB", ["mlx5_0:1", "mlx5_2:1"])
    assert (found["within"], found["across"], found["gdr"]) == ({"P2P/CUMEM": 2}, {"NET/IB": 3}, 2)


def test_nccl_over_a_plugin() -> None:
    found = parse_nccl_log(log("nccl-plugin"))
    assert (found["net"], found["across"]) == ("IBext", {"NET/IBext_v8": 1})


def test_nccl_over_sockets() -> None:
    found = parse_nccl_log(log("nccl-sockets"))
    assert (found["net"], found["devices"]) == ("Socket", ["lo"])
    assert found["within"] == {"SHM": 1, "P2P/IPC": 1}
    assert (found["across"], found["gdr"]) == ({"NET/Socket": 2}, 0)
    assert found["settings"] == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    assert found["warnings"] == ["socketFinalizeAccept: wrong type 4 != 3"]


def test_the_variables_that_decide() -> None:
    given = {"UCX_TLS": "tcp", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/root", "AN_UCX_": "1",
             "UCXPY_IFNAME": "ib0", "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true"}  # fmt: skip
    assert transport_variables(given).keys() == given.keys() - {"HOME", "AN_UCX_"}
