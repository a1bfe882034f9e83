"""Write containers/locks: the wheels of the images and of the login node's folder of wheels, each with its hashes.

``make locks`` starts it. uv chooses the wheels, from the index that pip is set to on this machine. No file names it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.images import build

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "containers/locks"
TESTED = ROOT / "tests/versions-3.11.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"  # the oldest C library for which all wheels are; Debian 12 has a newer one
RAPIDS = ("cudf", "dask-cudf", "cuml", "raft-dask", "rmm")
UCX = ("ucxx", "distributed-ucxx")


class Lock(NamedTuple):
    """What a lock holds: extras of hpcml and more packages, with all that these need unless ``alone``."""

    title: str
    extras: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    alone: bool = False
    machines: tuple[str, ...] = MACHINES
    tested: bool = False  # whether its versions are those of the tests


def gpu_image(cuda: int) -> Lock:
    """Return what an image of RAPIDS' wheels holds."""
    names = ("dask[array,dataframe]", "dask-ml", "matplotlib>=3.9", "pyarrow>=19", "scikit-learn>=1.6", "skops>=0.14")
    of_cuda = (f"rmm-cu{cuda}", f"ucxx-cu{cuda}", f"cupy-cuda{cuda}x")
    return Lock(f"RAPIDS images for CUDA {cuda}", (f"cuda{cuda}", "jupyter"), (*names, *of_cuda))


LOCK_BY_NAME = {
    "node": Lock("the nodes of runs without an image", ("node",), tested=True),
    "cpu": Lock("CPU images", ("local", "jupyter"), tested=True),
    "rapids-cu12": gpu_image(12),
    "rapids-cu13": gpu_image(13),
    # CUDA 12.2 has one of these wheels for x86_64 alone.
    "ucx-cu12": Lock("building UCX for CUDA 12", (), tuple(f"nvidia-{each}-cu12==12.2.*" for each in
                     ("cuda-runtime", "cuda-nvcc", "nvml-dev")), alone=True, machines=MACHINES[:1]),
    "ucx-cu13": Lock("building UCX for CUDA 13", (), tuple(f"nvidia-{each}==13.0.*" for each in
                     ("cuda-runtime", "cuda-crt", "nvml-dev")), alone=True),
}  # fmt: skip


def requirements(lock: Lock) -> list[str]:
    """Return the requirements that a lock fulfils: those of hpcml's extras, and the lock's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = list(project["dependencies"]) if lock.extras else []
    waiting = list(lock.extras)
    while waiting:
        for word in project["optional-dependencies"][waiting.pop()]:
            if word.startswith("hpcml["):
                waiting += word.removeprefix("hpcml[").removesuffix("]").split(",")
            else:
                words.append(word)
    return sorted({*words, *lock.more})


def constraints(lock: Lock) -> list[str]:
    """Return the versions that belong together (containers/versions.toml), and those of the tests."""
    pins = tomllib.loads((ROOT / "containers/versions.toml").read_text())
    shared = [f"{name}=={pins[name]}" for name in ("dask", "distributed", "dask-cuda", "dask-ml")]
    for cuda in ("cu12", "cu13"):
        shared += [f"{name}-{cuda}=={pins['rapids']}.*" for name in RAPIDS]
        shared += [f"{name}-{cuda}=={pins['ucxx']}" for name in UCX]
    return [*shared, *(TESTED.read_text().splitlines() if lock.tested else ())]


def resolve(lock: Lock, python: str, machine: str, known: dict[str, str]) -> list[dict[str, Any]]:
    """Return the packages for one Python on one machine, with their wheels; ``known`` are versions to keep to."""
    with tempfile.TemporaryDirectory(prefix="hpcml-locks-") as folder:
        wanted, limits, out = (Path(folder) / name for name in ("wanted.in", "limits.txt", "pylock.toml"))
        wanted.write_text("\n".join(requirements(lock)) + "\n")
        limits.write_text("\n".join([*constraints(lock), *(f"{name}=={known[name]}" for name in known)]) + "\n")
        index = build.pip_settings().get("index-url", "")
        words: list[str | Path] = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-config", "--format", "pylock.toml",
                 "--only-binary", ":all:", "--python-version", python, "--python-platform",
                 f"{machine}-manylinux_{GLIBC.replace('.', '_')}", *(["--no-deps"] if lock.alone else []),
                 *(["--default-index", index] if index else []), "--constraint", limits, wanted, "--output-file", out]  # fmt: skip
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"locks: uv found no wheels for Python {python} on {machine}:\n{done.stderr}")
        return list(tomllib.loads(out.read_text())["packages"])


def render(lock: Lock) -> str:
    """Return a lock as a requirements file: the same versions for every Python and machine."""
    versions: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    places: dict[str, set[tuple[str, str]]] = {}
    for python in PYTHONS:
        for machine in lock.machines:
            for package in resolve(lock, python, machine, versions):
                name = package["name"]
                versions.setdefault(name, package["version"])
                hashes.setdefault(name, set()).update(wheel["hashes"]["sha256"] for wheel in package["wheels"])
                places.setdefault(name, set()).add((python, machine))
    lines = [
        f"# Wheels for {lock.title}{'' if lock.alone else ', with all that they need'}, for {' and '.join(lock.machines)}, Python {PYTHONS[0]} to",
        f"# {PYTHONS[-1]} and glibc {GLIBC} or newer. Each hash is of one wheel. `make locks` writes this file.",
    ]
    for name, version in sorted(versions.items()):
        lines.append(f"{name}=={version}{marker(lock, places[name])} \\")
        lines += [f"    --hash=sha256:{each} \\" for each in sorted(hashes[name])]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


def marker(lock: Lock, places: set[tuple[str, str]]) -> str:
    """Return the condition for a package that not every Python or machine needs."""
    pythons = [python for python in PYTHONS if any((python, machine) in places for machine in lock.machines)]
    machines = [machine for machine in lock.machines if any((python, machine) in places for python in PYTHONS)]
    assert places == {(python, machine) for python in pythons for machine in machines}, places
    parts = [f'platform_machine == "{machine}"' for machine in machines if len(machines) < len(lock.machines)]
    parts += [f'python_version >= "{pythons[0]}"'] if pythons[0] != PYTHONS[0] else []
    parts += [f'python_version <= "{pythons[-1]}"'] if pythons[-1] != PYTHONS[-1] else []
    return f" ; {' and '.join(parts)}" if parts else ""


def main() -> None:
    """Write all locks, or those that are named."""
    LOCKS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or LOCK_BY_NAME:
        text = render(LOCK_BY_NAME[name])
        (LOCKS / f"{name}.txt").write_text(text)
        print(f"{name}: {len(re.findall(r'(?m)^[^ #]', text))} packages, {text.count('--hash')} wheels")


if __name__ == "__main__":
    main()
