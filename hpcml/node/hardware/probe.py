"""The probe of a node: GPUs, network ports, UCX, packages, limits and disks, as one record that goes into a JSON file.

``python -m hpcml.node.hardware.probe`` prints it. The GPUs' driver and UCX are asked in child processes with a
deadline, so that the calling process stays clean, can fork workers afterwards, and is not stopped by a GPU or a library
that hangs or crashes. No CUDA context is made. It needs no package but Python's own, and changes nothing on the node.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcml.gpu_vendor import VENDOR
from hpcml.node import shared_files
from hpcml.node.hardware import gpu_interface, python_environment, record, sysfs
from hpcml.node.hardware.record import (
    Disk,
    Disks,
    Gpus,
    Job,
    Memory,
    Modules,
    Network,
    Node,
    Packages,
    Probing,
    Process,
    Slot,
    System,
    Ucx,
)
from hpcml.node.job import node_name, placement
from hpcml.node.process_helpers import Question, output
from hpcml.units import expand_hosts

DEADLINE = 12.0  # seconds for the driver and for UCX, at the same time; on a healthy node both need less than two

# Variables that change what is found here or how it is used; never one that may hold a secret.
_ENVIRONMENT = re.compile(r"(UCX|UCXPY|UCXX|NCCL|CUDA|RAPIDS)_(?!.*(KEY|TOKEN|SECRET|PASS))[A-Z0-9_]+")
_RESOURCE = re.compile(r"^#\s+resource .* flags .*?(\w+)/(\S+)\s*$", re.MULTILINE)  # "… flags -- rc_mlx5/mlx5_0:1"
_PROGRAMS = ("apptainer", "singularity", "podman-hpc", "shifter", "enroot")
_DISPLAY = "0x03"  # PCI's class of GPUs
_OLD = 3600.0  # seconds for which a file in /dev/shm may be another program's of now
_MOST = 5000  # files that are looked at
T = TypeVar("T")


class _Parts:
    """The parts of a record, each read by itself; ``errors`` has why one could not be, by its name."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def read(self, name: str, look: Callable[[], T], instead: T) -> T:
        """Return a part, or something instead of it."""
        self.errors[name] = ""
        try:
            return look()
        except Exception as error:  # noqa: BLE001 - whatever a node's files hold, the run must get the other parts
            self.errors[name] = f"{type(error).__name__}: {error}"
            return instead


def probe(
    root: Path = Path("/"),
    *,
    drivers: Mapping[str, Any] | None = None,
    ucx: Mapping[str, Any] | None = None,
    deadline: float = DEADLINE,
    thorough: bool = False,
    program: str = "",
    scratch: str = "",
) -> Node:
    """Return the record of what this node has. It does not raise: what fails has its reason in ``probing.errors``.

    Parameters
    ----------
    root
        ``/``, or the top of a recorded tree of /sys and /proc.
    drivers, ucx
        Recorded answers of the GPUs' vendor (`gpu_interface.Vendor.ask`) and `python_environment.ask_ucx`; else this
        node is asked.
    deadline
        Seconds for the driver and UCX to answer.
    thorough
        Read disks, old files in /dev/shm, the PCI tree of all GPUs, the vendor's command and who shares GPUs too,
        for which a run that starts has no time.
    program, scratch
        The program for images, and the folder for node-local files.
    """
    began, parts = time.monotonic(), _Parts()
    environment = {name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(name)}
    gpu_question = Question(VENDOR.interface, gpu_interface.vendor().ask) if drivers is None else None
    ucx_question = Question("UCX", python_environment.ask_ucx) if ucx is None else None
    system = parts.read("system", lambda: _system(program), System())
    packages = parts.read("packages", _packages, Packages())
    packages = packages._replace(
        importable=parts.read("importable", lambda: tuple(python_environment.importable()), ())
    )
    network, process = Network(), Process(environment=environment)
    network = network._replace(infiniband=parts.read("infiniband", lambda: sysfs.rdma_ports(root), network.infiniband))
    network = network._replace(interfaces=parts.read("interfaces", lambda: sysfs.interfaces(root), network.interfaces))
    process = process._replace(limits=parts.read("limits", sysfs.limits, process.limits))
    process = process._replace(cpus=parts.read("cpus", lambda: sysfs.cpus(root), process.cpus))
    memory = parts.read("memory", lambda: _memory(root, thorough=thorough), Memory())
    modules = parts.read("modules", lambda: _modules(root), Modules())
    disks = Disks(scratch)
    if thorough:
        disks = parts.read("disks", lambda: _disks(root, scratch), disks)
    visible = os.environ.get(VENDOR.visible)
    drivers = gpu_question.answer(began + deadline) if gpu_question else drivers or {}
    described = gpu_interface.vendor().described
    gpu, fault = parts.read("gpu", lambda: described(drivers, root, visible), described({}, root, visible))
    parts.errors["gpu"] = parts.errors["gpu"] or fault
    gpu = parts.read("slots", lambda: _more_of(gpu, root, network.infiniband, thorough=thorough), gpu)
    library = ucx_question.answer(began + deadline) if ucx_question else ucx or {}
    used, fault = parts.read("ucx", lambda: described_ucx(library), described_ucx({}))
    parts.errors["ucx"] = parts.errors["ucx"] or fault
    late = tuple(name for name, raw in (("driver", drivers), ("ucx", library)) if raw.get("late"))
    seconds = round(time.monotonic() - began, 3)
    return Node(
        probing=Probing(record.SCHEMA, seconds, late, parts.errors),
        system=system._replace(modules=modules),
        process=process,
        memory=memory,
        disks=disks,
        network=network,
        packages=packages,
        gpu=gpu,
        ucx=used,
    )


