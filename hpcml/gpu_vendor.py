"""The vendor of a machine's GPUs: what it is called, how jobs and images show its GPUs, and which module asks it.

A second vendor is a row here, a module like :mod:`hpcml.node.hardware.nvidia` (see `gpu_interface.py` beside it), and a
key of the profile that chooses the row.
"""

from __future__ import annotations

from typing import NamedTuple


class GpuVendor(NamedTuple):
    """A vendor of GPUs."""

    name: str
    pci: str  # the vendor's number in the PCI tree, as sysfs writes it
    visible: str  # the variable that says which GPUs a program sees
    devices: str  # the driver's files of GPUs in /dev
    image_option: str  # the option of Apptainer that brings the driver into an image
    interface: str  # the driver's own interface for questions
    tool: str  # the vendor's command that shows GPUs
    hot: int  # the bits of a sample's ``throttle`` that say: slowed down by hardware, by heat or by the power brake
    module: str  # that asks for GPUs on the nodes
    samples: str  # the module whose ``sampler()`` measures them again and again


VENDOR = GpuVendor(
    name="NVIDIA",
    pci="0x10de",
    visible="CUDA_VISIBLE_DEVICES",
    devices="nvidia[0-9]*",
    image_option="--nv",
    interface="NVML",
    tool="nvidia-smi",
    hot=0x8 | 0x20 | 0x40 | 0x80,  # hardware, software (heat), hardware (heat), power brake: nvml.h
    module="hpcml.node.hardware.nvidia",
    samples="hpcml.node.hardware.nvidia_samples",
)
