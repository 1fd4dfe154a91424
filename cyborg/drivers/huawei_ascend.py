# SPDX-License-Identifier: Apache-2.0
"""The huawei_ascend_driver: offers Huawei Ascend processors, whole or as virtual functions.

Sources: the pages about ``npu-smi info`` in the documentation of Huawei Ascend (health of all chips
and of one chip); published outputs of npu-smi 21 to 25.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.card_driver import ListedCardDriver
from cyborg.drivers.card_readings import VendorTool, number, unintelligible
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.scan import Scan
from cyborg.model.device import DeviceType
from cyborg.model.health import Signal, legible

_USED = re.compile(r"([0-9]{1,9}) */ *([0-9]{1,9})")
_DETAIL = re.compile(r"^\s*Error (?:Code|Information)\s*:\s*(.*?)\s*$", re.MULTILINE)
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class _Chip:
    """The two lines of a chip in the table of ``npu-smi info``.

    ``npu`` and ``chip`` are its numbers. ``power_and_heat`` and ``use`` are the last cells.
    """

    npu: str
    chip: str
    health: str
    power_and_heat: str
    use: str


class HuaweiAscendDriver(ListedCardDriver):
    """Ascend 310, 310B, 310P, 910, 910B and 910_93; see module."""

    name = "huawei_ascend_driver"
    type = DeviceType.AICHIP
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x19E5: ("1200",)}
    resource_class: ClassVar[str] = "CUSTOM_NPU"
    vf_resource_class: ClassVar[str] = "CUSTOM_VNPU"
    vendor_word: ClassVar[str] = "huawei"
    trait_word: ClassVar[str] = "HUAWEI"
    group: ClassVar[str] = "huawei_ascend"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._tool = VendorTool(host, "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")

    def std_board_info(self, function: PciFunction) -> Mapping[str, str | None]:
        return {
            "device_id": f"{function.product:04x}",
            "class": f"{function.class_code >> 8:04x}",
        }

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the health of the chip by npu-smi, with its errors.

        npu-smi lists all chips in one call. The call is made for each chip all the same: nothing
        that one chip tells depends on when another one was asked.
        """
        verb = "check the health"
        self.served(scan, device_key, verb)
        chip = self._chip(device_key)
        if chip is None:
            self._cannot(f"{verb} of {device_key}")
        evidence = f"npu-smi reports {chip.health[:40]}"
        if chip.health.lower() != "ok":
            evidence = "; ".join((evidence, *self._details(chip)))
        yield Signal("ascend", "health", chip.health.lower(), evidence)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; use, memory, temperature and power by npu-smi."""
        verb = "measure the use"
        self.served(scan, device_key, verb)
        chip = self._chip(device_key)
        if chip is None:
            self._cannot(f"{verb} of {device_key}")
        figures: dict[str, float] = {}
        cells = chip.power_and_heat.split()
        for figure, text in zip(("power_watts", "temperature_celsius"), cells, strict=False):
            if (value := number(text)) is not None:
                figures[figure] = value
        if (use := number(chip.use)) is not None:
            figures["utilization_ratio"] = use / 100
        # DDR first, then HBM if the chip has it; "0 / 0" is memory that it does not have.
        pairs = [(int(used), int(total)) for used, total in _USED.findall(chip.use)]
        for used, total in [pair for pair in pairs if pair[1]][-1:]:
            figures["memory_used_bytes"] = float(used * _MEBIBYTE)
            figures["memory_total_bytes"] = float(total * _MEBIBYTE)
        return figures

    def _chip(self, device_key: str) -> _Chip | None:
        """Return the lines of npu-smi about a chip; None without npu-smi.

        A chip has a line with its NPU, name, health, power and temperature, and one with its
        number, address and use.
        """
        output = self._tool.ask("info")
        if output is None:
            return None
        above: list[str] = []
        for line in output.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 3 and cells[1].lower() == device_key and len(above) == 3:
                npu, chip = (f"{cell} ".split(" ")[0] for cell in (above[0], cells[0]))
                return _Chip(npu, chip, above[1], above[2], cells[2])
            above = cells
        raise unintelligible("npu-smi", f"no lines about {device_key}")

    def _details(self, chip: _Chip) -> list[str]:
        """Return the error code and the text of a chip's error, as far as npu-smi tells them."""
        if not (chip.npu.isdecimal() and chip.chip.isdecimal()):
            return []
        try:
            output = self._tool.ask("info", "-t", "health", "-i", chip.npu, "-c", chip.chip) or ""
        except exception.HostError:
            return []
        texts = (legible(text) for text in _DETAIL.findall(output))
        return [f"error: {text}" for text in texts if text is not None and text.upper() != "NA"]
