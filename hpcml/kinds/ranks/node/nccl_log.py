"""What NCCL's own logs in the ranks say of the interconnect: the default, which costs no time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.kinds.ranks.node.interconnect import LONGEST, MOST_WARNINGS, SUBSYSTEMS, backend, processes_each
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.interconnect import record
from hpcml.node.interconnect.measurement import (
    Measurement,
    NodeFacts,
    merge_nccl_logs,
    parse_nccl_log,
)
from hpcml.node.interconnect.result import decide
from hpcml.settings import Settings

_LOOK, _LOOKS = 1.0, 0.1  # seconds between two looks at NCCL's logs, and as a share of the time since the start
_LAST_LOOK = 600.0  # seconds after the start
_LARGEST = 1 << 20  # bytes of a log that are read


def reads_logs(settings: Settings) -> bool:
    """Whether the logs of NCCL in the ranks tell of the interconnect."""
    check, count = settings.interconnect, settings.job.nodes * processes_each(settings)
    return settings.gpus > 0 and count > 1 and check.require == "warn" and check.nccl


def logging(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which NCCL writes its ways into the run's logs; none where the user has set some."""
    if {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & os.environ.keys() or "NCCL_DEBUG_FILE" not in variables:
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS}


class Ways:
    """The ways that NCCL took in this node's first rank, as its log in the run's folder ``logs`` tells."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.began, self.next_look = logs, time.monotonic(), 0.0
        self.earlier = {*shared_files.listed(logs)}  # of the attempts before this one
        self.size, self.is_reported = -1, False

    def look(self) -> dict[str, Any] | None:
        """Return once what the log says (:func:`parse_nccl_log`), when it has not grown since the last look."""
        now = time.monotonic()
        if self.is_reported or now < self.next_look or now - self.began > _LAST_LOOK:
            return None
        self.next_look = now + max(_LOOK, _LOOKS * (now - self.began))
        begin = f"nccl-{os.uname().nodename.partition('.')[0]}."
        names = [name for name in shared_files.listed(self.logs) if name.startswith(begin) and name not in self.earlier]
        texts = [beginning_of(self.logs / name) for name in names]
        is_whole, self.size = self.size == sum(map(len, texts)), sum(map(len, texts))
        log = parse_nccl_log("\n".join(texts))
        if not is_whole or not (log["within"] or log["across"]):
            return None
        self.is_reported = True
        log["warnings"] = [warning[:LONGEST] for warning in log["warnings"][:MOST_WARNINGS]]
        return log


def beginning_of(path: Path) -> str:
    """Return the beginning of a log, empty if it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return file.read(_LARGEST)
    except OSError:
        return ""


def judged_by_logs(context: Context, logs: Mapping[str, Mapping[str, Any]], interface: str) -> dict[str, Any]:
    """Judge the ways that NCCL took by node (:class:`Ways`); write ``interconnect.json``, without bandwidths."""
    nodes = {node: NodeFacts({}, shared_files.read_json(context.attempt.probe_of(node))) for node in logs}
    collective = {"log": merge_nccl_logs(list(logs.values())), "error": ""}
    measurement = Measurement(backend(context.settings), "cuda", (), {}, nodes, nccl=collective, interface=interface)
    return record.write(context, measurement, decide(measurement), 0.0)
