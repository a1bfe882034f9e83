"""What a Python environment has: packages, the CUDA that they are for, and its UCX.

It also runs inside an image as ``python3 -c``, without hpcml and with any Python from 3.9: then it imports the packages
and prints one line of JSON (`hpcml.node.hardware.record.Contents`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

CPU = ("cryptography", "dask.array", "dask.dataframe", "distributed")  # modules that a run without GPUs imports
GPU = ("cudf", "cuml", "cupy", "dask_cuda", "dask_cudf", "distributed_ucxx", "pynvml", "raft_dask", "rmm", "ucxx")
DRIVERLESS = ("ucxx",)  # of GPU what needs no driver and says something: it refuses a UCX that is too old for it
_DUAL = ("rmm", "cudf", "cuml", "raft-dask", "dask-cudf", "ucxx", "distributed-ucxx", "libucx")  # one wheel per CUDA
_DISTRIBUTIONS = {
    **{name: (name, f"{name}-cu12", f"{name}-cu13") for name in _DUAL},
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "nccl": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    **{name: (name,) for name in ("dask-cuda", "dask", "dask-ml", "distributed", "nvidia-ml-py")},
}
_CONDA = {"ucx": "libucx", "nccl": "nccl", "cupy": "cupy", "cuda-version": "cuda-version", "rdma-core": "rdma-core"}
_CUDA_MAJOR = re.compile(r"-(?:cu|cuda)(1[0-9])x?$")
_DRIVER = "/.singularity.d/libs"  # where --nv puts the driver's libraries
_FUSE = {"fuse.squashfuse", "fuse.squashfuse_ll", "fuse.fuse-overlayfs"}
_KERNELS = {"proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "squashfs", "overlay"} | _FUSE


# -- what is installed: without importing it ------------------------------------------------------------------------


def installed() -> dict[str, str]:
    """Return the versions of the Python distributions that matter, found without importing them."""
    versions = {}
    for name in (name for names in _DISTRIBUTIONS.values() for name in names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def importable() -> list[str]:
    """Return the modules for GPUs that Python would find; a bare folder on PYTHONPATH has no distribution."""
    return [name for name in GPU if importlib.util.find_spec(name) is not None]


def conda_packages(prefix: pathlib.Path) -> dict[str, str]:
    """Return the versions of the conda packages that matter, by the names of the files in ``conda-meta``."""
    names = (path.stem.rsplit("-", 2) for path in sorted((prefix / "conda-meta").glob("*.json")))
    return {parts[0]: parts[1] for parts in names if len(parts) == 3 and parts[0] in _CONDA}


def packages(distributions: Mapping[str, str], conda: Mapping[str, str]) -> dict[str, Any]:
    """Return ``packages`` (version by common name) and ``built_for``: CUDA's major to names.

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
    return {"packages": versions, "built_for": built_for}


# -- UCX ------------------------------------------------------------------------------------------------------------


def loaded() -> set[str]:
    """Return the files of the modules and libraries that are in use."""
    paths = {module.__file__ or "" for module in list(sys.modules.values()) if hasattr(module, "__file__")}
    lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    fields = (line.split(maxsplit=5) for line in lines)
    return paths | {parts[5].strip() for parts in fields if len(parts) == 6 and ".so" in parts[5]}


def ucx() -> dict[str, Any]:
    """Return version, library and modules of the UCX that Python uses; without a loaded one, modules that are there.

    Wheels bring a UCX, which RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY puts after the image's own: the loaded one counts.
    """
    with contextlib.suppress(ImportError):
        wheel: Any = importlib.import_module("libucx")
        wheel.load_library()
    libraries = sorted(pathlib.Path(path) for path in loaded() if "/libucp.so" in path)
    if libraries:
        folders, version = [libraries[0].parent / "ucx"], _ucx_version(libraries[0])
    else:
        places = (f"{sys.prefix[1:]}/lib/ucx", "usr/lib/*/ucx", "usr/lib/ucx", "opt/ucx/lib/ucx")
        folders, version = [path for place in places for path in pathlib.Path("/").glob(place)], ""
    files = (path.name for folder in folders for path in folder.glob("libuct_*.so*"))
    modules = sorted({name[len("libuct_") :].partition(".")[0] for name in files})
    return {"version": version, "library": str(libraries[0]) if libraries else "", "modules": modules}


