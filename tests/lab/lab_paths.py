"""Where the lab keeps its files, how its nodes and users are called, and the one error it raises."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "hpcml"
ACCOUNT = "lab_account"
USERS: Mapping[str, str] = {"alice": "hpcml-alice", "mallory": "hpcml-mallory"}
CPUS_PER_NODE = 8
MEMORY_PER_NODE_MB = 4000
GPUS_PER_NODE = 4
SWITCH = "hpcml-switch"
PROGRAM = "tests/lab/lab.py"
NUMBER = "HPCML_LAB"  # set by apart.py alone
SLURM = "HPCML_LAB_SLURM"  # the version that apart.py takes; empty: the machine's own


class LabError(Exception):
    """One sentence that says what went wrong, where, and what to do next."""


@dataclass(frozen=True)
class Places:
    """The folders of one lab below its top folder."""

    top: Path

    @classmethod
    def default(cls) -> Places:
        return cls(Path(os.environ.get("HPCML_LAB_TOP", "/var/lib/hpcml-lab")))

    def __post_init__(self) -> None:
        private = [folder for folder in ("/tmp", "/dev/shm", "/run/user") if self.top.is_relative_to(folder)]
        if private or not self.top.is_absolute():
            raise LabError(
                f"The lab's folder must be an absolute path outside /tmp, /dev/shm and /run/user, not {self.top} "
                "(HPCML_LAB_TOP). Choose another, such as /var/lib/hpcml-lab."
            )

    @property
    def etc(self) -> Path:
        return self.top / "etc"

    @property
    def log(self) -> Path:
        return self.top / "log"

    @property
    def run(self) -> Path:
        return self.top / "run"

    @property
    def venv(self) -> Path:
        return self.top / "venv"

    @property
    def laptop_venv(self) -> Path:
        return self.top / "laptop-venv"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def site(self) -> Path:
        """hpcml's settings for the whole machine, as /etc/hpcml on a cluster."""
        return self.etc / "hpcml"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def state_file(self) -> Path:
        return self.run / "lab.json"

    def home(self, user: str) -> Path:
        name = account_name(user)
        return Path("/root") if name == "root" else self.top / "home" / name


def number() -> int:
    """The lab's number: 1, unless apart.py gave another to a lab beside it."""
    return int(os.environ.get(NUMBER, "1"))


def numbered(name: str) -> str:
    """A name that the whole machine knows, for this lab."""
    return name if number() == 1 else f"{name}{number()}"


def account_name(user: str) -> str:
    """The system account behind `alice`, `hpcml-alice`, `mallory`, `hpcml-mallory` or `root`."""
    name = USERS.get(user, user)
    if name != "root" and name not in USERS.values():
        raise LabError(f"The lab has no user {user!r} ({PROGRAM}). Use one of: alice, mallory, root.")
    return name


def compute_nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def all_nodes(count: int) -> list[str]:
    return ["ctl", "login", *compute_nodes(count)]


def namespace(node: str) -> str:
    return f"hpcml-{node}"


def address(node: str) -> str:
    host = {"ctl": 1, "login": 2, "login2": 3}.get(node) or 10 + int(node.removeprefix("n"))
    return f"10.79.0.{host}"