def _system(program: str) -> System:
    """Return the names and versions of host, kernel and Python, and the programs for images."""
    kernel = os.uname()
    names = dict.fromkeys((*_PROGRAMS, *([program] if program else [])))
    return System(
        hostname=kernel.nodename,
        kernel=kernel.release,
        machine=kernel.machine,
        python=platform.python_version(),
        in_image=bool(os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")),
        programs={name: path for name in names if (path := shutil.which(name))},
    )


def _modules(root: Path) -> Modules:
    return Modules(gpu_interface.vendor().kernel_driver(root), sysfs.verbs(root))


def _packages() -> Packages:
    table = python_environment.packages(
        python_environment.installed(), python_environment.conda_packages(Path(sys.prefix))
    )
    return record.read(Packages, {**table, "importable": []})


def described_ucx(raw: Mapping[str, Any]) -> tuple[Ucx, str]:
    """Return the UCX in its raw answers (`python_environment.ask_ucx`), and what went wrong.

    A transport with its devices (``{"rc_mlx5": ["mlx5_0:1"]}``) may be used, which is not yet "is used".
    """
    transports: dict[str, list[str]] = {}
    for transport, device in _RESOURCE.findall(raw.get("info", "")):
        transports.setdefault(transport, []).append(device)
    used = Ucx(
        version=".".join(str(part) for part in raw.get("version", ())),
        library=raw.get("library", ""),
        modules=tuple(raw.get("modules", ())),
        transports={name: tuple(devices) for name, devices in transports.items()},
    )
    return used, raw.get("error", "")


# -- memory and disks -----------------------------------------------------------------------------------------------


def _memory(root: Path, *, thorough: bool) -> Memory:
    """Return the node's memory; ``thorough``: with the old files of this user's in /dev/shm."""
    total, folder = sysfs.memory(root), root / "dev/shm"
    room = os.statvfs(folder)
    size = room.f_blocks * room.f_frsize
    memory = Memory(total, size, size - room.f_bfree * room.f_frsize)
    left: list[str] = []
    taken = 0
    for name in sorted(os.listdir(folder))[:_MOST] if thorough else ():
        try:
            about = (folder / name).lstat()
        except OSError:
            continue  # gone by now
        if about.st_uid == os.getuid() and stat.S_ISREG(about.st_mode) and time.time() - about.st_mtime > _OLD:
            left.append(name)
            taken += about.st_blocks * 512
    return memory._replace(shm_left=tuple(left[:20]), shm_left_bytes=taken)


def _disks(root: Path, scratch: str) -> Disks:
    folders = ("/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp"), *([scratch] if scratch else []))
    return Disks(scratch, {folder: _disk(root, folder) for folder in folders})


