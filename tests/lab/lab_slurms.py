"""Other versions of Slurm than the machine's own: those of later Debian suites, unpacked below the lab's folder.

A version is a tree `slurm/VERSION/usr`. `apart.py --slurm` lays it over the machine's /usr for what it starts, and for
nothing else: programs and plugins are then where they are on a cluster, and no package of the machine's changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import lab_install
from lab_packages import FOR_PACKAGES, Suite, interpreter, is_elf, libraries_of, must, needed, point_to
from lab_paths import PROGRAM, LabError, Places

SUITES = {"24.11": "trixie", "26.05": "forky"}
PACKAGES = (
    "slurm-client", "slurmctld", "slurmd", "slurmdbd", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin",
)  # fmt: skip
LIBRARIES = Path("usr/lib/hpcml-lab-slurm")  # of its own: no program of the machine's looks here
OPAQUE = "trusted.overlay.opaque"  # a folder that hides the one below it: plugins of two versions do not mix


def tree(places: Places, version: str) -> Path:
    """The folder that is laid over /usr for a version."""
    return places.top / "slurm" / version / "usr"


def reason_against(places: Places, version: str) -> str | None:
    """Why the lab has no such Slurm, in one sentence; None when it has."""
    if version not in SUITES:
        return f"The lab has no Slurm {version} (tests/lab/lab_slurms.py). Use one of: {', '.join(SUITES)}."
    if not tree(places, version).is_dir():
        return f"Slurm {version} is not installed ({tree(places, version)}). Run: {PROGRAM} install --slurm {version}"
    return None


def install(places: Places, version: str) -> list[str]:
    """Fetch a version unless it is there; returns what was installed."""
    if tree(places, version).is_dir():
        return []
    fetched = lab_install.fetch(FOR_PACKAGES)
    target = tree(places, version).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as name:
        folder = Path(name)
        full = _unpack(folder, version)
        shutil.rmtree(target, ignore_errors=True)
        (folder / "tree").rename(target)
    return [*fetched, f"Slurm {full}"]


def _unpack(folder: Path, version: str) -> str:
    """Make a version's tree in a folder; returns the version in full."""
    suite = Suite(folder, SUITES[version])
    packages = suite.download(PACKAGES)
    full = packages[0].name.split("_")[1]
    if not full.startswith(f"{version}."):
        raise LabError(f"Debian {suite.name} has Slurm {full} now, not {version}. Name it in tests/lab/lab_slurms.py.")
    whole, unpacked = folder / "tree", folder / "libraries"
    for package in packages:
        must(["dpkg-deb", "--extract", str(package), str(whole)])
    for path in whole.iterdir():
        if path.name != "usr":
            shutil.rmtree(path)
    programs = [path for path in whole.rglob("*") if is_elf(path)]
    own = {path.name for path in whole.rglob("*.so*")}
    libraries: list[Path] = []
    while None in (found := needed(programs, unpacked, own)).values():
        known = {path.name.split("_")[0] for path in libraries}
        names = [name for name in libraries_of([*packages, *libraries]) if name not in known]
        if not names:
            missing = ", ".join(name for name, source in found.items() if source is None)
            raise LabError(f"Slurm {full} needs {missing}, which no package has that it depends on.")
        more = suite.download(names)
        for package in more:
            must(["dpkg-deb", "--extract", str(package), str(unpacked)])
        libraries += more
    target = whole / LIBRARIES
    target.mkdir(parents=True)
    for name, source in found.items():
        if source:
            shutil.copy2(source, target / name)
    _put_in_place(whole, programs)
    return full


def _put_in_place(whole: Path, programs: list[Path]) -> None:
    """Have programs and plugins look for libraries in the tree alone, under the names that Debian's alternatives give."""
    plugins = next(whole.glob("usr/lib/*/slurm-wlm"))
    os.setxattr(plugins, OPAQUE, b"y")
    where = [Path("/") / plugins.relative_to(whole), Path("/") / LIBRARIES]
    for program in programs:
        loader = interpreter(program)
        point_to(program, where)
        if loader and (name := program.name.removesuffix("-wlm")) != program.name:
            program.with_name(name).symlink_to(program.name)
