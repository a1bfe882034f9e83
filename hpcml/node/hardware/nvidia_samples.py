"""What NVML says of the job's GPUs again and again: use, memory, power, clocks, bytes moved, energy, Xid errors.

Untested on hardware beyond the counters of NVLink: it is tested against a stand-in for pynvml.
"""

from __future__ import annotations

import os
import time
from typing import Any

from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware import nvidia
from hpcml.node.hardware.gpu_interface import Reading
from hpcml.samples import Gpu, GpuSample, Traffic

_PCIE_SHARE = 0.5  # of the processor time that sampling may take; a driver that takes more for PCIe is asked no more
_MOST_XIDS = 200  # of one GPU
_MEMORY = "nvmlDeviceGetMemoryInfo"


class Gpus:
    """The first ``count`` GPUs of those that this process may see; NVML's errors pass through at the start only."""

    def __init__(self, pynvml: Any, visible: str | None, count: int, affordable: float) -> None:
        pynvml.nvmlInit()
        self.nvml, self.ask = pynvml, nvidia.Asker(pynvml)
        self.affordable = affordable * _PCIE_SHARE  # processor seconds a sample for all PCIe rates
        self.pcie = True
        self.gpus = self._gpus(visible)[:count]
        self.header = tuple(gpu for gpu, _ in self.gpus)
        self.links = [nvidia.active_links(pynvml, handle) for _, handle in self.gpus]
        self.events = [self._events(handle) for _, handle in self.gpus]
        self.xids = [0] * len(self.gpus)

    def _gpus(self, visible: str | None) -> list[tuple[Gpu, Any]]:
        handles = {}
        gpus = []
        for number in range(self.ask("count", "nvmlDeviceGetCount") or 0):
            handle = self.ask("handle", "nvmlDeviceGetHandleByIndex", number)
            if handle is None:
                continue  # Slurm gave it to another job
            handles[number] = handle
            memory = self.ask("", _MEMORY, handle)
            limit = self.ask("", "nvmlDeviceGetEnforcedPowerLimit", handle)
            gpus.append(
                Gpu(
                    number,
                    nvidia.text(self.ask("", "nvmlDeviceGetUUID", handle)),
                    nvidia.text(self.ask("", "nvmlDeviceGetName", handle)),
                    None if memory is None else int(memory.total),
                    None if limit is None else limit / 1000,
                )
            )
        with_mig = [
            {"index": gpu.number, "uuid": gpu.uuid, "mig_devices": nvidia.mig_devices(self.nvml, handles[gpu.number])}
            for gpu in gpus
        ]
        shown, _ = nvidia.visible_gpus(visible, with_mig)
        return [(gpu, handles[gpu.number]) for gpu in gpus if gpu.number in shown]

    def _events(self, handle: Any) -> Any:
        """Return a set of NVML's events that holds the GPU's Xid errors, None where they cannot be had."""
        critical = getattr(self.nvml, "nvmlEventTypeXidCriticalError", 8)
        events = self.ask("events", "nvmlEventSetCreate")
        if events is None or self.ask.refused("nvmlDeviceRegisterEvents", handle, critical, events):
            return None
        return events

    def read(self) -> Reading:
        """Ask for everything once."""
        pcie = self._pcie()
        samples = [
            self._sample(handle, self._nvlink(place), pcie[place]) for place, (_, handle) in enumerate(self.gpus)
        ]
        xids = [(gpu.number, xid) for place, (gpu, _) in enumerate(self.gpus) for xid in self._xids(place)]
        return Reading(tuple(samples), tuple(xids))

    def _sample(self, handle: Any, nvlink: Traffic, pcie: Traffic) -> GpuSample:
        use, memory = (self.ask("", name, handle) for name in ("nvmlDeviceGetUtilizationRates", _MEMORY))
        power = self.ask("", "nvmlDeviceGetPowerUsage", handle)  # mW
        reasons = self.ask("", "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # an older driver or nvidia-ml-py
            reasons = self.ask("", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        energy = self.ask("", "nvmlDeviceGetTotalEnergyConsumption", handle)  # mJ
        return GpuSample(
            use=None if use is None else int(use.gpu),
            memory=None if memory is None else int(memory.used),
            power=None if power is None else round(power / 1000, 1),
            temperature=self.ask("", "nvmlDeviceGetTemperature", handle, 0),  # NVML_TEMPERATURE_GPU
            clock=self.ask("", "nvmlDeviceGetClockInfo", handle, 1),  # NVML_CLOCK_SM
            throttle=reasons,
            nvlink=nvlink,
            pcie=pcie,
            energy=None if energy is None else round(energy / 1000, 1),
        )

    def _nvlink(self, place: int) -> Traffic:
        """Return the bytes that a GPU has received and sent over all its links."""
        if not self.links[place]:
            return Traffic()
        sent, received, _ = nvidia.link_bytes(self.nvml, self.gpus[place][1], self.links[place])
        if sent is None or received is None:
            self.links[place] = []  # no way of asking is known; they are many
            return Traffic()
        return Traffic(received, sent)

    def _pcie(self) -> list[Traffic]:
        """Return the rates of each GPU; the driver measures for 20 ms and more each time."""
        if not self.pcie:
            return [Traffic()] * len(self.gpus)
        began = time.thread_time()
        rates = [Traffic(self._pcie_rate(handle, 1), self._pcie_rate(handle, 0)) for _, handle in self.gpus]
        self.pcie = time.thread_time() - began <= self.affordable
        return rates

    def _pcie_rate(self, handle: Any, counter: int) -> int | None:
        """Return bytes per second; ``counter`` is NVML_PCIE_UTIL_TX_BYTES (0) or NVML_PCIE_UTIL_RX_BYTES (1)."""
        rate = self.ask("", "nvmlDeviceGetPcieThroughput", handle, counter)  # KiB/s
        return None if rate is None else rate * 1024

    def _xids(self, place: int) -> list[int]:
        """Return a GPU's errors since the last look; NVML is not waited for."""
        xids: list[int] = []
        while self.events[place] is not None and self.xids[place] < _MOST_XIDS:
            event = self.ask("", "nvmlEventSetWait_v2", self.events[place], 0)
            if event is None:  # none yet: NVML says so by an error, "timeout"
                break
            self.xids[place] += 1
            xids.append(int(event.eventData))
        return xids


def sampler(count: int, affordable: float) -> Gpus:
    """Return the job's GPUs; NVML's errors pass through."""
    import pynvml

    return Gpus(pynvml, os.environ.get(VENDOR.visible), count, affordable)
