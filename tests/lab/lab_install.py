"""What the lab needs from the machine: whether it is there, and apt to fetch what is not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from lab_paths import PROGRAM, LabError

NEEDS_ROOT = f"The lab needs root ({PROGRAM}). Run: sudo make lab"
PACKAGES = ("slurm-wlm", "munge", "iproute2", "procps", "openssl", "shellcheck", "python3-venv", "openssh-server",
            "openssh-client", "chromium", "fonts-dejavu-core", "libfaketime", "zsh", "fish",
            "openmpi-bin", "libmpich12", "libpmix-dev")  # fmt: skip # the last: Debian's Slurm opens libpmix.so
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server")
PROGRAMS = {
    "/usr/sbin/slurmctld": "slurm-wlm",
    "/usr/sbin/slurmd": "slurm-wlm",
    "/usr/bin/sinfo": "slurm-wlm",
    "/usr/sbin/munged": "munge",
}
POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICES = "#!/bin/sh\nexit 101\n"


def reason_against() -> str | None:
    """Why a lab cannot run here, in one sentence with the next step; None when it can."""
    if os.geteuid() != 0:
        return NEEDS_ROOT
    missing = sorted({package for path, package in PROGRAMS.items() if not os.access(path, os.X_OK)})
    missing += [] if shutil.which("ip") else ["iproute2"]
    if missing:
        return f"The lab needs the package(s) {' '.join(missing)} ({PROGRAM}). Run: {PROGRAM} install"
    return _namespaces()


def missing_for_accounting() -> str | None:
    if all(os.access(path, os.X_OK) for path in ("/usr/sbin/slurmdbd", "/usr/sbin/mariadbd")):
        return None
    return f"Accounting needs {' and '.join(ACCOUNTING_PACKAGES)} ({PROGRAM}). Run: {PROGRAM} install --accounting"


def _namespaces() -> str | None:
    enter = ["unshare", "--net", "--uts", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*enter, "mount", "-t", "tmpfs", "probe", "/tmp"], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        detail = done.stderr.strip() or f"status {done.returncode}"
        return (
            f"This machine does not permit network and mount namespaces ({detail}). "
            "Give it CAP_NET_ADMIN and CAP_SYS_ADMIN."
        )
    words = ["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return f"The kernel makes no network bridge here ({done.stderr.strip()}). Run: modprobe -a bridge veth"
    return None


def install(*, accounting: bool) -> list[str]:
    """Fetch the packages that are missing, without letting any of them start a service; returns their names."""
    if os.geteuid() != 0:
        raise LabError(NEEDS_ROOT)
    if shutil.which("apt-get") is None:
        raise LabError(f"The lab installs with apt, but this machine is neither Debian nor Ubuntu ({PROGRAM}).")
    return fetch([*PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ())])


def fetch(packages: Iterable[str]) -> list[str]:
    """Install those of the machine's own packages that are missing; returns their names."""
    missing = [package for package in packages if not _installed(package)]
    if missing:
        with _services_held():
            apt("update", "-q")
            apt("install", "-q", "-y", "--no-install-recommends", *missing)
    return missing


def install_file(package: Path) -> None:
    """Install a package that lies on this machine, with what it depends on."""
    with _services_held():
        apt("install", "-q", "-y", "--no-install-recommends", str(package))


def _installed(package: str) -> bool:
    words = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout == "installed"


def apt(*words: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}
    lock = ["-o", "DPkg::Lock::Timeout=120"]
    done = subprocess.run(["apt-get", *lock, *words], env=environment, stdout=sys.stderr, timeout=1800, check=False)
    if done.returncode:
        raise LabError(f"`apt-get {' '.join(words)}` failed ({done.returncode}). Read its messages above.")


@contextlib.contextmanager
def _services_held() -> Iterator[None]:
    """Make invoke-rc.d refuse to start anything, and put the machine's own policy back afterwards."""
    kept = POLICY.with_name("policy-rc.d.hpcml-lab")
    if POLICY.exists() and not kept.exists():
        POLICY.rename(kept)
    POLICY.write_text(NO_SERVICES)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(POLICY)
