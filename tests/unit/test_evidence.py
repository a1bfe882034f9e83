"""Counters: from trees in the kernel's form, from this machine's loopback, and from a stand-in for NVML.

InfiniBand is untested on hardware: its trees are written by hand in the form of Linux's sysfs-class-infiniband.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from hpcml.node.hardware import nvml
from hpcml.node.interconnect.measurement import counter_difference, read_counters

ALL_LINKS = 0xFFFFFFFF


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def port(
    device: str, sent: int, received: int, state: str = "4: ACTIVE", rate: str = "100 Gb/sec (2X HDR)"
) -> dict[str, str]:
    place = f"sys/class/infiniband/{device}/ports/1"
    return {
        f"{place}/counters/port_xmit_data": str(sent),
        f"{place}/counters/port_rcv_data": str(received),
        f"{place}/state": state,
        f"{place}/link_layer": "InfiniBand",
        f"{place}/rate": rate,
    }


def interface(name: str, kind: int, sent: int, received: int) -> dict[str, str]:
    place = f"sys/class/net/{name}"
    return {
        f"{place}/type": str(kind),
        f"{place}/statistics/tx_bytes": str(sent),
        f"{place}/statistics/rx_bytes": str(received),
    }


# What is read.


def test_a_port_counts_words_of_four_bytes(tmp_path: Path) -> None:
    tree(tmp_path, port("mlx5_0", 1000, 50))
    found = read_counters(tmp_path)["infiniband"]
    assert found == {
        "mlx5_0:1": {"tx": 4000, "rx": 200, "state": "ACTIVE", "layer": "InfiniBand", "rate": 12_500_000_000}
    }


def test_a_port_that_is_down_and_one_that_says_little(tmp_path: Path) -> None:
    tree(tmp_path, port("mlx5_1", 0, 0, "1: DOWN", "unknown"))
    (tmp_path / "sys/class/infiniband/odd_0/ports/2").mkdir(parents=True)
    found = read_counters(tmp_path)["infiniband"]
    assert (found["mlx5_1:1"]["state"], found["mlx5_1:1"]["rate"]) == ("DOWN", 0)
    assert found["odd_0:2"] == {"tx": None, "rx": None, "state": "", "layer": "", "rate": 0}


def test_a_counter_that_stopped_at_its_end_is_not_known(tmp_path: Path) -> None:
    tree(tmp_path, port("mthca0", 2**32 - 1, 7))
    found = read_counters(tmp_path)["infiniband"]["mthca0:1"]
    assert (found["tx"], found["rx"]) == (None, 28)


def test_efa_has_counters_of_its_own_in_bytes(tmp_path: Path) -> None:
    own = "sys/class/infiniband/rdmap16s27/ports/1/hw_counters"
    tree(tmp_path, {f"{own}/tx_bytes": "4096", f"{own}/rx_bytes": "12"})
    found = read_counters(tmp_path)["infiniband"]["rdmap16s27:1"]
    assert (found["tx"], found["rx"]) == (4096, 12)


def test_interfaces_of_all_kinds(tmp_path: Path) -> None:
    tree(tmp_path, interface("lo", 772, 1, 2) | interface("ib0", 32, 3, 4) | interface("bond0", 1, 5, 6))
    tree(tmp_path, {"sys/class/net/bonding_masters": "bond0"})
    (tmp_path / "sys/class/net/bond0/lower_eth0").mkdir()
    assert read_counters(tmp_path)["interfaces"] == {
        "bond0": {"tx": 5, "rx": 6, "type": 1, "lower": True},
        "ib0": {"tx": 3, "rx": 4, "type": 32, "lower": False},
        "lo": {"tx": 1, "rx": 2, "type": 772, "lower": False},
    }


def test_a_node_that_has_nothing(tmp_path: Path) -> None:
    found = read_counters(tmp_path)
    assert (found["infiniband"], found["interfaces"]) == ({}, {})


def test_what_moved(tmp_path: Path) -> None:
    before = read_counters(tree(tmp_path, port("mlx5_0", 1000, 50) | interface("lo", 772, 100, 100)))
    after = read_counters(tree(tmp_path, port("mlx5_0", 1250, 50) | interface("lo", 772, 107, 90)))
    moved = counter_difference(before, after)
    assert (moved["infiniband"]["mlx5_0:1"]["tx"], moved["infiniband"]["mlx5_0:1"]["rx"]) == (1000, 0)
    assert moved["infiniband"]["mlx5_0:1"]["rate"] == 12_500_000_000
    assert moved["interfaces"]["lo"] == {"tx": 7, "rx": None, "type": 772, "lower": False}  # backwards: not known
    assert 0 <= moved["seconds"] < 60
    json.dumps(moved)


def test_a_device_that_came_in_between_has_moved_nobody_knows_how_much(tmp_path: Path) -> None:
    before = read_counters(tmp_path)
    after = read_counters(tree(tmp_path, port("mlx5_0", 1250, 50)))
    assert counter_difference(before, after)["infiniband"]["mlx5_0:1"]["tx"] is None


def test_this_machines_loopback_shows_what_passed() -> None:
    size = 8 * 1024**2
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_swallow, args=(server,))
        thread.start()
        before = read_counters()
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(bytes(size))
        thread.join()
    moved = counter_difference(before, read_counters())
    assert size <= moved["interfaces"]["lo"]["tx"] < 20 * size


def _swallow(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while connection.recv(1 << 20):
            pass


# NVML, of which a stand-in answers what a GPU of some kind answers.


class NVMLError(Exception):
    def __init__(self, code: int = 999) -> None:
        super().__init__(f"NVML error {code}")


class NoPermissionError(NVMLError):
    pass


class Field:
    """As pynvml's c_nvmlFieldValue_t."""

    def __init__(self, code: int, number: int) -> None:
        self.nvmlReturn, self.valueType = code, 3
        self.value = types.SimpleNamespace(ullVal=number, uiVal=-1)


