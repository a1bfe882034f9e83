"""What the lab wrote down about itself (run/lab.json), and its processes, each known by pid and start time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from lab_paths import Places, numbered

PATIENCE = 3  # deadlines are those of a quiet machine; a busy one gets so many times as long
HOLDER_MARK = "HPCML_LAB_HOLDER"


@dataclass(frozen=True)
class Started:
    """A process the lab started; the start time guards against a pid that was given to another process since."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return self.start != 0 and start_time(self.pid) == self.start


@dataclass
class State:
    """Everything `down` and `exec` need to know about a lab that is (or was being) started."""

    accounting: bool
    nodes: int
    boot: str
    memory: str = ""
    ready: bool = False
    holders: dict[str, Started] = field(default_factory=dict)
    daemons: dict[str, Started] = field(default_factory=dict)
    cgroups: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    netns_mounted: bool = False

    def save(self, places: Places) -> None:
        places.run.mkdir(parents=True, exist_ok=True)
        draft = places.state_file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(places.state_file)

    def processes(self) -> list[Started]:
        return [*self.daemons.values(), *self.holders.values()]


def load(places: Places) -> State | None:
    """The state on disk; None where there is none of this boot."""
    try:
        raw = json.loads(places.state_file.read_text())
    except FileNotFoundError:
        return None
    if raw["boot"] != boot_id():
        return None
    raw["holders"] = {name: Started(**entry) for name, entry in raw["holders"].items()}
    raw["daemons"] = {name: Started(**entry) for name, entry in raw["daemons"].items()}
    return State(**raw)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process began; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def mount_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/mnt").stat().st_ino
    except OSError:
        return None


def marked_holders() -> dict[int, str]:
    """The holders of every lab of this number on this machine, and the top folder of each, by the mark in their environment."""
    found: dict[int, str] = {}
    mark = f"{numbered(HOLDER_MARK)}=".encode()
    for pid in all_pids():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(mark) and Path(f"/proc/{pid}").stat().st_uid == 0:
                found[pid] = entry[len(mark) :].decode()
    return found


def members(namespaces: set[int]) -> list[int]:
    """Every live process inside one of these mount namespaces."""
    return [pid for pid in all_pids() if mount_namespace(pid) in namespaces and start_time(pid) is not None]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        reap(pid)


def reap(pid: int) -> None:
    """Take the exit status where the process is our own child, so that no zombie stays in a long test session."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def wait_for(condition: Callable[[], bool], seconds: float, poll: float = 0.05, patience: float = PATIENCE) -> bool:
    """Poll until the condition holds; False when the deadline (times ``patience``) passes first."""
    deadline = time.monotonic() + patience * seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll)
    return True


def locked(file: IO[str]) -> bool:
    """Take the lock on an open file if nobody else has it; it ends with the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
