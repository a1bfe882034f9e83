"""The job's GPUs, asked beside the sampler's own loop: their driver may never answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from hpcml.node.hardware.gpu_interface import Reading, Sampler, sampler
from hpcml.samples import Gpu


class Beside:
    """GPUs asked in a thread: a driver may wait for ever for one that fell off the bus, and the rest continues."""

    def __init__(self, make: Callable[[], Sampler]) -> None:
        self.header: tuple[Gpu, ...] = ()
        self.problem = ""
        self._make = make
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._waiting = True  # for the first answer, which comes unasked once the driver is up
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            gpus = self._make()
            self.header = gpus.header
            while True:
                self._answers.put(gpus.read())
                self._orders.get()
        except Exception as error:  # noqa: BLE001 - no package, no driver, or another one: a node without its GPUs
            self.problem = f"{type(error).__name__}: {error}"
            self._answers.put(Reading())

    def read(self, seconds: float) -> Reading:
        """Return the driver's answer within some seconds, else nothing; a late answer is returned next time."""
        if self.problem:
            return Reading()
        if not self._waiting:
            self._waiting = True
            self._orders.put(None)
        try:
            reading = self._answers.get(timeout=seconds)
        except queue.Empty:
            return Reading()
        self._waiting = False
        return reading


def beside(count: int, affordable: float) -> Beside:
    """Return the job's GPUs, asked in a thread; ``affordable`` are processor seconds a sample."""
    return Beside(lambda: sampler(count, affordable))
