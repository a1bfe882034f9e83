"""Why a point failed, by the rules of ``hpcml why``: its error, its log and what workers wrote meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.failures import evidence, judgement
from hpcml.failures.end import End
from hpcml.failures.judgement import Case, Cause
from hpcml.paths import RunPaths

_MOST_LOGS = 128  # of workers, that are read
_SLACK = 1.0  # seconds by which the clocks of nodes may differ
_STARVED = "the script was killed because the node's memory limit was reached (out of memory)"


def look(
    run: RunPaths, log: Path, error: Mapping[str, Any], status: int, began: float, *, starved: bool
) -> Cause | None:
    """Return why a point failed.

    Parameters
    ----------
    log
        What the point printed.
    error
        The error that it did not catch, as the launcher wrote it down; empty if there is none.
    began
        When it began, in seconds since 1970: what others wrote before is not about it.
    starved
        Whether the kernel killed a process of this node out of memory meanwhile.
    """
    others = [hit for hit in evidence.hits(run, _MOST_LOGS) if hit.line.source not in ("driver", "job")]
    hits = [hit for hit in others if hit.line.time > began - _SLACK]
    name = f"{log.parent.name}/{log.name}"
    hits += [hit for piece in evidence.pieces(log) for hit in evidence.hits_in(piece, "driver", name=name)]
    message = _STARVED if starved else ""
    end = End(status, "driver", "script", message, ended_as="FAILED")
    return judgement.judge(Case(end, error=error, last_error=evidence.last_error(log)), hits)
