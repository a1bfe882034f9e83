"""The program of ``hpcml doctor --node``: what each node of a run has that makes runs slow or fail, as JSON.

It is judged on the login node. Nothing here changes a node.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpcml.node.hardware import sysfs
from hpcml.node.settings import load

_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI's vendor, and the class of GPUs
_ASK = 10.0  # seconds for nvidia-smi: a driver that hangs must not keep the run
_OLD = 3600.0  # seconds for which a file in /dev/shm may be another program's of now
_SMI = "pci.bus_id,driver_version,mig.mode.current,compute_mode"
_MOST = 5000  # processes and files that are looked at
_VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES")


def look(program: str, scratch: str) -> dict[str, Any]:
    """Return the facts of the node that calls it.

    Parameters
    ----------
    program
        The program for images.
    scratch
        The folder for node-local files.
    """
    root = Path("/")
    ports = sysfs.rdma_ports(root)
    gpus = _gpus(root)
    return {
        "node": load().node,
        "machine": os.uname().machine,
        "interfaces": {one["name"]: one["ipv4"] for one in sysfs.interfaces(root)},
        "ports": [
            {key: port[key] for key in ("name", "device", "state", "physical_state", "link_layer", "rate")}
            for port in ports
        ],
        "gpus": [{"bus_id": pci["bus_id"], "nearest": _nearest(pci, ports)} for pci in gpus],
        "locked_memory": sysfs.limits()["locked_memory"]["soft"],
        "memory": sysfs.memory(root),
        "shm": _shared_memory(root / "dev/shm"),
        "scratch": {"folder": scratch, "type": sysfs.file_system(root, scratch), "size": _size(scratch)},
        "driver": sysfs.modules(root)["nvidia"] or "",
        "smi": _nvidia_smi(),
        "mps": _mps(root),
        "program": shutil.which(program) or "",
        "in_image": bool(os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")),
        "variables": {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
    }


def _gpus(root: Path) -> list[dict[str, Any]]:
    """Return the places of NVIDIA's GPUs in the PCI tree; also of those that this job may not use."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        is_gpu = sysfs.read(device / "vendor") == _NVIDIA and sysfs.read(device / "class").startswith(_DISPLAY)
        if is_gpu and (place := sysfs.pci_of(device)):
            found.append(place)
    return found


def _nearest(gpu: dict[str, Any], ports: list[dict[str, Any]]) -> dict[str, str]:
    """Return the usable port that is nearest to a GPU, and how far that is; nothing without one."""
    there = [(sysfs.distance(gpu, port["pci"]), str(port["name"])) for port in sysfs.usable_ports(ports)]
    if not there:
        return {}
    far, port = min(there, key=lambda one: sysfs.DISTANCES.index(one[0]))
    return {"port": port, "distance": far}


def _shared_memory(folder: Path) -> dict[str, Any]:
    """Return size and use of /dev/shm, and which old files of this user's lie there."""
    room = os.statvfs(folder)
    left: list[str] = []
    size = 0
    for name in sorted(os.listdir(folder))[:_MOST]:
        try:
            facts = (folder / name).lstat()
        except OSError:
            continue  # gone by now
        if facts.st_uid == os.getuid() and stat.S_ISREG(facts.st_mode) and time.time() - facts.st_mtime > _OLD:
            left.append(name)
            size += facts.st_blocks * 512
    blocks = room.f_blocks * room.f_frsize
    return {"size": blocks, "used": blocks - room.f_bfree * room.f_frsize, "left": left[:20], "left_bytes": size}


def _size(folder: str) -> int:
    try:
        room = os.statvfs(folder)
    except OSError:
        return 0
    return room.f_blocks * room.f_frsize


def _nvidia_smi() -> list[list[str]]:
    """Return a row of bus, driver, MIG mode and compute mode for each GPU; none where nvidia-smi does not answer."""
    command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(_SMI.split(","))] if done.returncode == 0 else []


def _mps(root: Path) -> bool:
    """Whether a server of NVIDIA's MPS runs on the node."""
    names = (sysfs.read(path) for path in list((root / "proc").glob("[0-9]*/comm"))[:_MOST])
    return any(name.startswith("nvidia-cuda-mps") for name in names)


def main() -> int:
    """Ask the worker of each node, and write their answers into the run's out/; return the exit status."""
    import dask.config
    from distributed import Client

    from hpcml.kinds.dask.node import ucx_preload  # noqa: F401 - authenticates UCX here

    own = importlib.import_module("hpcml.kinds.dask.node.checkup")  # of __main__ the code would be sent, not the name

    context = load()
    with dask.config.set({"distributed.client.preload": []}), Client() as client:
        answers = client.run(own.look, *sys.argv[1:2], context.scratch())
    by_node = {facts["node"]: facts for facts in answers.values()}
    (context.run.out / "doctor.json").write_text(json.dumps(by_node, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
