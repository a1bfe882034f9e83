"""The machine that the GPU tier runs on: its Python with the pack before it, and what it is, for the record."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUESTION_DEADLINE = 60  # seconds for a question to the machine
PACKAGES = ("cudf", "cuml", "dask-cudf", "raft-dask", "rmm", "ucxx", "distributed-ucxx", "libucx", "dask-cuda", "dask",
            "distributed", "cupy", "numpy", "pandas", "pyarrow", "scikit-learn", "dask-ml", "cryptography",
            "nvidia-nccl", "polars", "cudf-polars", "rapidsmpf")  # fmt: skip
_VERSIONS = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


def python_facts(python: str) -> dict[str, str]:
    """Return where an interpreter keeps its packages, and its version."""
    code = "import json, platform, sysconfig; print(json.dumps([sysconfig.get_paths()['purelib'], platform.python_version()]))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=QUESTION_DEADLINE)
    purelib, version = json.loads(done.stdout)
    return {"purelib": purelib, "version": version}


def pack_environment(site: Path, purelib: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that put an unpacked pack before an interpreter's own packages.

    Libraries are found by LD_LIBRARY_PATH: the pack's, then CUDA's among the interpreter's packages. RAPIDS needs an
    nvJitLink of its own version; PyTorch's older one would be loaded first and ``import cuml`` fail with an undefined
    symbol, so the pack's is loaded before all.
    """
    folders = [*sorted(site.glob("lib*/lib64")), site / "rapids_logger/lib64", *sorted(site.glob("nvidia/*/lib*")),
               *(purelib / "nvidia" / name / "lib" for name in ("cu13", "nccl"))]  # fmt: skip
    there = [str(folder) for folder in folders if folder.is_dir()]
    preload = [str(path) for path in sorted(site.glob("nvidia/*/lib/libnvJitLink.so.13"))]

    def before(name: str, values: list[str], divider: str = ":") -> str:
        return divider.join([*values, *([environment[name]] if environment.get(name) else [])])

    return {
        "PYTHONPATH": before("PYTHONPATH", [str(site)]),
        "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", there),
        "LD_PRELOAD": before("LD_PRELOAD", preload),
    }


def ask(words: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Return what a command says, or nothing if it is not there, fails or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=QUESTION_DEADLINE,
                              env=dict(environment) if environment else None)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus() -> list[dict[str, Any]]:
    """Return this machine's GPUs: name, memory in MiB, driver, as nvidia-smi says."""
    text = ask(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"])
    rows = [line.split(", ") for line in text.splitlines() if line.count(", ") == 2]
    return [{"name": name, "memory_mib": int(memory), "driver": driver} for name, memory, driver in rows]


def versions(python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of what is measured, CUDA's suffix taken off the names."""
    text = ask([python, "-c", _VERSIONS], environment)
    found = {short(name): version for name, version in json.loads(text or "{}").items()}
    chosen = {name: found[name] for name in PACKAGES if name in found}
    chosen["python"] = ask([python, "-c", "import platform; print(platform.python_version())"], environment)
    chosen["hpcml"] = ask([python, "-c", "import hpcml; print(hpcml.__version__)"], environment)
    slurm = ask(["sbatch", "--version"], environment)
    return chosen | ({"slurm": slurm} if slurm else {})


def short(name: str) -> str:
    """Return a distribution's name without the CUDA version in it."""
    name = name.lower().replace("_", "-")
    for suffix in ("-cu12", "-cu13", "-cuda12x", "-cuda13x"):
        name = name.removesuffix(suffix)
    return name


def facts() -> dict[str, Any]:
    """Return what this machine is."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    processor = next(
        (line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), platform.machine()
    )
    adapters = Path("/sys/class/infiniband")
    return {
        "gpus": gpus(),
        "links": ask(["nvidia-smi", "topo", "-m"]).replace("\x1b[4m", "").replace("\x1b[0m", ""),
        "infiniband": sorted(path.name for path in adapters.iterdir()) if adapters.is_dir() else [],
        "cores": os.cpu_count(),
        "processor": processor,
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "system": _system(),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()