class Gpus:
    """GPUs by index: links, and a field's value by (GPU, field, scope); what is not there is "not supported"."""

    def __init__(self, links: list[int], fields: dict[tuple[int, str, int], int], *, joined: bool = True) -> None:
        self.links, self.fields, self.joined = links, fields, joined
        self.forbidden: set[int] = set()
        self.units = 0  # cycles, as after a start
        self.starts = 0

    def module(self) -> Any:
        made: Any = types.ModuleType("pynvml")
        names = [f"THROUGHPUT_{kind}_{way}" for kind in ("DATA", "RAW") for way in ("TX", "RX")]
        names += ["COUNT_XMIT_BYTES", "COUNT_RCV_BYTES"]
        for name in names:
            setattr(made, f"NVML_FI_DEV_NVLINK_{name}", name)
        made.NVMLError, made.NVMLError_NoPermission = NVMLError, NoPermissionError
        made.NVML_SUCCESS, made.NVML_ERROR_NOT_SUPPORTED, made.NVML_FEATURE_ENABLED = 0, 3, 1
        made.NVML_NVLINK_MAX_LINKS, made.NVML_NVLINK_COUNTER_UNIT_BYTES = 36, 2
        made.NVML_P2P_CAPS_INDEX_NVLINK, made.NVML_P2P_STATUS_OK = 2, 0
        made.nvmlInit, made.nvmlShutdown = lambda: self.start(1), lambda: self.start(-1)
        made.nvmlDeviceGetCount = lambda: len(self.links)
        made.nvmlDeviceGetHandleByIndex = self.handle
        made.nvmlDeviceGetUUID = lambda gpu: f"GPU-{gpu}"
        made.nvmlDeviceGetNvLinkState = self.state
        made.nvmlDeviceGetP2PStatus = lambda *_: 0 if self.joined else 5
        made.nvmlDeviceGetFieldValues = lambda gpu, asked: [self.field(gpu, *item) for item in asked]
        made.nvmlDeviceGetNvLinkUtilizationControl = lambda *_: types.SimpleNamespace(units=self.units)
        made.nvmlDeviceGetNvLinkUtilizationCounter = lambda _gpu, link, _counter: (100 + link, 10 + link)
        return made

    def start(self, step: int) -> None:
        self.starts += step

    def handle(self, index: int) -> int:
        if index in self.forbidden:
            raise NoPermissionError
        return index

    def state(self, gpu: int, link: int) -> int:
        if link >= self.links[gpu] + 1:
            raise NVMLError(2)
        return int(link < self.links[gpu])  # the last link is there, but not active

    def field(self, gpu: int, name: str, scope: int) -> Field:
        number = self.fields.get((gpu, name, scope))
        return Field(3, 0) if number is None else Field(0, number)


