# SPDX-License-Identifier: Apache-2.0
"""Descriptions of host drivers, as far as the simulated kernel needs them."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MdevType:
    """A type of mediated device: its ``slices`` of the parent and the texts of its files."""

    slices: int
    name: str
    description: str = ""


@dataclass(frozen=True)
class MdevProfile:
    """The types that a driver registers for a parent; the types share ``capacity`` slices.

    With ``homogeneous``, all mediated devices of a parent have the type of the first one, as with
    time-sliced NVIDIA vGPUs. ``exhausted`` is the error of ``create`` when no instance is left:
    EUSERS comes from the kernel's own count, and a driver that counts itself chooses its error.
    """

    capacity: int
    types: Mapping[str, MdevType]
    homogeneous: bool = False
    exhausted: int = errno.ENOSPC


@dataclass(frozen=True)
class VgpuProfile:
    """The vGPU types that the VFs of one PF share; ``types`` maps an id to name and slices."""

    capacity: int
    types: Mapping[int, tuple[str, int]]


@dataclass(frozen=True)
class HostDriver:
    """One driver of the PCI bus.

    ``ids`` has entries ``vendor:device`` and ``class:CCCCCC`` in hex digits. ``any_function`` says
    that the driver also accepts a function that only ``driver_override`` gives to it; all others
    refuse it with ENODEV. ``vfs`` says that its probe succeeds on a VF; without it, that succeeds
    only on one that has the file ``vf_mark``. ``sriov`` is the callback for ``sriov_numvfs``.
    ``children`` are name patterns of what the driver adds to the directory of a function.
    ``leaves_enabled`` marks a driver that does not disable the function when it is unbound.
    ``shares_dma`` marks a driver that does not make an IOMMU group unviable, such as the driver of
    PCI Express ports. ``qat_services`` is how many services a QuickAssist device can combine, 0 for
    another driver.
    """

    name: str
    ids: frozenset[str] = frozenset()
    any_function: bool = False
    vfs: bool = True
    vf_mark: str = ""
    sriov: bool = False
    enables: bool = True
    leaves_enabled: bool = False
    vfio: bool = False
    shares_dma: bool = False
    children: tuple[str, ...] = ("msi_irqs",)
    mdev: MdevProfile | None = None
    vgpu: VgpuProfile | None = None
    qat_services: int = 0
