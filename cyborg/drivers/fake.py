# SPDX-License-Identifier: Apache-2.0
"""The fake_driver: one simulated accelerator for tests, demonstrations and CI.

Clients of the existing service test against its values (tempest, the jobs of Nova and of the SDK),
so the values never change.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers.base import Driver
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
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
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState

_ADDRESS = PciAddress(0, 0x0C, 0, 0)
_UNITS = 16
_FUNCTIONS = 8
_RESOURCE_CLASS = "FPGA"
_BACKEND = "fake"
_SERVICE = "fake_engine"
_CAPABILITIES = {"fake": {"num": _UNITS}}
_TRAIT = "CUSTOM_FAKE_DEVICE"
_STATS = {
    "utilization_ratio": 0.25,
    "memory_used_bytes": 1_073_741_824.0,
    "memory_total_bytes": 8_589_934_592.0,
    "temperature_celsius": 42.0,
    "power_watts": 75.0,
}


class FakeDriver(Driver):
    """One FPGA with sixteen units, which can be bound but are never attached to a guest."""

    name = "fake_driver"
    device_type = "FPGA"
    remote_options = frozenset({"fault"})

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._fault: str = conf.fake_driver.fault.strip()
        self._deployable = re.sub(r"[^A-Za-z0-9_-]", "_", f"{conf.host}_FakeDevice")

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver; the device is always the same."""
        handles = []
        for unit in range(1, _UNITS + 1):
            device, function = divmod(unit, _FUNCTIONS)
            # Nova does not attach this type. The parts have the number of digits of the rows that
            # existing deployments hold.
            handles.append(
                AttachHandle(
                    key=str(PciAddress(_ADDRESS.domain, _ADDRESS.bus, device, function)),
                    type=AttachType.TEST_PCI,
                    info={
                        "domain": "0000",
                        "bus": "0c",
                        "device": str(device),
                        "function": str(function),
                    },
                )
            )
        return [
            Device(
                key=str(_ADDRESS),
                type=DeviceType.FPGA,
                vendor="0xABCD",
                model="miss model info",
                control_path=_ADDRESS.info(),
                deployables=(
                    Deployable(
                        name=self._deployable,
                        resource_class=_RESOURCE_CLASS,
                        driver_name="fake",
                        handles=tuple(handles),
                        traits=(_TRAIT,),
                        attributes=(Attribute("traits1", _TRAIT), Attribute("rc", _RESOURCE_CLASS)),
                        product_traits=(_TRAIT,),
                    ),
                ),
                std_board_info={"device_id": "0xabcd", "class": "Fake class"},
                vendor_board_info="fake_vendor_info",
            )
        ]

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the device is healthy while ``[fake_driver] fault`` is empty."""
        if device_key != str(_ADDRESS):
            self._cannot(f"check the health of {device_key}")
        if self._fault:
            yield Signal("fake", "fault", "set", self._fault)

    def hardware(self, scan: Scan) -> list[Hardware]:
        """See Driver; the capability is simulated, too."""
        return [
            replace(Hardware.of(device), capability=_CAPABILITIES) for device in self.discover(scan)
        ]

    def backends(self, scan: Scan) -> list[Backend]:
        """See Driver; one backend with one service, both always ready."""
        state = DriverState.READY.value
        return [Backend(_BACKEND, state, (BackendService(_SERVICE, state),), _CAPABILITIES)]

    def stats(self, scan: Scan, device_key: str) -> dict[str, float]:
        """See Driver; the values are constants."""
        if device_key != str(_ADDRESS):
            self._cannot(f"measure {device_key}")
        return dict(_STATS)
