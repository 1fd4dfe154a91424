# SPDX-License-Identifier: Apache-2.0
"""Hosts with as many devices as wanted, as their agents would report them."""

from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Backend,
    BackendService,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report

DRIVER = "bench_driver"
RESOURCE_CLASS = "FPGA"


def report_of(
    host: str,
    devices: int,
    *,
    handles: int = 2,
    prepare: bool = False,
    resource_class: str = RESOURCE_CLASS,
) -> Report:
    """What an agent would report of a host with so many devices; see ``provider_of``."""
    found = tuple(
        _device(
            index,
            Deployable(
                name=f"{host}_{index}",
                resource_class=resource_class,
                driver_name="bench",
                handles=_handles(index, handles),
                attributes=facts(resource_class),
                prepare=prepare,
            ),
        )
        for index in range(devices)
    )
    hardware = tuple(Hardware.of(one) for one in found)
    engine = Backend("engine-0", "READY", (BackendService("compression", "READY"),), {"num": 1})
    return Report(
        (DriverReport(DRIVER, DriverState.READY, found, hardware=hardware, backends=(engine,)),)
    )


def provider_of(host: str, index: int) -> str:
    """The uuid of the provider of one of the devices of ``report_of``."""
    return provider_uuid(f"{host}_{index}")


def facts(resource_class: str) -> tuple[Attribute, ...]:
    """What is said of each deployable."""
    return (
        Attribute("rc", resource_class),
        Attribute("trait0", f"CUSTOM_BENCH_{resource_class}"),
        Attribute("trait1", "OWNER_CYBORG"),
        Attribute("product_id", "0x1234"),
    )


def _address(index: int) -> PciAddress:
    return PciAddress(0, index // 32, index % 32, 0)


def _handles(index: int, count: int) -> tuple[AttachHandle, ...]:
    address = _address(index)
    return tuple(
        AttachHandle(f"{address}/{unit}", AttachType.PCI, address.info()) for unit in range(count)
    )


def _device(index: int, deployable: Deployable) -> Device:
    address = _address(index)
    return Device(
        key=str(address),
        type=DeviceType.FPGA,
        vendor="0xABCD",
        model="bench",
        control_path=address.info(),
        deployables=(deployable,),
    )
