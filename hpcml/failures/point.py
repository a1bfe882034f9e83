"""How a point of a sweep ended: one record from the node that writes it (points/KEY.json) to all that read it."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from hpcml import safe_files, typed_json

OK, FAILED, PRUNED = "ok", "failed", "pruned"  # a pruned point is no failure
LARGEST = 1 << 20  # bytes of a point's record
Typed = int | float | bool | str


def _value(value: Any) -> Typed:
    if isinstance(value, Typed):
        return value
    raise ValueError("has the wrong type")


def _metric(value: Any) -> float | None:
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError("is not a number")


class PointEnd(NamedTuple):
    """How a point ended; a point without such a record has not, and is run again."""

    values: Mapping[str, Annotated[Typed, _value]]
    status: str  # OK, FAILED or PRUNED
    seconds: float
    metrics: Mapping[str, Annotated[float | None, _metric]]  # the last values, None for one that was no number
    key: str = ""
    exit_status: int = 0
    cause: str = ""  # of a failure, or the step at which it was pruned
    kind: str = ""  # of a failure (failures.judgement.KINDS), empty where nothing shows it
    rule: str = ""  # that shows the kind
    nodes: tuple[str, ...] = ()  # that it is about
    memory_limit: str = ""  # as of failures.end.End
    reports: int = 0  # how often it reported
    step: int | None = None  # of its last report that named one
    began: float = 0.0  # in seconds since 1970
    node: str = ""  # where its process was
    run: str = ""  # the id of its run

    @property
    def state(self) -> str:
        """OK or PRUNED; else FAILED, also what only a newer version writes."""
        return self.status if self.status in (OK, PRUNED) else FAILED

    @property
    def failed(self) -> bool:
        """Whether it ended by a failure."""
        return self.state == FAILED


def read(path: Path, run: str) -> PointEnd:
    """Return the end of a point of a run.

    Raises
    ------
    OSError
        If its file cannot be read.
    ValueError
        If it is damaged.
    """
    return typed_json.read(PointEnd, safe_files.read_json(path, LARGEST))._replace(run=run)
