"""What the kernel of this node says of its network ports, limits, memory and modules, read from /sys and /proc.

Functions that take ``root`` read below it, so that a recorded tree can stand for a node; the others ask about the
process that calls them.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import resource
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from hpcml.node.hardware.record import Cpus, Interface, Limit, Link, Place, Port

# <net/if_arp.h>: what /sys/class/net/*/type holds.
_KINDS = {1: "ethernet", 32: "infiniband", 772: "loopback"}
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # domain:bus:device.function
_WORD = 4  # bytes: port_xmit_data counts words of 4 octets (Linux, Documentation/ABI/stable/sysfs-class-infiniband)
_STUCK = 2**32 - 1  # adapters without 64-bit counters stop here instead of starting again (same document)
_GET_FLAGS = 0x8913  # ioctl SIOCGIFFLAGS (netdevice(7))
_UP = 0x1 | 0x40  # IFF_UP and IFF_RUNNING
_GET_ADDRESSES, _ENTRY = 0x8912, 40  # SIOCGIFCONF and the bytes of an entry of its answer, netdevice(7)
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far


def to_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel lists CPUs: ``0-15,32``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)


def from_ranges(text: str) -> set[int]:
    """Return the numbers in a list such as ``0-15,32``."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def read(path: Path) -> str:
    """Return a small file's text, or nothing if it is not there or answers an error.

    Files of /sys answer with errors of their own: the ``speed`` of an interface that is down is EINVAL.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def sysfs_bus_id(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it: ``00000000:1D:00.0`` is ``0000:1d:00.0``."""
    domain, bus, device = bus_id.strip().split(":")
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}"


def pci_of(device: Path) -> Place:
    """Return the place of a device, from its folder in sysfs or a link to it; empty if hidden, or no PCI device."""
    try:
        parts = Path(os.path.realpath(device, strict=True)).parts
        last = max((index for index, part in enumerate(parts) if _ADDRESS.fullmatch(part)), default=0)
        start = next((index for index, part in enumerate(parts) if part.startswith("pci")), last)
        numa = read(Path(*parts[: last + 1], "numa_node"))  # a virtio device sits below its PCI device
    except OSError:
        return Place()
    if not last:
        return Place()
    path = parts[start : last + 1]
    return Place(path[-1], path, int(numa or -1))  # -1 is what the kernel itself writes


def _number(path: Path) -> int | None:
    text = read(path)
    return int(text) if text.isdigit() else None


def rdma_ports(root: Path) -> tuple[Port, ...]:
    """Return the InfiniBand and RoCE ports (``/sys/class/infiniband``), by name."""
    return tuple(
        _port(device, port)
        for device in _listed(root / "sys/class/infiniband")
        for port in sorted(_listed(device / "ports"), key=lambda path: int(path.name))
    )


def _port(device: Path, port: Path) -> Port:
    rate = read(port / "rate")  # "100 Gb/sec (2X HDR)"
    amount = re.match(r"[0-9.]+", rate)
    link = Link(
        state=read(port / "state").partition(": ")[2],  # "4: ACTIVE"
        physical_state=read(port / "phys_state").partition(": ")[2],
        rate=rate,
        gigabits=float(amount[0]) if amount else 0.0,
        link_layer=read(port / "link_layer"),
    )
    return Port(f"{device.name}:{port.name}", device.name, int(port.name), link, pci_of(device / "device"))


def port_counters(root: Path) -> dict[str, dict[str, Any]]:
    """Return by port (``mlx5_0:1``) the bytes ``tx`` and ``rx`` (None: not known), state, layer and rate (bytes/s)."""
    counted = {}
    for port in rdma_ports(root):
        link = {"state": port.link.state, "layer": port.link.link_layer, "rate": int(port.link.gigabits * 1e9 / 8)}
        counted[port.name] = link | port_bytes(root, port)
    return counted


def port_bytes(root: Path, port: Port) -> dict[str, int | None]:
    """Return the bytes ``tx`` and ``rx`` of one of :func:`rdma_ports` (None: not known)."""
    folder, moved = root / "sys/class/infiniband" / port.device / "ports" / str(port.port), {}
    for way, name, octets in (("tx", "port_xmit_data", "tx_bytes"), ("rx", "port_rcv_data", "rx_bytes")):
        value = _number(folder / "counters" / name)
        # Amazon's EFA has no port counters, but bytes among its own (Linux, drivers/infiniband/hw/efa/efa_verbs.c).
        of_efa = _number(folder / "hw_counters" / octets) if value is None else None
        moved[way] = of_efa if value is None else None if value == _STUCK else value * _WORD
    return moved


def interface_counters(root: Path) -> dict[str, dict[str, Any]]:
    """Return by interface the bytes ``tx`` and ``rx``, its ``type``, and whether it is made of ``lower`` ones."""
    return {
        path.parent.name: {
            "tx": _number(path / "tx_bytes"),
            "rx": _number(path / "rx_bytes"),
            "type": _number(path.parent / "type"),
            "lower": any(path.parent.glob("lower_*")),
        }
        for path in sorted((root / "sys/class/net").glob("*/statistics"))
    }


def interfaces(root: Path) -> tuple[Interface, ...]:
    """Return the network interfaces (``/sys/class/net``); IPv4 addresses only of this node's own ``/``."""
    ipv4 = addresses() if root == Path("/") else {}
    return tuple(
        _interface(path, tuple(ipv4.get(path.name, ())))
        for path in filter(Path.is_dir, _listed(root / "sys/class/net"))  # bonding_masters is a file
    )


