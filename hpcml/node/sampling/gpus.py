"""What NVML says of the job's GPUs again and again: use, memory, power, clocks, bytes moved, energy, Xid errors.

Untested on hardware beyond the counters of NVLink: it is tested against a stand-in for pynvml.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcml.node.hardware import nvml

_PCIE_SHARE = 0.5  # of the processor time that sampling may take; a driver that takes more for PCIe is asked no more
_MOST_XIDS = 200  # of one GPU


class Reading(NamedTuple):
    """The values of all GPUs in the order of :class:`hpcml.samples.GpuSample`, and new errors (index, Xid)."""

    values: list[list[int | float | None]]
    xids: list[tuple[int, int]]


class Gpus:
    """The first ``count`` GPUs of those that this process may see; NVML's errors pass through at the start only."""

    def __init__(self, pynvml: Any, visible: str | None, count: int, affordable: float) -> None:
        pynvml.nvmlInit()
        self.nvml, self.ask = pynvml, nvml.Asker(pynvml)
        self.affordable = affordable * _PCIE_SHARE  # processor seconds a sample for all PCIe rates
        self.pcie = True
        self.gpus = self._gpus(visible)[:count]
        self.header = [facts for facts, _ in self.gpus]
        self.links = [nvml.active_links(pynvml, handle) for _, handle in self.gpus]
        self.events = [self._events(handle) for _, handle in self.gpus]
        self.told = [0] * len(self.gpus)

    def _gpus(self, visible: str | None) -> list[tuple[dict[str, Any], Any]]:
        found = []
        for index in range(self.ask("count", "nvmlDeviceGetCount") or 0):
            handle = self.ask("handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue  # Slurm gave it to another job
            memory = self.ask("", "nvmlDeviceGetMemoryInfo", handle)
            limit = self.ask("", "nvmlDeviceGetEnforcedPowerLimit", handle)
            facts = {
                "index": index,
                "uuid": nvml.text(self.ask("", "nvmlDeviceGetUUID", handle)),
                "name": nvml.text(self.ask("", "nvmlDeviceGetName", handle)),
                "memory": None if memory is None else int(memory.total),
                "power_limit": None if limit is None else limit / 1000,
            }
            found.append((facts, handle))
        kept = [{**facts, "mig_devices": nvml.mig_devices(self.nvml, handle)} for facts, handle in found]
        shown, _ = nvml.visible_gpus(visible, kept)
        return [(facts, handle) for facts, handle in found if facts["index"] in shown]

    def _events(self, handle: Any) -> Any:
        """Return a set of NVML's events that holds the GPU's Xid errors, None where they cannot be had."""
        critical = getattr(self.nvml, "nvmlEventTypeXidCriticalError", 8)
        events = self.ask("events", "nvmlEventSetCreate")
        if events is None or self.ask.refused("nvmlDeviceRegisterEvents", handle, critical, events):
            return None
        return events

    def read(self) -> Reading:
        """Ask for everything once."""
        rates = self._pcie_rates()
        values = [
            [*self._values(handle), *self._links_moved(place), *rates[place], self.ask("", _ENERGY, handle)]
            for place, (_, handle) in enumerate(self.gpus)
        ]
        return Reading(values, [(facts["index"], xid) for place, (facts, _) in enumerate(self.gpus)
                                for xid in self._xids(place)])  # fmt: skip

    def _values(self, handle: Any) -> list[int | float | None]:
        use, memory = (self.ask("", name, handle) for name in ("nvmlDeviceGetUtilizationRates", _MEMORY))
        power = self.ask("", "nvmlDeviceGetPowerUsage", handle)
        reasons = self.ask("", "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # an older driver or nvidia-ml-py
            reasons = self.ask("", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return [
            None if use is None else int(use.gpu),
            None if memory is None else int(memory.used),
            None if power is None else round(power / 1000, 1),
            self.ask("", "nvmlDeviceGetTemperature", handle, 0),  # NVML_TEMPERATURE_GPU
            self.ask("", "nvmlDeviceGetClockInfo", handle, 1),  # NVML_CLOCK_SM
            reasons,
        ]

    def _links_moved(self, place: int) -> tuple[int | None, int | None]:
        """Return the KiB that a GPU has received and sent over all its links."""
        if not self.links[place]:
            return None, None
        sent, received, _ = nvml.link_bytes(self.nvml, self.gpus[place][1], self.links[place])
        if sent is None or received is None:
            self.links[place] = []  # no way of asking is known; they are many
            return None, None
        return received // 1024, sent // 1024

    def _pcie_rates(self) -> list[tuple[int | None, int | None]]:
        """Return the KiB/s received and sent; the driver measures for 20 ms and more each time."""
        if not self.pcie:
            return [(None, None)] * len(self.gpus)
        began = time.thread_time()
        rates = [
            (self.ask("", _PCIE, handle, 1), self.ask("", _PCIE, handle, 0)) for _, handle in self.gpus
        ]  # NVML_PCIE_UTIL_RX_BYTES, NVML_PCIE_UTIL_TX_BYTES
        self.pcie = time.thread_time() - began <= self.affordable
        return rates

    def _xids(self, place: int) -> list[int]:
        """Return a GPU's errors since the last look; NVML is not waited for."""
        found: list[int] = []
        while self.events[place] is not None and self.told[place] < _MOST_XIDS:
            event = self.ask("", "nvmlEventSetWait_v2", self.events[place], 0)
            if event is None:  # none yet: NVML says so by an error, "timeout"
                break
            self.told[place] += 1
            found.append(int(event.eventData))
        return found


_ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
_MEMORY = "nvmlDeviceGetMemoryInfo"
_PCIE = "nvmlDeviceGetPcieThroughput"


class Beside:
    """GPUs asked in a thread: NVML may wait for ever for one that has fallen off the bus, and the rest goes on."""

    def __init__(self, make: Callable[[], Gpus]) -> None:
        self.header: list[dict[str, Any]] = []
        self.problem = ""
        self._make = make
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._waiting = True  # for the first answer, which comes unasked once NVML is up
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            gpus = self._make()
            self.header = gpus.header
            while True:
                self._answers.put(gpus.read())
                self._orders.get()
        except Exception as error:  # noqa: BLE001 - no pynvml, no driver, or another one: a node without its GPUs
            self.problem = f"{type(error).__name__}: {error}"
            self._answers.put(Reading([], []))

    def read(self, seconds: float) -> Reading:
        """Return what NVML says within some seconds, else nothing; a late answer is returned next time."""
        if self.problem:
            return Reading([], [])
        if not self._waiting:
            self._waiting = True
            self._orders.put(None)
        try:
            reading = self._answers.get(timeout=seconds)
        except queue.Empty:
            return Reading([], [])
        self._waiting = False
        return reading


def beside(count: int, affordable: float) -> Beside:
    """Return the job's GPUs, asked in a thread; ``affordable`` are processor seconds a sample."""

    def make() -> Gpus:
        import pynvml

        return Gpus(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), count, affordable)

    return Beside(make)
