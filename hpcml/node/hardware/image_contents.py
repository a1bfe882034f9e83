"""What an image really holds: runs inside it as ``python3 -c``, without hpcml, and prints one line of JSON."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

CPU = ("cryptography", "dask.array", "dask.dataframe", "distributed")
GPU = ("cudf", "cuml", "cupy", "dask_cuda", "dask_cudf", "distributed_ucxx", "pynvml", "raft_dask", "rmm", "ucxx")
DRIVERLESS = ("ucxx",)  # of GPU what needs no driver and says something: it refuses a UCX that is too old for it
NAMES = ("dask", "distributed", "dask-ml", "dask-cuda", "ucxx", "cudf")
DRIVER = "/.singularity.d/libs"  # where --nv puts the driver's libraries
_FUSE = {"fuse.squashfuse", "fuse.squashfuse_ll", "fuse.fuse-overlayfs"}
KERNELS = {"proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "squashfs", "overlay"} | _FUSE


def version(name: str) -> str:
    """Return the version of a distribution, also of a wheel whose name ends in CUDA's version; empty without it."""
    for suffix in ("", "-cu12", "-cu13"):
        try:
            return importlib.metadata.version(name + suffix)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


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
    """Return where folders and files of the host are mounted over the image."""
    places = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split()[4], after.split()[0]
        if place != "/" and kind not in KERNELS and not place.startswith((DRIVER, "/proc", "/sys", "/dev")):
            places.append(place)
    return places


def within(paths: Iterable[str], places: list[str]) -> list[str]:
    """Return the paths that lie in one of these places, and are the host's and not the image's."""
    return [path for path in paths if any(path == place or path.startswith(f"{place}/") for place in places)]


def loaded() -> set[str]:
    """Return the files of the modules and libraries that are in use."""
    paths = {module.__file__ or "" for module in list(sys.modules.values()) if hasattr(module, "__file__")}
    lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    fields = (line.split(maxsplit=5) for line in lines)
    return paths | {parts[5].strip() for parts in fields if len(parts) == 6 and ".so" in parts[5]}


def ucx() -> tuple[str, list[str]]:
    """Return version and folder of the UCX that Python uses, nothing if that is not known, and what it has modules for.

    Wheels bring a UCX, which RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY puts behind the image's own: the loaded one counts.
    """
    with contextlib.suppress(ImportError):
        wheel: Any = importlib.import_module("libucx")
        wheel.load_library()
    used = sorted(pathlib.Path(path) for path in loaded() if "/libucp.so" in path)
    if used:
        folders, name = [used[0].parent / "ucx"], f"{_ucx_version(used[0])} in {used[0].parent}"
    else:
        places = (f"{sys.prefix[1:]}/lib/ucx", "usr/lib/*/ucx", "usr/lib/ucx", "opt/ucx/lib/ucx")
        folders, name = [path for place in places for path in pathlib.Path("/").glob(place)], ""
    modules = (path.name for folder in folders for path in folder.glob("libuct_*.so*"))
    return name, sorted({module.removeprefix("libuct_").partition(".")[0] for module in modules})


def _ucx_version(library: pathlib.Path) -> str:
    function = ctypes.CDLL(str(library)).ucp_get_version_string
    function.restype = ctypes.c_char_p
    return bytes(function()).decode()


def verbs() -> str:
    """Return why InfiniBand's library cannot be loaded, or nothing."""
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
    """Return why one GPU cannot add three numbers, or nothing."""
    try:
        cudf: Any = importlib.import_module("cudf")
        total = int(cudf.Series([1, 2, 3]).sum())
    except Exception as error:  # noqa: BLE001 - the reason is the answer
        return f"{type(error).__name__}: {error}"[:300]
    return "" if total == 6 else f"1 + 2 + 3 gave {total}"


def main(gpu: bool) -> None:
    """Print the facts as one line of JSON."""
    used, modules = ucx()
    facts: dict[str, Any] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "failed": failures((*CPU, *(GPU if gpu else filter(importlib.util.find_spec, DRIVERLESS)))),
        "absent": [name for name in GPU if importlib.util.find_spec(name) is None],
        "versions": {name: number for name in NAMES if (number := version(name))},
        "verbs": verbs(),
        "ucx": used,
        "ucx_modules": modules,
        "compute": compute() if gpu else "",
        "driver": driver() if gpu else "",
    }
    places = mounted()
    facts["outside"] = sorted(within(loaded(), places))[:8]
    facts["library_path"] = within(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), places)
    print("\n" + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main("gpu" in sys.argv[1:])
