"""A cgroup v1 subtree for each node, so that four slurmds on one machine hold their jobs to their memory apart."""

from __future__ import annotations

from pathlib import Path

from lab_paths import LabError, numbered
from lab_state import wait_for

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = {"memory": "memory.memsw.limit_in_bytes", "freezer": "cgroup.procs"}  # and a file that each must have

# Slurm's v1 plugin asks for the file release_agent, which only a hierarchy's root has, and works below `slurm` (or
# `slurm_NODE`, as Debian builds it). So each node sees a small folder with an empty release_agent, its real cgroup
# under those two names, and links for the other files.
MOUNT_SCRIPT = """
cover() {  # CONTROLLER REAL_CGROUP
  staging=/tmp/.cgroup-$1
  mkdir "$staging"; mount -t tmpfs -o mode=755 hpcml-cgroup "$staging"
  mkdir "$staging/slurm"; mount --bind "$2" "$staging/slurm"; ln -s slurm "$staging/slurm_$NODE"
  for file in "$2"/*; do [ -f "$file" ] && ln -s "slurm/${file##*/}" "$staging/${file##*/}"; done
  : > "$staging/release_agent"
  mount --move "$staging" "/sys/fs/cgroup/$1"; rmdir "$staging"
}
"""


def available() -> bool:
    """Whether this machine has cgroup v1 with memory and swap limits that we may use."""
    kinds = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    mounted = all([str(ROOT / controller), "cgroup"] in kinds for controller in CONTROLLERS)
    return mounted and all((_own(controller) / file).exists() for controller, file in CONTROLLERS.items())


def _own(controller: str) -> Path:
    """The cgroup this process is in: the lab stays below it, so that limits set from outside keep holding."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, names, path = line.split(":", 2)
        if controller in names.split(","):
            return ROOT / controller / path.lstrip("/")
    return ROOT / controller


def lab_folders() -> list[str]:
    return [str(_own(controller) / numbered("hpcml-lab")) for controller in CONTROLLERS]


def create(folders: list[str], node: str) -> str:
    """Make the node's cgroups; returns the lines of its holder's script that put them in place."""
    lines = []
    for controller, folder in zip(CONTROLLERS, folders, strict=True):
        path = Path(folder) / node
        path.mkdir(parents=True, exist_ok=True)
        lines.append(f"cover {controller} {path}")
    return MOUNT_SCRIPT + "\n".join(lines) + "\n"


def thaw(folders: list[str]) -> None:
    """Let frozen processes run again: a frozen one does not even die of SIGKILL."""
    for folder in folders:
        for switch in Path(folder).rglob("freezer.state"):
            try:
                switch.write_text("THAWED")
            except OSError:
                continue


def remove(folders: list[str]) -> None:
    """Delete the lab's cgroups, the deepest first; they must be empty of processes by now."""
    for folder in folders:
        if not wait_for(lambda path=Path(folder): _removed(path), 5):  # type: ignore[misc]
            raise LabError(f"The cgroup {folder} still has processes. Look at its cgroup.procs, then run down again.")


def _removed(path: Path) -> bool:
    if not path.is_dir():
        return True
    inner = sorted((entry for entry in path.rglob("*") if entry.is_dir()), key=lambda entry: -len(entry.parts))
    try:
        for entry in [*inner, path]:
            entry.rmdir()
    except OSError:
        return False
    return True
