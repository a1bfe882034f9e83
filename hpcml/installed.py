"""The versions of packages that this interpreter imports, from the names of folders on its path: no file is read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container

_OTHER_NAMES = {"libucx": "ucx", "nvidia-cuda-runtime": "cuda", "cuda-cudart": "cuda", "nvidia-nccl": "nccl"}
_CUDA = re.compile(r"-cu(da)?1\d(x)?$")  # how wheels say for which CUDA they are
_INSTALLED = re.compile(r"(.+?)-([^-]+)(-py\d[\d.]*)?\.(dist|egg)-info")
_CONDA = re.compile(r"(ucx|cuda-cudart)-([^-]+)-[^-]+\.json")


def versions(packages: Container[str]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed; a wheel's name is without its CUDA."""
    found: dict[str, str] = {}
    for place in sys.path:
        for entry in _names(place):
            if match := _INSTALLED.fullmatch(entry):
                name = _CUDA.sub("", re.sub(r"[-_.]+", "-", match[1]).lower())
                name = _OTHER_NAMES.get(name, name)
                if name in packages:
                    found.setdefault(name, match[2])  # the first on the path is the one that is imported
    for entry in _names(f"{sys.prefix}/conda-meta"):
        if (match := _CONDA.fullmatch(entry)) and (name := _OTHER_NAMES.get(match[1], match[1])) in packages:
            found.setdefault(name, match[2])
    return dict(sorted(found.items()))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []  # a path may name zip files and folders that are not there; Python passes over them too
