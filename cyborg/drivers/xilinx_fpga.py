# SPDX-License-Identifier: Apache-2.0
"""The xilinx_fpga_driver: offers Alveo cards of AMD (Xilinx) and loads images into them.

A card has a function for management (driver xclmgmt) and one for users (xocl). The first can write
the flash memory, so it stays on the host unless the configuration says otherwise.

Sources: the drivers and tools of XRT; struct axlf in xclbin.h of XRT, which Linux has in
include/uapi/linux/xclbin.h of its Alveo patches.
"""

import json
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.base import Progress
from cyborg.drivers.card_driver import info_of
from cyborg.drivers.command import summary
from cyborg.drivers.fpga import FpgaDriver, uuids
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.privileged import actions
from cyborg.drivers.privileged.actions import XilinxImage
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device
from cyborg.model.health import Signal

_XILINX = 0x10EE
_PROCESSING_ACCELERATOR = 0x1200
_MANAGEMENT, _USER = "xclmgmt", "xocl"
#: The kind that the device catalogue gives to functions for management.
_MANAGEMENT_KIND = "FPGA_MANAGEMENT"
#: The tool that examines cards; XRT 2024.2 renamed it.
_EXAMINERS = ("/opt/xilinx/xrt/bin/xrt-smi", "/opt/xilinx/xrt/bin/xbutil")
_EXAMINE_TIMEOUT = 20.0
_MAGIC = b"xclbin2\0"
#: The fields of struct axlf from the length of the file on, and where they begin.
_HEADER, _HEADER_OFFSET = struct.Struct("<Q24x16s64x16s20x"), 304
_HEADER_END = _HEADER_OFFSET + _HEADER.size


@dataclass(frozen=True)
class Image:
    """What an xclbin says about itself: the region that it fits, if it names one, and its id."""

    regions: tuple[str, ...]
    function: str


def parse_image(start: bytes, size: int) -> Image:
    """Return what the header of an xclbin says.

    ``start`` is the start of the file, ``size`` the size of the file. Raises ValueError with a
    clause for an image that cannot be loaded.
    """
    if not start.startswith(_MAGIC):
        raise ValueError("it is not an xclbin")
    if len(start) < _HEADER_END:
        raise ValueError("it ends within its header")
    length, region, function = _HEADER.unpack_from(start, _HEADER_OFFSET)
    # A signature may follow.
    if not _HEADER_END <= length <= size:
        raise ValueError(f"it has {size} bytes, and {length} according to its header")
    functions = uuids([function.hex()])
    if not functions:
        raise ValueError("its header has no uuid")
    return Image(uuids([region.hex()]), functions[0])


