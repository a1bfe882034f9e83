"""What only a node knows of a machine, for its profile: ``python -m hpcml.node.hardware.survey FILE`` in a job.

It imports no package that is not Python's own or hpcml's without an answer for the case that it is missing: the
environment on the login node may have neither psutil nor NVML.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcml.node import files
from hpcml.node.hardware import sysfs
from hpcml.node.hardware.probe import probe
from hpcml.node.job import node_name, placement
from hpcml.units import expand_hosts

_SECONDS = 15.0  # for one command
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_INFINIBAND = "32"  # <net/if_arp.h>
PROGRAMS = ("apptainer", "singularity", "podman-hpc", "shifter", "enroot")


def survey() -> dict[str, Any]:
    """Return what this node has, as a table for JSON."""
    facts = probe()
    slurm = placement()
    node = node_name()
    return {
        "probe": facts,
        "slurm": slurm,
        "node": node,
        "shown": _said(["scontrol", "--oneliner", "show", "node", node]) if node else "",
        "threads": len(
            sysfs.from_ranges(sysfs.read(Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")))
        ),
        "gpus": _gpus(facts),
        "driver": facts["driver"] or sysfs.modules(Path("/"))["nvidia"] or "",
        "interfaces": _interfaces(),
        "nearest": _distances(facts),
        "disks": {place: _disk(place) for place in ("/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp"))},
        "programs": {name: path for name in PROGRAMS if (path := shutil.which(name))},
        "ssh": _ssh(node, slurm["JOB_NODELIST"]),
    }


def _said(command: Sequence[str]) -> str:
    """Return what a command prints, nothing if it fails, is missing, or does not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def _gpus(facts: dict[str, Any]) -> list[str]:
    """Return the names of all the node's GPUs, also of those that the job has not got: the driver's files have them."""
    texts = [sysfs.read(path) for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    names = [found[1].strip() for text in texts if (found := re.search(r"(?m)^Model:(.*)$", text))]
    return names or [str(gpu["name"]) for gpu in facts["gpus"]]


def _interfaces() -> dict[str, dict[str, str]]:
    """Return kind and IPv4 address of each interface that has one; netdevice(7), since psutil may not be here."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _GET_ADDRESS, struct.pack("256s", os.fsencode(name)))
            except OSError:
                continue  # it has none
            kind = "infiniband" if sysfs.read(Path("/sys/class/net") / name / "type") == _INFINIBAND else ""
            found[name] = {"kind": kind, "ipv4": socket.inet_ntoa(answer[20:24])}
    return found


def _distances(facts: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return for each GPU how far each RDMA port is, in the words of ``nvidia-smi topo -m``."""
    buses = sorted(path.name for path in Path("/sys/bus/pci/drivers/nvidia").glob("*:*"))
    gpus = {bus: place for bus in buses if (place := sysfs.pci_of(Path("/sys/bus/pci/devices") / bus))}
    nics = {port["name"]: port["pci"] for port in facts["infiniband"] if port["pci"]}
    return {bus: {name: sysfs.distance(place, nic) for name, nic in nics.items()} for bus, place in gpus.items()}


def _disk(place: str) -> dict[str, Any]:
    """Return what is mounted at a folder, and its size in bytes."""
    try:
        facts = os.statvfs(place)
    except OSError as error:
        return {"error": str(error.strerror)}
    kind = sysfs.file_system(Path("/"), place)
    return {"kind": kind, "bytes": facts.f_blocks * facts.f_frsize, "free": facts.f_bavail * facts.f_frsize}


def _ssh(node: str, nodes: str) -> str:
    """Return whether the job's other node lets its user in, in words; nothing if there is no other."""
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
        "a node lets you in while you hold it"
        if _said(command) == "in"
        else "a node does not let you in without a password"
    )


def main(path: Path) -> None:
    """Write the survey of this node to a file, whole or not at all."""
    files.write_json(path, survey())


if __name__ == "__main__":
    print(json.dumps(survey())) if len(sys.argv) == 1 else main(Path(sys.argv[1]))