def _disk(root: Path, folder: str) -> Disk:
    kind = sysfs.file_system(root, folder)
    try:
        room = os.statvfs(folder)
    except OSError as error:
        return Disk(kind, error=str(error.strerror))
    return Disk(kind, room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize)


# -- GPUs -----------------------------------------------------------------------------------------------------------


def _more_of(gpu: Gpus, root: Path, ports: Sequence[record.Port], *, thorough: bool) -> Gpus:
    """Return GPUs with what is known without the driver's answers, also of those that the job may not use."""
    asked = gpu_interface.vendor()
    gpu = gpu._replace(names=asked.names(root) or tuple(gpu_found.name for gpu_found in gpu.gpus))
    if not thorough:
        return gpu
    return gpu._replace(slots=tuple(_slots(root, ports)), smi=asked.rows(), mps=asked.is_shared(root))


def _slots(root: Path, ports: Sequence[record.Port]) -> list[Slot]:
    """Return the places of the vendor's GPUs in the PCI tree."""
    usable, slots = [port.name for port in sysfs.usable_ports(ports)], []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        is_gpu = sysfs.read(device / "vendor") == VENDOR.pci and sysfs.read(device / "class").startswith(_DISPLAY)
        if is_gpu and (place := sysfs.pci_of(device)).bus_id:
            distances = {port.name: sysfs.distance(place, port.pci) for port in ports if port.pci.bus_id}
            reach = {name: sysfs.DISTANCES.index(distances[name]) for name in usable}
            nearest = min(reach, key=reach.__getitem__, default="")
            slots.append(Slot(place.bus_id, nearest, distances))
    return slots


# -- the job that the probe runs in ---------------------------------------------------------------------------------


def ask_job() -> Job:
    """Return the Slurm job that this process belongs to, with what Slurm and the job's other node answer."""
    partition, qos, nodes = placement().values()
    node = node_name()
    shown = output(["scontrol", "--oneliner", "show", "node", node]) if node else ""
    return Job(node, partition, qos, nodes, shown, _ssh(node, nodes))


def _ssh(node: str, nodes: str) -> str:
    """Return the answer of the job's other node to a login of its user, as a sentence; nothing if there is no other."""
    try:
        other = next((name for name in expand_hosts(nodes) if name != node), "")
    except ValueError:
        return ""
    if not other:
        return ""
    options = (
        "BatchMode=yes",
        "ConnectTimeout=5",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
        "ForwardAgent=no",  # whose key is not known gets nothing of the user's, whatever their own settings say
        "ForwardX11=no",
        "GSSAPIDelegateCredentials=no",
    )
    command = ["ssh", *(word for option in options for word in ("-o", option)), other, "echo", "in"]
    return (
        "ssh reaches a node while your job runs on it"
        if output(command) == "in"
        else "ssh without a password does not reach a node of your job"
    )


# -- the program ----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Print the probe of this node as JSON, or write it to a file, whole or not at all."""
    parser = argparse.ArgumentParser(prog="python -m hpcml.node.hardware.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--thorough", action="store_true", help="also report disks, the PCI tree and shared GPUs")
    parser.add_argument(
        "--job", action="store_true", help="also report the Slurm job, and whether ssh reaches another node of the job"
    )
    parser.add_argument("--program", default="", help="the program that runs container images, such as apptainer")
    parser.add_argument("--scratch", default="", help="the folder for node-local files")
    parser.add_argument("file", nargs="?", help="the file for the report (default: standard output)")
    options = parser.parse_args(argv)
    node = probe(thorough=options.thorough, program=options.program, scratch=options.scratch)
    table = record.to_json(node._replace(job=ask_job()) if options.job else node)
    if options.file:
        shared_files.write_json(Path(options.file), table)
    else:
        print(json.dumps(table, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