class XilinxFpgaDriver(FpgaDriver):
    """Alveo cards; see module."""

    name = "xilinx_fpga_driver"
    group = "xilinx_fpga"
    driver_name = "XILINX"
    together: ClassVar[bool] = True

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._with_management: bool = conf[self.group].guest_functions == "all"
        self._image_kind = XilinxImage(conf[self.group].image_kind)
        if self._blank_image and self._image_kind is XilinxImage.BASE:
            raise exception.ConfigError(
                reason="Option [xilinx_fpga] blank_image cannot be set with image_kind = base: "
                "a cold boot would be needed after each guest."
            )

    def selects(self, function: PciFunction) -> bool:
        """Return whether it is the first function of a card, which stands for all of them."""
        return _is_part(function) and function.address.function == 0

    def guests(self, scan: Scan, function: PciFunction) -> Sequence[PciFunction]:
        """See CardDriver; of up to two functions of the slot, as in the existing service."""
        slot = function.address
        parts = [
            other
            for other in scan.functions.values()
            if _is_part(other)
            and other.parent is None
            and other.address.function < 2
            and (other.address.domain, other.address.bus, other.address.device)
            == (slot.domain, slot.bus, slot.device)
        ]
        if self._with_management or self.entry(function).refused is not None:
            return parts
        return [part for part in parts if not self._manages(part, parts)]

    def _manages(self, part: PciFunction, parts: Sequence[PciFunction]) -> bool:
        """Return whether a function of a card is, or may be, the one for management.

        It has no driver of the host while a guest has it.
        """
        return (
            part.host_driver == _MANAGEMENT
            or self.entry(part).description.kind == _MANAGEMENT_KIND
            or (part.address.function == 0 and len(parts) > 1)
        )

    def unit_name(self, guests: Sequence[PciFunction]) -> str | None:
        """Return the name of a card's deployable: that of its first function."""
        return self.name_of(replace(guests[0].address, function=0)) if guests else None

    def no_guests(self, function: PciFunction) -> str:
        return "it has no function for users; load a shell that has one, or a driver of XRT"

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        product = "CUSTOM_FPGA_XILINX", f"CUSTOM_FPGA_PRODUCT_ID_{function.product:04X}"
        loaded = [f"CUSTOM_FPGA_FUNCTION_ID_XILINX_{id_.upper()}" for id_ in self._functions(card)]
        loaded += [f"CUSTOM_FPGA_REGION_XILINX_{id_.upper()}" for id_ in self._regions(card)]
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=(self.card_deployable(card, product, loaded),),
            std_board_info={
                "product_id": f"{function.product:04x}",
                "controller": "Processing accelerators",
            },
            vendor_board_info='{"vendor_info": "fpga_vb_info"}',
        )

    def load(self, card: Card, image_path: str, progress: Progress) -> None:
        """See FpgaDriver; the regions must be the image's before, and the function after.

        Nothing but the tool checks an image for the flash memory.
        """
        path = self.host.realpath(image_path)
        start, size = self.host.read_start(path, _HEADER_END)
        try:
            image = parse_image(start, size)
        except ValueError as error:
            self.failed("program", f"the image cannot be loaded: {error}")
        manager = self._part(card, _MANAGEMENT)
        if manager is None:
            self.failed("program", f"{_MANAGEMENT} is not the driver of {card.key}")
        regions = self._regions(card)
        user = self._image_kind is XilinxImage.USER
        if user and image.regions and regions and not set(image.regions) <= set(regions):
            self.failed(
                "program",
                f"the image is for region {image.regions[0]}, and {card.key} has "
                f"{', '.join(regions)}",
            )
        progress(0.1, "loading the image")
        self.host.privileged.run(
            actions.ProgramXilinxFpga(manager.address, path, self._image_kind.value)
        )
        if not user:
            return
        progress(0.9, "reading the function")
        functions = {*self._functions(card)}
        if (report := self._examine(card, "dynamic-regions")) is not None:
            functions |= {*uuids(str(part.get("xclbin_uuid")) for part in _mappings(report))}
        if image.function not in functions:
            has = ", ".join(sorted(functions)) or "none that can be read"
            self.failed(
                "program",
                f"the image has function {image.function}, and after it was loaded {card.key} has "
                f"{has}",
            )

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the reports of XRT, or without its tool the file ``ready`` of the card."""
        card = self.card(device_key, "health", scan)
        user = self._part(card, _USER)
        if user is None:
            self._cannot(f"check the health of {device_key} without its driver {_USER}")
        report = self._examine(card, "host", "firewall", "memory")
        if report is None:
            ready = self.text(f"/sys/bus/pci/devices/{user.address}/ready")
            if ready is None:
                self._cannot(f"check the health of {device_key} without the tools of XRT")
            if _number(ready) == 0:
                yield _NOT_READY
            return
        for part in _mappings(report):
            if part.get("bdf") == str(user.address) and part.get("is_ready") in {"false", False}:
                # The other reports say nothing about such a card.
                yield _NOT_READY
                return
        # The report of the host lists all cards.
        devices = [part for part in _mappings(report) if part.get("device_id") == str(user.address)]
        if not devices:
            raise exception.HostError(
                action=f"examining {user.address}", reason="the report has nothing about the card"
            )
        for part in _mappings(devices):
            if level := _number(part.get("firewall_level")):
                status = str(part.get("firewall_status"))[:80]
                yield Signal(
                    "xrt", "firewall", level, f"its firewall {level} has tripped: {status}"
                )
        errors = sum(_number(part.get("count")) for part in _uncorrectable(devices))
        if errors:
            text = f"{errors} uncorrectable memory error{'s' if errors > 1 else ''}"
            yield Signal("xrt", "memory", "uncorrectable", text)

    def _part(self, card: Card, driver: str) -> PciFunction | None:
        """Return the function of a card that a driver of XRT has."""
        return next((part for part in _functions(card) if part.host_driver == driver), None)

    def _examine(self, card: Card, *reports: str) -> dict[str, Any] | None:
        """Return reports of XRT about a card; None without its tool.

        Raises exception.HostError if the tool fails.
        """
        user = self._part(card, _USER)
        tool = next((path for path in _EXAMINERS if self.host.exists(path)), None)
        if tool is None or user is None:
            return None
        action = f"running {tool}"
        if (writable := self.host.writable_by_others(tool)) is not None:
            reason = f"others than root can change {writable}"
            raise exception.HostError(action=action, reason=reason)
        words = [tool, "examine", "--device", str(user.address), "--report", *reports]
        words += ["--format", "JSON", "--output"]
        result, text = self.host.run_to_file(words, timeout=_EXAMINE_TIMEOUT)
        if result.status != 0:
            raise exception.HostError(action=action, reason=summary(result))
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise exception.HostError(action=action, reason="it wrote no valid JSON object")
        return document

    def _functions(self, card: Card) -> tuple[str, ...]:
        """Return the id of the image that users have loaded, as the drivers show it."""
        return uuids(
            self.text(f"/sys/bus/pci/devices/{part.address}/xclbinuuid")
            for part in _functions(card)
        )

    def _regions(self, card: Card) -> tuple[str, ...]:
        """Return the ids of the interfaces of the shell; older shells have none."""
        texts = [
            self.text(f"/sys/bus/pci/devices/{part.address}/interface_uuids") or ""
            for part in _functions(card)
        ]
        return uuids(line for text in texts for line in text.splitlines())


_NOT_READY = Signal(
    "xrt", "ready", "false", "it is not ready: its shell is not the one that XRT expects"
)


def _functions(card: Card) -> Sequence[PciFunction]:
    """Return the functions of a card that its drivers show, that for management first."""
    return (card.function, *(part for part in card.guests if part != card.function))


def _is_part(function: PciFunction) -> bool:
    return function.vendor == _XILINX and function.class_code >> 8 == _PROCESSING_ACCELERATOR


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON document, the outer ones first.

    The versions of XRT differ in where they put a report.
    """
    values = deque([value])
    while values:
        item = values.popleft()
        if isinstance(item, dict):
            yield item
            values += item.values()
        elif isinstance(item, list):
            values += item


def _uncorrectable(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that count uncorrectable errors."""
    for part in _mappings(value):
        count = part.get("uncorrectable")
        if isinstance(count, dict):
            yield count


def _number(value: Any) -> int:
    """Return a number of XRT, which are texts, decimal or hexadecimal; 0 for any other value."""
    try:
        return int(str(value), 0)
    except ValueError:
        return 0
