"""The sampler of a node: a small process that writes what the node uses, every few seconds, until its parent ends.

Nobody waits for it. Where NVML hangs or the run's file system is frozen, it stands still and all else goes on.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcml.node import processes
from hpcml.node.sampling import gpus
from hpcml.node.sampling.host import Host
from hpcml.node.sampling.sample_file import PROCESSOR, SampleFile, interval, line

NAME = "hpcml-sampler"  # of the process
_NVML_START, _NVML_ANSWER = 10.0, 2.0  # seconds for which NVML is waited for
_MOST_OOM = 500  # events of one node


def run(path: Path, node: str, every: float, gpu_count: int, parent: int) -> int:
    """Write a node's samples to a file every some seconds; end with the process ``parent``, which forked this one."""
    processes.end_with(parent)
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
            print(f"hpcml: {node} is sampled no more: {type(error).__name__}: {error}.", file=sys.stderr, flush=True)
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
        self.reading = self.gpus.read(_NVML_START) if self.gpus else gpus.Reading([], [])
        self.told = 0
        self.known = self.gpus.header if self.gpus else []
        self.file = SampleFile(path, self._header())

    def _header(self) -> dict[str, Any]:
        now = {"t": round(time.time(), 2), "every": self.every}
        return {"kind": "node", "version": 1, "node": self.node, **now, **self.host.header(), "gpus": self.known}

    def sample(self) -> int:
        """Write one sample, and what has happened since the one before; return its bytes."""
        reading, self.reading = self.reading, gpus.Reading([], [])
        if self.gpus and not reading.values:
            reading = self.gpus.read(_NVML_ANSWER)
            if self.gpus.header != self.known:  # NVML was late
                self.known = self.gpus.header
                self.file.begin(self._header())
            if self.gpus.problem:
                print(f"hpcml: no GPU of {self.node} is sampled: {self.gpus.problem}.", file=sys.stderr, flush=True)
                self.gpus = None
        now = round(time.time(), 2)
        text = line({"t": now, **self.host.sample(), "gpus": reading.values})
        self.file.append(text)
        for index, xid in reading.xids:
            self.file.append(line({"t": now, "event": "xid", "gpu": index, "xid": xid}))
        if (kills := self.host.new_oom_kills()) and self.told < _MOST_OOM:
            self.told += 1
            self.file.append(line({"t": now, "event": "oom", "kills": kills}))
        return len(text)