def _interface(path: Path, ipv4: tuple[str, ...]) -> Interface:
    kind = int(read(path / "type") or 0)
    return Interface(path.name, _KINDS.get(kind, f"type {kind}"), ipv4)


def addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses of this node by interface; the kernel is asked, since psutil may not be installed."""
    size = length = 64 * _ENTRY
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while length + _ENTRY > size:  # the kernel leaves out what does not fit
            size *= 2
            room = array.array("B", bytes(size))
            request = struct.pack("iP", size, room.buffer_info()[0])
            length = struct.unpack("iP", fcntl.ioctl(asking, _GET_ADDRESSES, request))[0]
    by_name: dict[str, list[str]] = {}
    for start in range(0, length, _ENTRY):
        entry = room[start : start + _ENTRY].tobytes()
        by_name.setdefault(os.fsdecode(entry[:16].partition(b"\0")[0]), []).append(socket.inet_ntoa(entry[20:24]))
    return by_name


def is_up(interface: str) -> bool:
    """Whether an interface of this node is up and has a carrier, as far as the kernel tells."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _GET_FLAGS, struct.pack("16s16x", os.fsencode(interface)[:15]))
        except OSError:  # it is gone
            return False
    flags = int(struct.unpack_from("H", answer, 16)[0])
    return flags & _UP == _UP


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def limits() -> dict[str, Limit]:
    """Return this process's limits: locked memory in bytes and open files."""
    names = {"locked_memory": resource.RLIMIT_MEMLOCK, "open_files": resource.RLIMIT_NOFILE}
    return {
        name: Limit(*(None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)))
        for name, which in names.items()
    }


def cpus(root: Path) -> Cpus:
    """Return the CPUs that this process may use (its CPU set), and those of the node."""
    allowed = os.sched_getaffinity(0)
    siblings = from_ranges(read(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list"))
    return Cpus(len(allowed), to_ranges(allowed), os.cpu_count() or 0, len(siblings))


def memory(root: Path) -> int:
    """Return the node's memory in bytes; ValueError if Linux does not show it."""
    match = re.search(r"^MemTotal:\s*([0-9]+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    if match is None:
        raise ValueError("/proc/meminfo has no MemTotal")
    return int(match[1]) * 1024


def control_groups(root: Path, controller: str, above: str = "") -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of this process's control groups that have a controller, of each hierarchy.

    /proc/self/cgroup names a group from the hierarchy's root; /proc/self/mountinfo says which part of the hierarchy
    is mounted where (a container or a bind mount shows only a part), see proc(5). ``above``: the group above the first
    whose name begins so is meant, and none if there is none.
    """
    groups = [line.split(":", 2) for line in read(root / "proc/self/cgroup").splitlines()]
    for line in read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        version, wanted = {"cgroup": (1, controller), "cgroup2": (2, "")}.get(kind, (0, ""))
        group = next((path for _, names, path in groups if wanted in names.split(",")), "")
        if not version or not group or (version == 1 and controller not in options.split(",")):
            continue
        inner, mounted = before.split()[3:5]
        parts = PurePosixPath(group).parts
        if above:
            place = next((place for place, part in enumerate(parts) if part.startswith(above)), 0)
            parts = parts[:place] if place > 1 and ".." not in parts else ()
        place_of_group = PurePosixPath(*parts)
        if parts and place_of_group.is_relative_to(inner):
            yield version, root / mounted.lstrip("/") / place_of_group.relative_to(inner)


def file_system(root: Path, folder: str) -> str:
    """Return the type of the file system that a folder is on, as the mounts below ``root`` have it."""
    place, kind = "", ""
    real = os.path.realpath(folder)
    for line in read(root / "proc/self/mounts").splitlines():
        mounted, its_kind = line.split()[1:3]
        inside = real == mounted or real.startswith(f"{mounted.rstrip('/')}/")
        if inside and len(mounted) >= len(place):
            place, kind = mounted, its_kind
    return kind


def verbs(root: Path) -> tuple[str, ...]:
    """Return the files in /dev/infiniband without which no program can use a port that /sys shows."""
    return tuple(path.name for path in _listed(root / "dev/infiniband") if path.name.startswith("uverbs"))


def distance(a: Place, b: Place) -> str:
    """Return the distance between two devices (:func:`pci_of`).

    ``PIX``: at most one PCIe switch between them; ``PXB``: several, but not the host bridge; ``PHB``: the host bridge;
    ``NODE``: host bridges of one NUMA node; ``SYS``: NUMA nodes. Two devices without a known NUMA node count as of one.
    """
    common = len([*takewhile(lambda ends: ends[0] == ends[1], zip(a.path, b.path, strict=False))])
    if common == 0:
        return "NODE" if a.numa == b.numa else "SYS"
    if common == 1:
        return "PHB"
    # Below the last common bridge at most the switch's own downstream port and the device.
    return "PIX" if max(len(a.path), len(b.path)) - common <= 2 else "PXB"


def usable_ports(ports: Sequence[Port]) -> list[Port]:
    """Return the ports that data between nodes should use.

    They are active and of the fastest rate; InfiniBand where there is any (an Ethernet port beside it is for storage or
    management), else RoCE.
    """
    active = [port for port in ports if port.link.state == "ACTIVE" and port.pci.bus_id]
    carrying = [port for port in active if port.link.link_layer == "InfiniBand"] or active
    fastest = max((port.link.gigabits for port in carrying), default=0)
    fast = (port for port in carrying if port.link.gigabits == fastest)
    return sorted(fast, key=lambda port: (port.pci.bus_id, port.port))
