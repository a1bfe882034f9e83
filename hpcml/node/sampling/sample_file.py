"""A file of samples: lines are appended, older samples thinned when it is large, and what fails ends nothing."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml import files

LARGEST = 8 << 20  # bytes of one file; hpcml.samples reads files of twice as much
PER_HOUR = 700_000  # bytes that a node's file may grow in an hour
PROCESSOR = 0.01  # of one core is what sampling may take
FIRST, SOON = 60.0, 1.0  # seconds for which a run is looked at more often, and how often
_PAUSE = 60.0  # seconds without a further try when a file cannot be written


def line(table: Mapping[str, Any]) -> bytes:
    """Return a table as a line of a file of samples."""
    return json.dumps(table, separators=(",", ":")).encode() + b"\n"


def interval(every: float, passed: float, *, cost: float, size: float, per_hour: float = PER_HOUR) -> float:
    """Return the seconds until the next sample: more often at first, more seldom where one costs much.

    ``passed`` are the seconds since the first sample, ``cost`` the processor seconds and ``size`` the bytes of one.
    """
    least = cost / PROCESSOR
    if passed < FIRST:
        return max(min(SOON, every), least)
    return max(every, least, size * 3600 / per_hour)


class SampleFile:
    """One file of samples; ``header`` is its first line, and that of what is written after a trouble."""

    def __init__(self, path: Path, header: Mapping[str, Any], largest: int = LARGEST) -> None:
        self.path, self.header, self.largest = path, line(header), largest
        self.descriptor = -1
        self.half = False  # the last line was not written whole
        self.said = False
        self.again = 0.0

    def begin(self, header: Mapping[str, Any]) -> None:
        """Begin a new series."""
        self.header = line(header)
        self.append(self.header)

    def append(self, text: bytes) -> None:
        """Append a line, by one write(2); what fails is said once, and tried again after a minute."""
        if self.again and time.monotonic() < self.again:
            return
        try:
            self._append(text)
        except OSError as error:
            self._close()
            self.again = time.monotonic() + _PAUSE
            if not self.said:
                self.said = True
                print(f"hpcml: no samples are written to {self.path}: {error.strerror}.", file=sys.stderr, flush=True)

    def _append(self, text: bytes) -> None:
        if self.descriptor >= 0:
            facts = os.fstat(self.descriptor)
            if not facts.st_nlink:  # somebody removed it
                self._close()
            elif facts.st_size + len(text) > self.largest:
                self._thin()
        if self.descriptor < 0:
            self._open()
        self._write(text)

    def _open(self) -> None:
        for folder in (self.path.parent.parent, self.path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)  # not those above: a run's directory that was removed stays so
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o600)
        self._write(self.header)

    def _write(self, text: bytes) -> None:
        whole = b"\n" + text if self.half else text
        self.half = True
        if os.write(self.descriptor, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.half = False

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _thin(self) -> None:
        self._close()
        lines = files.read(self.path, 2 * self.largest).splitlines(keepends=True)
        files.write(self.path, b"".join(thinned(lines)))
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def thinned(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines with every second sample of the older half left out; headers and events stay.

    Counters lose nothing by that. The cores in use are those since the sample before, so what a sample that is left
    out says of them goes into the next.
    """
    tables = [(text, table) for text in lines if (table := _table(text)) is not None]
    older = sum(_is_sample(table) for _, table in tables) // 2
    kept: list[bytes] = []
    before: dict[str, Any] | None = None
    left_out: dict[str, Any] | None = None
    for text, table in tables:
        if not _is_sample(table):
            kept.append(text)
            continue
        older -= 1
        if older >= 0 and before is not None and left_out is None:
            left_out = table
            continue
        kept.append(line(_joined(before, left_out, table)) if before and left_out else text)
        before, left_out = table, None
    return kept


def _table(text: bytes) -> dict[str, Any] | None:
    try:
        table = json.loads(text)
    except ValueError:
        return None  # a line that was written in part
    return table if isinstance(table, dict) and "t" in table else None


def _is_sample(table: Mapping[str, Any]) -> bool:
    return "kind" not in table and "event" not in table


def _joined(before: Mapping[str, Any], left_out: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    first, second = left_out.get("cpu"), table.get("cpu")
    spans = left_out["t"] - before["t"], table["t"] - left_out["t"]
    if first is None or second is None or min(spans) < 0 or not any(spans):
        return table
    return {**table, "cpu": round((first * spans[0] + second * spans[1]) / sum(spans), 3)}
