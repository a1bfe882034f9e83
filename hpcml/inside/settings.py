"""What the roles need to know: written into plan.json by the submitting side, read here on the nodes."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcml.layout import AttemptPaths, RunPaths
from hpcml.units import expand_hosts


@dataclass(frozen=True, slots=True)
class Settings:
    """Decisions of the plan; durations in seconds, sizes in bytes, 0 or empty means "decide on the node"."""

    local: bool
    nodes: int
    workers_per_node: int
    threads: int
    memory_limit: int
    restarts: int
    on_loss: str
    gpus_per_node: int
    interface: str
    protocol: str
    scratch: str
    time_limit: int
    signal_lead: float
    scheduler_deadline: float
    workers_deadline: float
    driver_grace: float
    teardown_deadline: float
    script: str
    arguments: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True)
class Context:
    """Where this process stands in the run."""

    run: RunPaths
    attempt: AttemptPaths
    number: int
    settings: Settings
    node: str
    nodes: tuple[str, ...]

    def scratch(self, *, longest: int = 4096) -> str | None:
        """Return the folder for node-local files, None for the system's own choice (TMPDIR, /tmp).

        ``longest`` is for unix sockets, whose path may have 108 bytes in all: a longer folder gives way to /tmp.
        """
        folder = os.path.expandvars(self.settings.scratch) or tempfile.gettempdir()
        return folder if len(folder.encode()) <= longest else "/tmp"

    def worker_names(self, node: str) -> tuple[str, ...]:
        """Return the names of a node's workers: ``n3``, or ``n3-0``, ``n3-1`` … when there are several."""
        count = self.settings.workers_per_node * (self.settings.nodes if self.settings.local else 1)
        return (node,) if count == 1 else tuple(f"{node}-{index}" for index in range(count))


def load() -> Context:
    """Return the context that the batch script's environment names.

    Raises
    ------
    KeyError
        If HPCML_RUN_DIR is not set (the role was not started by a batch script of hpcml).
    OSError
        If plan.json cannot be read on this node.
    """
    run = RunPaths(Path(os.environ["HPCML_RUN_DIR"]))
    number = int(os.environ.get("HPCML_ATTEMPT", "0"))
    facts = json.loads(run.plan.read_text())["inside"]
    facts["arguments"] = tuple(facts["arguments"])
    settings = Settings(**facts)
    if settings.local:
        node = "local"
        nodes: tuple[str, ...] = (node,)
    else:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        nodes = expand_hosts(os.environ.get("SLURM_JOB_NODELIST", node))
    return Context(run, run.attempt(number), number, settings, node, nodes)
