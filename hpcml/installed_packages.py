"""The versions of packages that this interpreter imports, from names of folders on its path; how others are added."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Sequence

SETTINGS = "pyvenv.cfg"  # the file by which Python knows a virtual environment

# Modules whose package has another name; for some of them another package has the module's name.
_PACKAGES = {
    "Bio": "biopython", "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "faiss": "faiss-cpu", "git": "gitpython", "hydra": "hydra-core",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "umap": "umap-learn", "yaml": "pyyaml",
}  # fmt: skip
_OTHER_NAMES = {"libucx": "ucx", "nvidia-cuda-runtime": "cuda", "cuda-cudart": "cuda", "nvidia-nccl": "nccl"}
_CUDA = re.compile(r"-cu(da)?1\d(x)?$")  # how wheels say for which CUDA they are
_INSTALLED = re.compile(r"(.+?)-([^-]+)(-py\d[\d.]*)?\.(dist|egg)-info")
_CONDA = re.compile(r"(ucx|cuda-cudart)-([^-]+)-[^-]+\.json")


def versions(packages: Container[str]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed; a wheel's name is without its CUDA."""
    found: dict[str, str] = {}
    for place in sys.path:
        for distribution, version in distributions(place).items():
            name = _CUDA.sub("", distribution)
            name = _OTHER_NAMES.get(name, name)
            if name in packages:
                found.setdefault(name, version)  # the first on the path is the one that is imported
    for entry in _names(f"{sys.prefix}/conda-meta"):
        if (match := _CONDA.fullmatch(entry)) and (name := _OTHER_NAMES.get(match[1], match[1])) in packages:
            found.setdefault(name, match[2])
    return dict(sorted(found.items()))


def distributions(folder: str) -> dict[str, str]:
    """Return the versions of the packages that are installed in a folder, by their normalized names."""
    matches = [match for entry in _names(folder) if (match := _INSTALLED.fullmatch(entry))]
    return {normalized(match[1]): match[2] for match in matches}


def normalized(package: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def package(module: str) -> str:
    """Return the name of the package that has a module."""
    return _PACKAGES.get(module, module)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []  # a path may name zip files and folders that are not there; Python passes over them too


def lacking(python: str, packages: Sequence[str]) -> tuple[str, str]:
    """Return the clause that an interpreter lacks packages, and the command to add them; nodes use the same words."""
    what = f"package {packages[0]}" if len(packages) == 1 else f"packages {', '.join(packages)}"
    them = "it" if len(packages) == 1 else "them"
    hint = f"Install {them}, usually with: {install(python, packages)}. To use another Python: --python PATH."
    return f"the run's Python ({python}) lacks the {what}", hint


def add(python: str, module: str) -> str:
    """Return the ways to add a module that an interpreter did not find, in sentences."""
    own = "If the module is your own file, add its folder to PYTHONPATH before you submit."
    command = f"{install(python, [module])}; or use another Python (--python PATH)"
    return f"{own} If the module is a package, install it with: {command}."


def install(python: str, packages: Sequence[str]) -> str:
    """Return the command that adds packages, or those of modules, to an environment; one of uv's may have no pip."""
    import shlex
    from pathlib import Path

    from hpcml import safe_files  # not before a script, whose own modules may have the names of what it imports

    settings = safe_files.text(Path(python).parent.parent / SETTINGS)
    by_uv = re.search(r"^uv\s*=", settings, re.MULTILINE) is not None
    program = shlex.quote(python)
    command = f"uv pip install --python {program}" if by_uv else f"{program} -m pip install"
    return f"{command} {shlex.join(map(package, packages))}"
