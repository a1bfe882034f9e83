"""What this node has: GPUs, network ports, UCX, packages and limits, as one table that goes into a JSON file.

``python -m hpcml.node.hardware.probe`` prints it. The drivers (NVML) and UCX are asked in child processes with a
deadline, so that the calling process stays clean, can fork workers afterwards, and is not stopped by a GPU or a library
that hangs or crashes. No CUDA context is made. What cannot be found out is said in words in its own field.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcml.node.hardware import sysfs
from hpcml.node.hardware.nvml import ask_nvml, described
from hpcml.node.processes import Question

DEADLINE = 12.0  # seconds for NVML and for UCX, at the same time; on a healthy node both need less than two
SCHEMA = 1  # of the table; a change that readers must know of raises it

# Variables that change what is found here or how it is used; never one that may hold a secret.
_ENVIRONMENT = re.compile(r"(UCX|UCXPY|UCXX|NCCL|CUDA|RAPIDS)_(?!.*(KEY|TOKEN|SECRET|PASS))[A-Z0-9_]+")
_DUAL = ("rmm", "cudf", "cuml", "raft-dask", "dask-cudf", "ucxx", "distributed-ucxx", "libucx")  # one wheel per CUDA
_DISTRIBUTIONS = {
    **{name: (name, f"{name}-cu12", f"{name}-cu13") for name in _DUAL},
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "nccl": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    **{name: (name,) for name in ("dask-cuda", "dask", "distributed", "nvidia-ml-py")},
}
_MODULES = ("rmm", "cudf", "dask_cudf", "cuml", "raft_dask", "cupy", "ucxx", "distributed_ucxx", "dask_cuda", "pynvml")
_CONDA = {"ucx": "libucx", "nccl": "nccl", "cupy": "cupy", "cuda-version": "cuda-version", "rdma-core": "rdma-core"}
_CUDA_MAJOR = re.compile(r"-(?:cu|cuda)(1[0-9])x?$")
_RESOURCE = re.compile(r"^#\s+resource .* flags .*?(\w+)/(\S+)\s*$", re.MULTILINE)  # "… flags -- rc_mlx5/mlx5_0:1"
_COMPONENT = re.compile(r"^#\s+component\s+\d+\s+:\s+(\S+)", re.MULTILINE)


def probe(
    root: Path = Path("/"),
    *,
    nvml: Mapping[str, Any] | None = None,
    ucx: Mapping[str, Any] | None = None,
    deadline: float = DEADLINE,
) -> dict[str, Any]:
    """Return what this node has, as a table for JSON. It does not raise: what fails says so in its own field.

    Parameters
    ----------
    root
        ``/``, or the top of a recorded tree of /sys and /proc.
    nvml, ucx
        Recorded answers of `ask_nvml` and `ask_ucx`, instead of asking this node.
    deadline
        Seconds for NVML and UCX to answer.
    """
    began = time.monotonic()
    environment = {name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(name)}
    nvml_question = Question("NVML", ask_nvml) if nvml is None else None
    ucx_question = Question("UCX", ask_ucx) if ucx is None else None
    facts: dict[str, Any] = {"schema": SCHEMA, "environment": environment}
    facts |= _said("system", system, {"hostname": ""})
    facts |= _said("packages", lambda: packages(installed(), conda_packages(Path(sys.prefix))), packages({}, {}))
    facts |= _said("importable", lambda: {"importable": importable()}, {"importable": []})
    facts |= _said("infiniband", lambda: {"infiniband": sysfs.rdma_ports(root)}, {"infiniband": []})
    facts |= _said("interfaces", lambda: {"interfaces": sysfs.interfaces(root)}, {"interfaces": []})
    facts |= _said("limits", lambda: {"limits": sysfs.limits()}, {"limits": {}})
    facts |= _said("cpus", lambda: {"cpus": sysfs.cpus()}, {"cpus": {}})
    facts |= _said("memory", lambda: {"memory": sysfs.memory(root)}, {"memory": {}})
    facts |= _said("modules", lambda: {"modules": sysfs.modules(root)}, {"modules": {}})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    drivers = nvml_question.answer(began + deadline) if nvml_question else nvml or {}
    facts |= _said("gpu", lambda: described(drivers, root, visible), described({}, root, visible))
    library = ucx_question.answer(began + deadline) if ucx_question else ucx or {}
    facts |= _said("ucx", lambda: ucx_facts(library), ucx_facts({}))
    facts["late"] = [name for name, raw in (("nvml", drivers), ("ucx", library)) if raw.get("late")]
    return {**facts, "seconds": round(time.monotonic() - began, 3)}


def _said(name: str, look: Callable[[], Mapping[str, Any]], instead: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of the facts, and why it could not be found out under ``NAME_error``."""
    try:
        return {f"{name}_error": "", **look()}
    except Exception as error:  # noqa: BLE001 - whatever a node's files hold, the run must get the rest of the facts
        return {**instead, f"{name}_error": f"{type(error).__name__}: {error}"}


