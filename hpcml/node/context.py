"""The settings of the run as a process on a node has them, and where that process is in the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from hpcml import typed_json
from hpcml.node.job import node_name, node_names
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.settings import Settings
from hpcml.units import expand_hosts


class Context(NamedTuple):
    """The place of this process in the run."""

    run: RunPaths
    attempt: AttemptPaths
    number: int
    settings: Settings
    node: str
    node_names: tuple[str, ...]

    def scratch(self, *, longest: int = 4096) -> str:
        """Return the folder for node-local files: the profile's, else the system's own choice (TMPDIR, /tmp).

        ``longest`` is for unix sockets, whose path may have 108 bytes in all: a longer folder gives way to /tmp.
        """
        import tempfile  # here: a submission imports this module too, and does not need it

        folder = os.path.realpath(os.path.expandvars(self.settings.job.scratch) or tempfile.gettempdir())
        return folder if len(folder.encode()) <= longest else "/tmp"

    @property
    def socket_room(self) -> int:
        """How long the folder may be in which the run's folder for sockets is made; kernels' names are long."""
        return self.settings.code.form.traits.socket_room

    @property
    def sockets(self) -> Path:
        """The node-local folder for unix sockets of the first node's roles, 0700: the supervisor removes it."""
        return Path(json.loads(self.attempt.link.read_text())["sockets"])

    def worker_names(self, node: str) -> tuple[str, ...]:
        """Return the names of a node's workers: ``n3``, or ``n3-0``, ``n3-1`` … when there are several."""
        count = self.settings.workers.per_node * (self.settings.job.nodes if self.settings.job.one_machine else 1)
        return (node,) if count == 1 else tuple(f"{node}-{index}" for index in range(count))

    def share_of(self, node: str, slot: int) -> int:
        """Return to which of the shares (``at_once``) the worker number ``slot`` of a node belongs: neighbours."""
        settings = self.settings
        each = len(self.worker_names(node))
        before = 0 if settings.job.one_machine or node not in self.node_names else self.node_names.index(node) * each
        return min((before + slot) * settings.points.at_once // settings.worker_count, settings.points.at_once - 1)

    def in_share(self, share: int) -> int:
        """Return the number of workers that a share has when all are there."""
        at_once, count = self.settings.points.at_once, self.settings.worker_count
        return -(-(share + 1) * count // at_once) - -(-share * count // at_once)


def load() -> Context:
    """Return the context that the batch script's environment names.

    Raises
    ------
    KeyError
        If HPCML_RUN_DIR is not set (the role was not started by a batch script of hpcml).
    OSError
        If plan.json cannot be read on this node.
    DamagedError
        If it lacks something, or something has another type.
    """
    run = RunPaths(Path(os.environ["HPCML_RUN_DIR"]))
    number = int(os.environ.get("HPCML_ATTEMPT", "0"))
    settings = typed_json.read(Settings, json.loads(run.plan.read_text())["inside"])
    node = node_name()
    return Context(run, run.attempt(number), number, settings, node, expand_hosts(node_names() or node))