def nvlink(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", gpus.module())
    found = read_counters(Path("/nowhere"))
    assert gpus.starts == 0  # each nvmlInit has its nvmlShutdown
    return found["nvlink"] if found["nvlink"] is not None else found["nvlink_why"]


def test_nvlink_is_summed_over_all_links_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {(gpu, f"THROUGHPUT_DATA_{way}", scope): number for gpu in (0, 1)
              for way, number in (("TX", 3), ("RX", 5)) for scope in (0, ALL_LINKS)}  # fmt: skip
    fields[0, "THROUGHPUT_DATA_TX", 0] = 1  # what one gets without a scope
    found = nvlink(Gpus([18, 18], fields), monkeypatch)
    assert found["GPU-0"] == {"index": 0, "links": 18, "tx": 3072, "rx": 5120, "peers": ["GPU-1"], "why": ""}
    json.dumps(found)


@pytest.mark.parametrize(("names", "scopes", "tx", "rx"), [
    (("THROUGHPUT_DATA_TX", "THROUGHPUT_DATA_RX"), (0, 1), 2 * 7 * 1024, 2 * 9 * 1024),
    (("THROUGHPUT_RAW_TX", "THROUGHPUT_RAW_RX"), (ALL_LINKS,), 7 * 1024, 9 * 1024),
    (("COUNT_XMIT_BYTES", "COUNT_RCV_BYTES"), (0, 1), 14, 18),
])  # fmt: skip
def test_other_counters_stand_in(
    names: tuple[str, str], scopes: tuple[int, ...], tx: int, rx: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {(0, name, scope): number for name, number in zip(names, (7, 9), strict=True) for scope in scopes}
    found = nvlink(Gpus([2], fields), monkeypatch)["GPU-0"]
    assert (found["tx"], found["rx"]) == (tx, rx)


def test_the_oldest_counters_serve_only_if_they_count_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus([2], {})
    found = nvlink(gpus, monkeypatch)["GPU-0"]
    assert (found["tx"], found["rx"]) == (None, None)
    assert "THROUGHPUT_DATA_TX: NVML error 3" in found["why"]
    assert "utilization counters" in found["why"]
    gpus.units = 2
    found = nvlink(gpus, monkeypatch)["GPU-0"]
    assert (found["tx"], found["rx"]) == (21, 201)  # pynvml returns (rx, tx)


def test_gpus_without_nvlink_and_gpus_that_it_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvlink(Gpus([0, 0], {}), monkeypatch)
    assert found["GPU-0"] == {
        "index": 0, "links": 0, "tx": None, "rx": None, "peers": [], "why": "no active NVLink"}  # fmt: skip
    assert nvlink(Gpus([4, 4], {}, joined=False), monkeypatch)["GPU-1"]["peers"] == []


def test_a_gpu_of_another_job_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus([4, 4], {})
    gpus.forbidden = {0}
    found = nvlink(gpus, monkeypatch)
    assert list(found) == ["GPU-1"]
    assert found["GPU-1"]["index"] == 1


def test_nvml_that_does_not_start_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus([4], {})
    made = gpus.module()

    def fail() -> None:
        raise NVMLError(12)

    made.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", made)
    before = read_counters(Path("/nowhere"))
    assert (before["nvlink"], before["nvlink_why"]) == (None, "NVML could not start: NVML error 12")
    moved = counter_difference(before, before)
    assert (moved["nvlink"], moved["nvlink_why"]) == (None, "NVML could not start: NVML error 12")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in read_counters(Path("/nowhere"))["nvlink_why"]


def test_nvml_that_fails_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus([4], {})
    made = gpus.module()

    def fail(_: int) -> str:
        raise NVMLError(15)

    made.nvmlDeviceGetUUID = fail
    monkeypatch.setitem(sys.modules, "pynvml", made)
    assert read_counters(Path("/nowhere"))["nvlink_why"] == "NVML fails: NVML error 15"
    assert gpus.starts == 0


def test_the_real_library_has_the_names_that_are_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    module = Gpus([], {}).module()
    for name in vars(module):
        if not name.startswith("__"):
            assert hasattr(pynvml, name), name
    for name in (
        "NVML_SUCCESS",
        "NVML_FEATURE_ENABLED",
        "NVML_P2P_CAPS_INDEX_NVLINK",
        "NVML_NVLINK_COUNTER_UNIT_BYTES",
    ):
        assert getattr(pynvml, name) == getattr(module, name), name
    value = pynvml.c_nvmlFieldValue_t()
    for number, member in enumerate(nvml._VALUE):
        assert hasattr(value.value, member)
        assert getattr(pynvml, ("NVML_VALUE_TYPE_DOUBLE", "NVML_VALUE_TYPE_UNSIGNED_INT", "NVML_VALUE_TYPE_UNSIGNED_LONG",
            "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG", "NVML_VALUE_TYPE_SIGNED_LONG_LONG", "NVML_VALUE_TYPE_SIGNED_INT")[number]) == number  # fmt: skip
