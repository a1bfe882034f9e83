"""Collect this Debian machine's Slurm and munge, so that they run on another x86-64 Linux without Slurm.

Programs, the plugins that a small cluster uses, and the libraries both need, as SLURM/bin, SLURM/plugins, SLURM/lib.
The other machine's C library must be at least as new as this one's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

PLUGINS = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")  # compiled into Debian's programs
PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel", "sacct",
            "munged", "munge", "unmunge", "ip", "nsenter")  # fmt: skip
# Plugins for databases, other resource managers, web services and hardware that a small cluster does not have.
LEFT_OUT = re.compile(r"mysql|pmix|pmi2|cray|openapi|rest_auth|lua|elastic|influx|hdf5|rrd|ipmi|nvml|rsmi|oneapi|kafka|pbs|"
                      r"knl|jwt|slurmdbd|_rapl|xcc|ofed|datawarp|torus|hypercube")  # fmt: skip
SYSTEM = re.compile(r"ld-linux|/lib(c|m|dl|rt|resolv|pthread|gcc_s|stdc\+\+)\.")
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


class SlurmPackError(Exception):
    """The machine lacks what is to be packed."""


def collect(target: Path) -> str:
    """Copy programs, plugins and libraries into a folder; return Slurm's version.

    Raises
    ------
    SlurmPackError
        If a program or the plugins are not installed here.
    """
    paths = {name: shutil.which(name, path=SEARCH) for name in PROGRAMS}
    missing = [name for name, path in paths.items() if path is None]
    if missing or not PLUGINS.is_dir():
        what = ", ".join(missing) or str(PLUGINS)
        raise SlurmPackError(f"not here: {what}. Install slurm-wlm, munge and iproute2, or give --no-slurm.")
    programs = [Path(path) for path in paths.values() if path]
    plugins = [path for path in sorted(PLUGINS.glob("*.so*")) if not LEFT_OUT.search(path.name)]
    for name, files in (("bin", programs), ("plugins", plugins), ("lib", libraries([*programs, *plugins]))):
        (target / name).mkdir(parents=True)
        for file in files:
            shutil.copy(file, target / name / file.name)
    version = subprocess.run([str(paths["slurmd"]), "-V"], capture_output=True, text=True, check=True, timeout=30)
    return version.stdout.strip()


def libraries(files: Iterable[Path]) -> list[Path]:
    """Return the shared libraries that files need, without those of the C library and the compiler."""
    found: dict[str, Path] = {}
    for file in files:
        text = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False, timeout=30).stdout
        for path in re.findall(r"/\S+", text):
            if not SYSTEM.search(path) and not path.startswith(str(PLUGINS)):
                found[Path(path).name] = Path(path)
    return [found[name] for name in sorted(found)]
