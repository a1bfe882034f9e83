"""The sampler of a node: a small process that writes what the node uses, every few seconds, until its parent ends.

Nobody waits for it. Where the GPUs' driver hangs or the run's file system is blocked, it waits and all else continues.
The files of samples are written here for everybody: lines are appended, and older samples thinned when a file is large.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcml import safe_files
from hpcml.node import process_helpers
from hpcml.node.hardware.gpu_interface import Reading
from hpcml.node.sampling import gpus
from hpcml.node.sampling.host import Host
from hpcml.samples import Event, NodeHeader, line, thinned

NAME = "hpcml-sampler"  # of the process
_GPU_START, _GPU_ANSWER = 10.0, 2.0  # seconds for which the GPUs' driver is waited for
_MOST_OOM = 500  # events of one node
LARGEST = 8 << 20  # bytes of a file that is written; hpcml.samples reads files of twice as much
PER_HOUR = 700_000  # bytes that a node's file may grow in an hour
PROCESSOR = 0.01  # of one core is what sampling may take
FIRST, SOON = 60.0, 1.0  # seconds for which a run is looked at more often, and how often
_PAUSE = 60.0  # seconds without a further try when a file cannot be written


def run(path: Path, node: str, every: float, gpu_count: int, parent: int) -> int:
    """Write a node's samples to a file every some seconds; end with the process ``parent``, which forked this one."""
    process_helpers.end_with(parent)
    with suppress(OSError):  # what ps and top show
        Path("/proc/self/comm").write_text(NAME)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to every process; what follows is of interest
    sampler = Sampler(path, node, every, gpu_count)
    began = time.monotonic()
    cost = 0.0
    while True:
        used, size = time.process_time(), 0
        try:
            size = sampler.sample()
        except Exception as error:  # noqa: BLE001 - a kernel or driver of another kind: the run goes on without samples
            print(
                f"hpcml: the resource use of {node} is no longer sampled: {type(error).__name__}: {error}.",
                file=sys.stderr,
                flush=True,
            )
            return 1
        used = time.process_time() - used
        cost = used if not cost else 0.8 * cost + 0.2 * used
        time.sleep(interval(every, time.monotonic() - began, cost=cost, size=size))


class Sampler:
    """A node and its file."""

    def __init__(self, path: Path, node: str, every: float, gpu_count: int, root: Path = Path("/")) -> None:
        self.node, self.every = node, every
        self.host = Host(root)
        self.gpus = gpus.beside(gpu_count, every * PROCESSOR) if gpu_count else None
        self.reading = self.gpus.read(_GPU_START) if self.gpus else Reading()
        self.oom_events = 0
        self.known_gpus = self.gpus.header if self.gpus else ()
        self.file = SampleFile(path, self._header().as_json())

    def _header(self) -> NodeHeader:
        return self.host.header(self.node, round(time.time(), 2), self.every, self.known_gpus)

    def sample(self) -> int:
        """Write one sample, and what has happened since the one before; return its bytes."""
        reading, self.reading = self.reading, Reading()
        if self.gpus and not reading.samples:
            reading = self.gpus.read(_GPU_ANSWER)
            if self.gpus.header != self.known_gpus:  # the driver was late
                self.known_gpus = self.gpus.header
                self.file.begin(self._header().as_json())
            if self.gpus.problem:
                print(
                    f"hpcml: warning: {self.node}: the GPUs are not sampled: {self.gpus.problem}.",
                    file=sys.stderr,
                    flush=True,
                )
                self.gpus = None
        now = round(time.time(), 2)
        text = line(self.host.sample(now)._replace(gpus=reading.samples))
        self.file.append(text)
        events = [Event(now, "xid", gpu=number, xid=xid) for number, xid in reading.xids]
        if (kills := self.host.new_oom_kills()) and self.oom_events < _MOST_OOM:
            self.oom_events += 1
            events.append(Event(now, "oom", kills=kills))
        for event in events:
            self.file.append(line(event.as_json()))
        return len(text)


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
                print(
                    f"hpcml: no samples of resource use are written to {self.path}: {error.strerror}.",
                    file=sys.stderr,
                    flush=True,
                )

    def _append(self, text: bytes) -> None:
        if self.descriptor >= 0:
            state = os.fstat(self.descriptor)
            if not state.st_nlink:  # somebody removed it
                self._close()
            elif state.st_size + len(text) > self.largest:
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
        lines = safe_files.read(self.path, 2 * self.largest).splitlines(keepends=True)
        safe_files.write(self.path, b"".join(thinned(lines)))
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
