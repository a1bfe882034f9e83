"""Which port is nearest to which GPU: on constructed PCI trees, and what UCX does with the answer."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.node.hardware import probe, sysfs, topology
from hpcml.node.hardware.topology import NoAffinityError
from tests.fixtures.nodes import tree


def facts_of(name: str, root: Path, *edits: tuple[str, str]) -> dict[str, Any]:
    tree.build(name, root, *edits)
    facts = probe.probe(root, nvml=tree.raw(f"{name}.nvml"), ucx=tree.raw("conda.ucx"))
    for interface in facts["interfaces"]:  # a recorded tree has no addresses
        interface["ipv4"] = [f"10.0.0.{1 + int(interface['name'][-1])}"] if interface["name"][-1].isdigit() else []
    return facts


Pci = dict[str, Any]


def pci(path: tuple[str, ...], numa: int) -> Pci:
    return {"bus_id": path[-1], "path": list(path), "numa": numa}


def place(root: Path, bus_id: str) -> Pci:
    return sysfs.pci_of(root / "sys/bus/pci/devices" / sysfs.sysfs_bus_id(bus_id))


def positions(facts: dict[str, Any]) -> tuple[dict[str, Pci], dict[str, Pci]]:
    gpus = {gpu["bus_id"]: gpu["pci"] for gpu in facts["gpus"]}
    return gpus, {port["name"]: port["pci"] for port in topology.usable_ports(facts["infiniband"])}


@pytest.mark.parametrize(("nvml", "kernel"), [
    ("00000000:1D:00.0", "0000:1d:00.0"),
    ("0000:1d:00.0", "0000:1d:00.0"),
    ("00010000:E1:00.1", "10000:e1:00.1"),
    ("0002:00:01.0", "0002:00:01.0"),
])  # fmt: skip
def test_a_pci_address_as_the_kernel_writes_it(nvml: str, kernel: str) -> None:
    assert sysfs.sysfs_bus_id(nvml) == kernel


@pytest.mark.parametrize("text", ["", "1d:00.0", "GPU-1", "x:1d:00.0"])
def test_what_is_no_pci_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sysfs.sysfs_bus_id(text)


def test_the_way_to_a_device(tmp_path: Path) -> None:
    tree.build("leonardo", tmp_path)
    position = place(tmp_path, "00000000:8A:00.0")
    assert position == pci(("pci0000:89", "0000:89:02.0", "0000:8a:00.0"), 1)
    assert place(tmp_path, "0000:99:00.0") == {}
    (tmp_path / "sys/bus/pci/devices/0000:99:00.0").symlink_to("/usr")
    assert place(tmp_path, "0000:99:00.0") == {}


def test_a_device_below_a_pci_device_is_where_that_one_is(tmp_path: Path) -> None:
    tree.build("no-nic", tmp_path)
    virtio = tmp_path / "sys/devices/pci0000:00/0000:00:03.0/virtio2"
    virtio.mkdir()
    assert sysfs.pci_of(virtio) == pci(("pci0000:00", "0000:00:03.0"), -1)


@pytest.mark.parametrize(("name", "a", "b", "level"), [
    ("leonardo", "0000:31:00.0", "0000:31:00.1", "PIX"),  # two ports of one card
    ("leonardo", "0000:10:00.0", "0000:31:00.0", "NODE"),
    ("leonardo", "0000:10:00.0", "0000:b1:00.0", "SYS"),
    ("leonardo-four-cards", "0000:12:00.0", "0000:13:00.0", "PIX"),  # under one switch
    ("leonardo-four-cards", "0000:12:00.0", "0000:55:00.0", "NODE"),
    ("dgx", "0000:05:00.0", "0000:10:00.0", "PXB"),  # under a switch of two stages
    ("dgx", "0000:05:00.0", "0000:09:00.0", "PXB"),
    ("dgx", "0000:05:00.0", "0000:50:00.0", "NODE"),
    ("dgx", "0000:05:00.0", "0000:d1:00.0", "SYS"),
    ("no-nic", "0000:00:07.0", "0000:00:08.0", "PHB"),  # nothing in common but the host bridge
])  # fmt: skip
def test_distances_are_those_of_nvidia_smi(tmp_path: Path, name: str, a: str, b: str, level: str) -> None:
    tree.build(name, tmp_path)
    one, other = place(tmp_path, a), place(tmp_path, b)
    assert (topology.distance(one, other), topology.distance(other, one)) == (level, level)


def test_one_switch_more_on_one_side_is_several() -> None:
    near = pci(("pci0000:00", "0000:00:01.0", "0000:01:00.0"), 0)
    far = pci(("pci0000:00", "0000:00:01.0", "0000:01:00.1", "0000:02:00.0", "0000:03:00.0"), 0)
    assert (topology.distance(near, far), topology.distance(far, near)) == ("PXB", "PXB")


def test_host_bridges_without_numa_nodes_count_as_of_one() -> None:
    one, other = pci(("pci0000:00", "0000:00:01.0"), -1), pci(("pci0000:40", "0000:40:01.0"), -1)
    assert topology.distance(one, other) == "NODE"
    assert topology.distance(one, {**other, "numa": 0}) == "SYS"


@pytest.mark.parametrize(("name", "expected"), [
    ("leonardo", ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"]),
    ("leonardo-four-cards", ["mlx5_1:1", "mlx5_0:1", "mlx5_3:1", "mlx5_2:1"]),
    ("dgx", [f"mlx5_{number}:1" for number in range(8)]),  # and the storage cards, mlx5_8 and 9, stay unused
])  # fmt: skip
def test_every_gpu_gets_a_port_of_its_own(tmp_path: Path, name: str, expected: list[str]) -> None:
    gpus, nics = positions(facts_of(name, tmp_path))
    assert list(topology.nearest_nics(gpus, nics).values()) == [[nic] for nic in expected]


def test_ports_are_shared_evenly(tmp_path: Path) -> None:
    gpus, nics = positions(facts_of("leonardo", tmp_path))
    one_each = {name: nics[name] for name in ("mlx5_0:1", "mlx5_2:1")}
    shared = topology.nearest_nics(gpus, one_each)
    assert list(shared.values()) == [["mlx5_0:1"], ["mlx5_0:1"], ["mlx5_2:1"], ["mlx5_2:1"]]
    same_side = dict.fromkeys(("a", "b"), nics["mlx5_0:1"])
    flat = {gpu: {**place, "numa": 0} for gpu, place in gpus.items()}
    assert list(topology.nearest_nics(flat, same_side).values()) == [["a"], ["a"], ["b"], ["b"]]
    assert set(map(tuple, topology.nearest_nics(gpus, {"only": nics["mlx5_3:1"]}).values())) == {("only",)}


def test_no_gpu_is_sent_to_another_numa_node_for_the_sake_of_evenness(tmp_path: Path) -> None:
    gpus, nics = positions(facts_of("leonardo", tmp_path))
    near = {gpu: gpus[gpu] for gpu in list(gpus)[:2]}
    ports = {name: nics[name] for name in ("mlx5_0:1", "mlx5_2:1")}
    assert list(topology.nearest_nics(near, ports).values()) == [["mlx5_0:1"], ["mlx5_0:1"]]


def test_a_gpu_gets_a_second_port_when_all_can(tmp_path: Path) -> None:
    gpus, nics = positions(facts_of("leonardo", tmp_path))
    two = {gpu: gpus[gpu] for gpu in ("0000:52:00.0", "0000:8a:00.0")}
    assert topology.nearest_nics(two, nics) == {
        "0000:52:00.0": ["mlx5_0:1", "mlx5_1:1"],
        "0000:8a:00.0": ["mlx5_2:1", "mlx5_3:1"],
    }
    three = {gpu: gpus[gpu] for gpu in list(gpus)[:3]}
    assert all(len(ports) == 1 for ports in topology.nearest_nics(three, nics).values())


def test_without_gpus_or_ports() -> None:
    here = pci(("pci0000:00", "0000:00:01.0"), 0)
    assert topology.nearest_nics({}, {"a": here}) == {}
    assert topology.nearest_nics({"gpu": here}, {}) == {"gpu": []}


@st.composite
def _trees(draw: st.DrawFn) -> tuple[dict[str, Pci], dict[str, Pci]]:
    def place(number: int) -> Pci:
        bridge, switch = draw(st.integers(0, 3)), draw(st.integers(0, 1))
        path = (f"pci0000:{bridge:02x}", f"{bridge}-root", f"{bridge}-{switch}-up", f"{number}-down", f"{number}")
        return pci(path, bridge // 2)

    gpus = {f"gpu{number}": place(number) for number in range(draw(st.integers(1, 5)))}
    return gpus, {f"nic{number}": place(100 + number) for number in range(draw(st.integers(1, 6)))}


@given(_trees())
def test_any_node(nodes: tuple[dict[str, Pci], dict[str, Pci]]) -> None:
    gpus, nics = nodes
    tier = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2}
    far = {(gpu, nic): tier[topology.distance(gpus[gpu], nics[nic])] for gpu in gpus for nic in nics}
    chosen = topology.nearest_nics(gpus, nics)
    assert chosen == topology.nearest_nics(dict(gpus), dict(nics))
    for gpu, ports in chosen.items():
        assert ports
        assert all(far[gpu, port] == min(far[gpu, nic] for nic in nics) for port in ports)
    load = Counter(ports[0] for ports in chosen.values())
    for gpu, (first, *_) in chosen.items():  # nobody could move to a port of the same tier that is used by two fewer
        assert all(load[nic] + 1 >= load[first] for nic in nics if far[gpu, nic] == far[gpu, first])
    extra = [port for ports in chosen.values() for port in ports[1:]]
    assert len(extra) == len(set(extra))
    assert len({len(ports) for ports in chosen.values()}) == 1


@given(st.integers(1, 4), st.data())
def test_the_assignment_is_the_cheapest_one(rows: int, data: st.DataObject) -> None:
    columns = data.draw(st.integers(rows, 5))
    line = st.lists(st.integers(0, 9), min_size=columns, max_size=columns)
    costs = data.draw(st.lists(line, min_size=rows, max_size=rows))
    found = topology._cheapest([dict(enumerate(line)) for line in costs], 0)
    assert found is not None
    assert len(set(found)) == rows
    least = min(
        sum(costs[row][column] for row, column in enumerate(choice))
        for choice in itertools.permutations(range(columns), rows)
    )
    assert sum(costs[row][column] for row, column in enumerate(found)) == least


def test_the_largest_node_is_decided_at_once() -> None:
    alike = pci(("pci0000:00", "0000:00:01.0"), 0)
    gpus, ports = (dict.fromkeys(map(str, range(count)), alike) for count in (8, 10))
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls) and None)
    try:
        chosen = topology.nearest_nics(gpus, ports)
    finally:
        sys.setprofile(None)
    assert next(calls) < 1_000_000, "not every order of the ports is tried"
    assert len({port for ports in chosen.values() for port in ports}) == 8


def test_only_ports_that_carry_data_count(tmp_path: Path) -> None:
    slower = ('net=ib1 rate="100 Gb/sec (2X HDR)"', 'net=ib1 rate="50 Gb/sec (1X HDR)"')
    roce = ("net=eno1 kind=1 speed=1000", 'net=eno1 kind=1 ib=mlx5_9 link=Ethernet rate="100 Gb/sec (4X EDR)"')
    down = ("ib=mlx5_2 net=ib2", 'ib=mlx5_2 net=ib2 state="1: DOWN" phys="3: Disabled"')
    ports = facts_of("leonardo", tmp_path / "a", slower, roce, down)["infiniband"]
    assert len(ports) == 5
    assert [port["name"] for port in topology.usable_ports(ports)] == ["mlx5_0:1", "mlx5_3:1"]
    without_infiniband = [port for port in ports if port["link_layer"] == "Ethernet"]
    assert [port["name"] for port in topology.usable_ports(without_infiniband)] == ["mlx5_9:1"]
    assert topology.usable_ports([]) == []


@pytest.mark.parametrize("gpu", ["00000000:8A:00.0", "0000:8a:00.0", "2", "GPU-00000002"])
def test_what_ucx_is_told(tmp_path: Path, gpu: str) -> None:
    facts = facts_of("leonardo", tmp_path)
    assert topology.ucx_environment(gpu, facts, "10.0.0.1") == {
        "UCX_NET_DEVICES": "mlx5_2:1,ib0",
        "UCX_SOCKADDR_TLS_PRIORITY": "tcp",
    }


@pytest.mark.parametrize(("name", "edits", "gpu", "address", "why"), [
    ("leonardo", (), "0000:99:00.0", "10.0.0.1", "has no GPU 0000:99"),
    ("leonardo", (), "7", "10.0.0.1", "has no GPU 7"),
    ("leonardo", (), "0", "10.9.9.9", "no network interface of this node has the address 10.9.9.9"),
    ("leonardo", (("ib=mlx5_1", "gid=fe80:0000:0000:0001:0:0:0:1 ib=mlx5_1"),), "0", "10.0.0.1", "different subnets"),
    ("leonardo", (("    0000:10:00.0", "    0000:1f:00.0"),), "0", "10.0.0.1", "place of GPU 0 .* not known"),
    ("no-nic", (), "0", "10.0.0.1", "no active InfiniBand or RoCE port"),
])  # fmt: skip
def test_when_no_port_can_be_named(
    tmp_path: Path, name: str, edits: tuple[tuple[str, str], ...], gpu: str, address: str, why: str
) -> None:
    with pytest.raises(NoAffinityError, match=why):
        topology.ucx_environment(gpu, facts_of(name, tmp_path, *edits), address)


def test_a_node_that_was_not_probed() -> None:
    with pytest.raises(NoAffinityError, match="has no GPU"):
        topology.ucx_environment("", {}, "10.0.0.1")