def _ucx_version(library: pathlib.Path) -> str:
    function = ctypes.CDLL(str(library)).ucp_get_version_string
    function.restype = ctypes.c_char_p
    return bytes(function()).decode()


def ask_ucx() -> dict[str, Any]:
    """Return UCX's raw answers: version, library, modules beside it, and what it lists of this node.

    UCX reads the variables ``UCX_*`` as a worker would. Call it in a process that ends soon: UCX stays in it.
    """
    try:
        ucxx: Any = importlib.import_module("ucxx")
    except ModuleNotFoundError as error:
        return {"error": "ucxx is not installed" if error.name == "ucxx" else f"ucxx cannot be imported: {error}"}
    except (ImportError, OSError) as error:  # a UCX that is too old, or a library that is not there
        return {"error": f"ucxx cannot be imported: {error}"}
    answers = {**ucx(), "version": list(ucxx.get_ucx_version())}
    feature = ucxx.libucxx.Feature
    wanted = (feature.TAG, feature.WAKEUP, feature.STREAM, feature.AM, feature.RMA)  # as ucxx.init() asks
    try:
        # A context lists the devices; ucxx.get_active_transports() would also open all of them for a worker.
        return {**answers, "info": ucxx.libucxx.UCXContext({}, wanted).info, "error": ""}
    except ucxx.exceptions.UCXError as error:
        return {**answers, "info": "", "error": f"UCX finds no allowed transport on this node: {error}"}


# -- inside an image ------------------------------------------------------------------------------------------------


def failures(modules: tuple[str, ...]) -> dict[str, str]:
    """Import modules; return those that cannot be, with the reason."""
    reasons = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a package raises while it is imported is the answer
            reasons[name] = f"{type(error).__name__}: {error}"[:300]
    return reasons


def mounted() -> list[str]:
    """Return the places where folders and files of the host are mounted over the image."""
    places = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split()[4], after.split()[0]
        if place != "/" and kind not in _KERNELS and not place.startswith((_DRIVER, "/proc", "/sys", "/dev")):
            places.append(place)
    return places


def within(paths: Iterable[str], places: list[str]) -> list[str]:
    """Return the paths that are in one of these places, and are the host's and not the image's."""
    return [path for path in paths if any(path == place or path.startswith(f"{place}/") for place in places)]


def verbs() -> str:
    """Return the reason why InfiniBand's library cannot be loaded, or nothing."""
    reason = ""
    for path in ("libibverbs.so.1", f"{sys.prefix}/lib/libibverbs.so.1"):
        if path.startswith("/") and not os.path.exists(path):
            break
        try:
            ctypes.CDLL(path)
        except OSError as error:
            reason = str(error)
        else:
            return ""
    return reason


def driver() -> str:
    """Return the version of NVIDIA's driver, or nothing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        answer = nvml.nvmlSystemGetDriverVersion()
    except Exception:  # noqa: BLE001 - no driver, no library, no package: all of them mean that it cannot be asked
        return ""
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def compute() -> str:
    """Return the reason why one GPU cannot add three numbers, or nothing."""
    try:
        cudf: Any = importlib.import_module("cudf")
        total = int(cudf.Series([1, 2, 3]).sum())
    except Exception as error:  # noqa: BLE001 - the reason is the answer
        return f"{type(error).__name__}: {error}"[:300]
    return "" if total == 6 else f"1 + 2 + 3 gave {total}"


def main(gpu: bool) -> None:
    """Print what the image holds as one line of JSON."""
    library = {**ucx(), "transports": {}}
    present = importable()
    contents: dict[str, Any] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "failed": failures((*CPU, *(GPU if gpu else filter(importlib.util.find_spec, DRIVERLESS)))),
        "absent": [name for name in GPU if name not in present],
        "packages": packages(installed(), conda_packages(pathlib.Path(sys.prefix)))["packages"],
        "verbs": verbs(),
        "ucx": library,
        "compute": compute() if gpu else "",
        "driver": driver() if gpu else "",
    }
    places = mounted()
    contents["outside"] = sorted(within(loaded(), places))[:8]
    contents["library_path"] = within(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), places)
    print("\n" + json.dumps(contents), flush=True)


if __name__ == "__main__":
    main("gpu" in sys.argv[1:])
