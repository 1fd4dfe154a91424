# SPDX-License-Identifier: Apache-2.0
"""The habana_driver: offers Intel Gaudi accelerators, and their predecessors, as whole cards.

Sources: Documentation/ABI/testing/sysfs-driver-habanalabs of Linux; the page "System Management
Interface Tool (hl-smi)" of the documentation of Intel Gaudi.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.card_driver import ListedCardDriver
from cyborg.drivers.card_readings import VendorTool, hwmon_figures, number, unintelligible
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
from cyborg.model.device import DeviceType
from cyborg.model.health import Signal

#: Directories of the classes of the kernel below that of the card; since Linux 6.3 ``accel``.
_CLASSES = ("accel", "habanalabs")
#: What hl-smi tells, the name of the figure and the number of its units in one of hl-smi's.
_FIGURES = (
    ("utilization.aip", "utilization_ratio", 0.01),
    ("memory.used", "memory_used_bytes", 1024 * 1024),
    ("memory.total", "memory_total_bytes", 1024 * 1024),
    ("temperature.aip", "temperature_celsius", 1),
    ("power.draw", "power_watts", 1),
)
_UNCORRECTED = "ecc.errors.uncorrected.volatile.total"


class HabanaDriver(ListedCardDriver):
    """Cards on the driver habanalabs; see module."""

    name = "habana_driver"
    type = DeviceType.AICHIP
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x1DA3: ("1200",)}
    resource_class: ClassVar[str] = "CUSTOM_GAUDI"
    vf_resource_class: ClassVar[str] = "CUSTOM_GAUDI"
    vendor_word: ClassVar[str] = "habana"
    trait_word: ClassVar[str] = "HABANA"
    group: ClassVar[str] = "habana"
    joinable: ClassVar[bool] = True
    divisible: ClassVar[bool] = False

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._tool = VendorTool(host, "/usr/bin/hl-smi", "/bin/hl-smi")

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        return self.each_card(scan, device_key, lambda key: self._signals(scan, key))

    def _signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """Yield the status of one card, and its uncorrectable errors since the start."""
        verb = "check the health"
        self.served(scan, device_key, verb)
        status = self._status(device_key)
        if status is not None:
            words = " ".join(status.lower().replace("_", " ").split())
            yield Signal("habana", "status", words, f"its status is {words[:40]}")
        values = self._ask(device_key, [_UNCORRECTED])
        if values is None and status is None:
            self._cannot(f"{verb} of {device_key}")
        if count := int((values or {}).get(_UNCORRECTED, 0)):
            text = f"{count} uncorrectable memory error{'s' if count > 1 else ''}"
            yield Signal("habana", "ecc", "uncorrected", text)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; what hl-smi tells, else temperature and power by hwmon."""
        if self.card(device_key, "stats", scan).unit is not None:
            self._cannot(f"measure {device_key}, which is several cards")
        self.served(scan, device_key, "measure the use")
        values = self._ask(device_key, [field for field, _, _ in _FIGURES])
        if values is None:
            return hwmon_figures(self.host, device_key)
        return {figure: values[field] * unit for field, figure, unit in _FIGURES if field in values}

    def _status(self, device_key: str) -> str | None:
        """Return the status of a card; None if its driver does not show one."""
        for name in _CLASSES:
            directory = f"/sys/bus/pci/devices/{device_key}/{name}"
            try:
                nodes = self.host.list_dir(directory)
            except exception.HostError as error:
                if not is_missing(error):
                    raise
                continue
            for node in nodes:
                if (text := self.attribute(device_key, f"{name}/{node}/status")) is not None:
                    return text
        return self.attribute(device_key, "status")

    def _ask(self, device_key: str, fields: Sequence[str]) -> dict[str, float] | None:
        """Return the fields of a card that hl-smi knows; None without hl-smi."""
        query = ",".join(["bus_id", *fields])
        output = self._tool.ask("-i", device_key, "-Q", query, "-f", "csv,noheader,nounits")
        if output is None:
            return None
        for line in output.splitlines():
            address, *values = (cell.strip() for cell in line.split(","))
            if address.lower() == device_key and len(values) == len(fields):
                numbers = zip(fields, map(number, values), strict=True)
                # N/A for what the card does not have.
                return {field: value for field, value in numbers if value is not None}
        raise unintelligible("hl-smi", f"no line about {device_key}")
