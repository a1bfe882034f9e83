"""What a node asks of its GPUs, whoever made them: the questions that each vendor's module answers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware.record import Gpus, Smi
from hpcml.samples import Gpu, GpuSample


class Reading(NamedTuple):
    """All GPUs at one time."""

    samples: tuple[GpuSample, ...] = ()
    xids: tuple[tuple[int, int], ...] = ()  # new errors: the driver's index, the error's number


class Sampler(Protocol):
    """The job's GPUs, measured again and again; a driver may let its caller wait for ever."""

    header: tuple[Gpu, ...]

    def read(self) -> Reading:
        """Ask for everything once."""


class Vendor(Protocol):
    """What the module of a vendor has."""

    def ask(self) -> dict[str, Any]:
        """Return the driver's raw answers, which can be recorded as JSON; called in a process that may be ended."""

    def described(self, raw: Mapping[str, Any], root: Path, visible: str | None) -> tuple[Gpus, str]:
        """Return the GPUs in such answers, with the PCI tree below ``root``, and what went wrong.

        ``visible`` is the value of the vendor's variable, None if it is not set.
        """

    def names(self, root: Path) -> tuple[str, ...]:
        """Return the names of all GPUs of the node, as the kernel's driver shows them."""

    def kernel_driver(self, root: Path) -> str | None:
        """Return the version of the kernel's driver, None without one."""

    def rows(self) -> tuple[Smi, ...]:
        """Return the rows that the vendor's own command shows; nothing where it does not answer."""

    def is_shared(self, root: Path) -> bool:
        """Whether a server runs that lets programs of several users share GPUs."""

    def memory(self, index: int) -> tuple[int, int]:
        """Return the total and free memory of a GPU, by the driver's index, in bytes."""

    def memory_of(self, device: str, pid: int) -> tuple[int, int] | None:
        """Return the memory of a GPU that a process uses, and what is free of it, in bytes; None if unknown."""

    def link_counters(self) -> tuple[dict[str, Any] | None, str]:
        """Return by UUID what each GPU has moved over links to other GPUs; None and the reason if unknown."""


def vendor() -> Vendor:
    """Return the module that asks this machine's GPUs."""
    return cast("Vendor", importlib.import_module(VENDOR.module))


def sampler(count: int, affordable: float) -> Sampler:
    """Return the first ``count`` GPUs that this process may see; ``affordable``: processor seconds a sample."""
    made: Sampler = importlib.import_module(VENDOR.samples).sampler(count, affordable)
    return made
