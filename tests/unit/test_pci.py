"""How far a GPU and a port are from each other, and which ports carry data, on constructed PCI trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.node.hardware import probe, sysfs
from hpcml.node.hardware.record import Place
from tests.fixtures.nodes import tree


def pci(path: tuple[str, ...], numa: int) -> Place:
    return Place(path[-1], path, numa)


def place(root: Path, bus_id: str) -> Place:
    return sysfs.pci_of(root / "sys/bus/pci/devices" / sysfs.sysfs_bus_id(bus_id))


def test_the_way_to_a_device(tmp_path: Path) -> None:
    tree.build("leonardo", tmp_path)
    position = place(tmp_path, "00000000:8A:00.0")
    assert position == pci(("pci0000:89", "0000:89:02.0", "0000:8a:00.0"), 1)
    assert place(tmp_path, "0000:99:00.0") == Place()
    (tmp_path / "sys/bus/pci/devices/0000:99:00.0").symlink_to("/usr")
    assert place(tmp_path, "0000:99:00.0") == Place()


@pytest.mark.parametrize(("name", "a", "b", "level"), [
    ("leonardo", "0000:31:00.0", "0000:31:00.1", "PIX"),  # two ports of one card
    ("leonardo", "0000:10:00.0", "0000:31:00.0", "NODE"),
    ("leonardo", "0000:10:00.0", "0000:b1:00.0", "SYS"),
    ("leonardo-four-cards", "0000:12:00.0", "0000:13:00.0", "PIX"),  # under one switch
    ("dgx", "0000:05:00.0", "0000:10:00.0", "PXB"),  # under a switch of two stages
    ("no-nic", "0000:00:07.0", "0000:00:08.0", "PHB"),  # nothing in common but the host bridge
])  # fmt: skip
def test_distances_are_those_of_nvidia_smi(tmp_path: Path, name: str, a: str, b: str, level: str) -> None:
    tree.build(name, tmp_path)
    one, other = place(tmp_path, a), place(tmp_path, b)
    assert (sysfs.distance(one, other), sysfs.distance(other, one)) == (level, level)


def test_only_ports_that_carry_data_count(tmp_path: Path) -> None:
    slower = ('net=ib1 rate="100 Gb/sec (2X HDR)"', 'net=ib1 rate="50 Gb/sec (1X HDR)"')
    roce = ("net=eno1 kind=1 speed=1000", 'net=eno1 kind=1 ib=mlx5_9 link=Ethernet rate="100 Gb/sec (4X EDR)"')
    down = ("ib=mlx5_2 net=ib2", 'ib=mlx5_2 net=ib2 state="1: DOWN" phys="3: Disabled"')
    tree.build("leonardo", tmp_path, slower, roce, down)
    ports = probe.probe(tmp_path, drivers=tree.raw("leonardo.nvml"), ucx=tree.raw("conda.ucx")).network.infiniband
    assert len(ports) == 5
    assert [port.name for port in sysfs.usable_ports(ports)] == ["mlx5_0:1", "mlx5_3:1"]
    without_infiniband = [port for port in ports if port.link.link_layer == "Ethernet"]
    assert [port.name for port in sysfs.usable_ports(without_infiniband)] == ["mlx5_9:1"]
    assert sysfs.usable_ports([]) == []