def system() -> dict[str, str]:
    """Return the names and versions of host, kernel, C library and Python."""
    kernel, (library, version) = os.uname(), platform.libc_ver()
    return {
        "hostname": kernel.nodename,
        "kernel": kernel.release,
        "machine": kernel.machine,
        "glibc": version if library == "glibc" else "not glibc",
        "python": platform.python_version(),
    }


def installed() -> dict[str, str]:
    """Return the versions of the Python distributions that matter, found without importing them."""
    versions = {}
    for name in (name for names in _DISTRIBUTIONS.values() for name in names):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def importable() -> list[str]:
    """Return the modules of those packages that Python would find; a bare folder on PYTHONPATH has no distribution."""
    return [name for name in _MODULES if importlib.util.find_spec(name) is not None]


def conda_packages(prefix: Path) -> dict[str, str]:
    """Return the versions of the conda packages that matter, by the names of the files in ``conda-meta``."""
    names = (path.stem.rsplit("-", 2) for path in sorted((prefix / "conda-meta").glob("*.json")))
    return {parts[0]: parts[1] for parts in names if len(parts) == 3 and parts[0] in _CONDA}


def packages(distributions: Mapping[str, str], conda: Mapping[str, str]) -> dict[str, Any]:
    """Return ``packages`` (version by common name), ``distributions`` and ``built_for``: CUDA's major to names.

    A wheel's name says what CUDA it is built for (``rmm-cu13``, ``cupy-cuda12x``); in a conda environment that is the
    package ``cuda-version``.
    """
    versions = {_CONDA[name]: version for name, version in conda.items()}
    built_for: dict[str, list[str]] = {}
    for name, choices in _DISTRIBUTIONS.items():
        for choice in choices:
            if choice in distributions:
                versions[name] = distributions[choice]
                if match := _CUDA_MAJOR.search(choice):
                    built_for.setdefault(match[1], []).append(choice)
    if "cuda-version" in conda:
        built_for.setdefault(conda["cuda-version"].partition(".")[0], []).append("cuda-version")
    return {"packages": versions, "distributions": dict(distributions), "built_for": built_for}


def ask_ucx() -> dict[str, Any]:
    """Return UCX's raw answers: version, library, modules beside it, and what it lists of this node.

    UCX reads the variables ``UCX_*`` as a worker would. Call it in a process that ends soon: UCX stays in it.
    """
    try:
        import ucxx
    except ModuleNotFoundError as error:
        return {"error": "ucxx is not installed" if error.name == "ucxx" else f"ucxx cannot be imported: {error}"}
    except (ImportError, OSError) as error:  # a UCX that is too old, or a library that is not there
        return {"error": f"ucxx cannot be imported: {error}"}
    mapped = re.search(r"/\S*/libucp\.so[.0-9]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    library = mapped[0] if mapped else ""
    files = (Path(library).parent / "ucx").glob("libuct_*.so*") if library else ()
    modules = sorted({path.name.partition(".so")[0].removeprefix("libuct_") for path in files})
    answers = {"version": list(ucxx.get_ucx_version()), "library": library, "modules": modules}
    feature = ucxx.libucxx.Feature
    wanted = (feature.TAG, feature.WAKEUP, feature.STREAM, feature.AM, feature.RMA)  # as ucxx.init() asks
    try:
        # A context lists the devices; ucxx.get_active_transports() would also open all of them for a worker.
        return {**answers, "info": ucxx.libucxx.UCXContext({}, wanted).info, "error": ""}
    except ucxx.exceptions.UCXError as error:
        return {**answers, "info": "", "error": f"UCX finds no transport that it may use here: {error}"}


def ucx_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``ucx_error`` and ``ucx``, the facts in UCX's raw answers.

    ``version`` (1.21.0), ``library`` that was loaded, ``modules`` that lie beside it (``ib`` and ``rdmacm`` are missing
    from pip's build), ``components`` that it opened, and ``transports`` with their devices (``{"rc_mlx5":
    ["mlx5_0:1"]}``: may be used, which is not yet "are used").
    """
    transports: dict[str, list[str]] = {}
    for transport, device in _RESOURCE.findall(raw.get("info", "")):
        transports.setdefault(transport, []).append(device)
    facts = {
        "version": ".".join(str(part) for part in raw.get("version", ())),
        "library": raw.get("library", ""),
        "modules": list(raw.get("modules", ())),
        "components": _COMPONENT.findall(raw.get("info", "")),
        "transports": transports,
    }
    return {"ucx": facts, "ucx_error": raw.get("error", "")}


def main() -> int:
    """Print the probe of this node as JSON."""
    parser = argparse.ArgumentParser(prog="python -m hpcml.node.hardware.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--raw", action="store_true", help="print the unprocessed answers of NVML and UCX, for tests")
    if parser.parse_args().raw:
        ends = time.monotonic() + DEADLINE
        questions = {"nvml": Question("NVML", ask_nvml), "ucx": Question("UCX", ask_ucx)}
        facts = {name: question.answer(ends) for name, question in questions.items()}
    else:
        facts = probe()
    print(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
