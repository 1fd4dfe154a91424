# SPDX-License-Identifier: Apache-2.0
"""The intel_fpga_driver: offers FPGA cards of Intel and loads images into them.

The DFL driver of the kernel shows the regions and functions of a card, or the older driver of OPAE.
A card with virtual functions gives each guest one of them; the functions share the image.

Sources: Documentation/ABI/testing/sysfs-platform-dfl-fme, -dfl-port and sysfs-class-fpga-region of
Linux 6.12; the tables and the tools of OPAE; the format of GBS images in the documents of OPAE.
"""

import errno
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cyborg import exception
from cyborg.drivers.base import Progress
from cyborg.drivers.card_driver import info_of
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.fpga import FpgaDriver, uuids
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress

_MAGIC = b"XeonFPGA\xb7GBSv001"
_LENGTH = struct.Struct("<I")
#: The most metadata that an image may have; that of known images has some hundred bytes.
_MAX_METADATA = 64 * 1024
#: Directories of a card: with the DFL driver, and with the older driver of OPAE.
_ROOTS = ("fpga_region", "fpga")
_UNITS = ("dfl-fme.", "intel-fpga-fme.")
_PORTS = ("dfl-port.", "intel-fpga-port.")
#: Files with errors of the whole card, by the names in the DFL driver, and what they count.
_CARD_ERRORS = (
    ("catfatal_errors", "errors/catfatal_errors", "catastrophic or fatal errors"),
    ("fme_errors", "errors/fme_errors", "errors of the management engine"),
    # The older driver of OPAE.
    ("fme_errors", "errors/fme-errors/errors", "errors of the management engine"),
    ("nonfatal_errors", "errors/nonfatal_errors", "errors that are not fatal"),
    ("pcie0_errors", "errors/pcie0_errors", "errors of PCIe link 0"),
    ("pcie1_errors", "errors/pcie1_errors", "errors of PCIe link 1"),
)
#: What the power states of a port say. The DFL driver shows them in hexadecimal with the prefix 0x
#: (dfl-afu-main.c in the kernel), other than the documents of the ABI say.
_POWER_STATES = {
    1: "AP1: it is throttled",
    2: "AP2: it is throttled",
    6: "AP6: it was too hot, and is off until the next cold boot",
}
#: States of an FPGA manager that loads an image, when the ports are disabled for a while.
_LOADING = frozenset({"parse header", "write init", "write", "write complete"})
#: Longer than the kernel takes between a port and the state of its manager, in seconds.
_MOMENT = 0.5
_BIND_AGAIN = "Unbind the driver of the card and bind it again, then load an image into the card."


@dataclass(frozen=True)
class Image:
    """What an image says about itself: the region that it fits, and its functions."""

    region: str
    functions: tuple[str, ...]


def parse_image(start: bytes, size: int) -> Image:
    """Return what the metadata of a GBS image says.

    ``start`` is the start of the file with all metadata, ``size`` the size of the file. Raises
    ValueError with a clause for an image that cannot be loaded.
    """
    begin = len(_MAGIC) + _LENGTH.size
    if not start.startswith(_MAGIC) or len(start) < begin:
        raise ValueError("it is not a GBS image")
    (length,) = _LENGTH.unpack_from(start, len(_MAGIC))
    if length > _MAX_METADATA:
        raise ValueError(f"its metadata has {length} bytes, and {_MAX_METADATA} are allowed")
    if begin + length >= size or len(start) < begin + length:
        raise ValueError("it ends within its metadata, or has nothing after it")
    try:
        document = json.loads(start[begin : begin + length])
        description = _mapping(document)["afu-image"]
        (region,) = uuids([str(_mapping(description)["interface-uuid"])])
        clusters = description["accelerator-clusters"]
        functions = uuids(str(_mapping(cluster)["accelerator-type-uuid"]) for cluster in clusters)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its metadata is not valid ({type(error).__name__})") from error
    if not functions:
        raise ValueError("its metadata names no function")
    return Image(region, functions)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


class IntelFpgaDriver(FpgaDriver):
    """Cards of Intel, and cards of others with the same interface; see module."""

    name = "intel_fpga_driver"
    group = "intel_fpga"
    driver_name = "intel"
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x8086: ("1200",), 0x1C2C: ("1200",)}
    named_after_machine: ClassVar[bool] = True

    def unit_name(self, guests: Sequence[PciFunction]) -> str:
        """Return the name of a card's deployable: that of its last function."""
        return self.name_of(guests[-1].address)

    def device(self, scan: Scan, card: Card) -> Device:
        function = card.function
        # The existing service has a trait of its own for one card.
        product_id = f"CUSTOM_FPGA_PRODUCT_ID_{function.product:04X}"
        named = self.entry(function).description.traits or (product_id,)
        functions = (id_ for ids in self._functions(scan, card).values() for id_ in ids)
        loaded = [f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{id_.upper()}" for id_ in uuids(functions)]
        loaded += [f"CUSTOM_FPGA_REGION_INTEL_{id_.upper()}" for id_ in self._regions(card)]
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"0x{function.vendor:04x}",
            model=self.model(function, self.names(scan)),
            control_path=info_of(function.address),
            deployables=(self.card_deployable(card, ("CUSTOM_FPGA_INTEL", *named), loaded),),
            std_board_info={"product_id": f"0x{function.product:04x}"},
            vendor_board_info="miss_vb_info",
        )

    def load(self, card: Card, image_path: str, progress: Progress) -> None:
        """See FpgaDriver; the region must be the image's before, and the function after."""
        path = self.host.realpath(image_path)
        try:
            image = parse_image(*self.host.read_start(path, _MAX_METADATA + 1024))
        except ValueError as error:
            self.failed("program", f"the image cannot be loaded: {error}")
        regions = self._regions(card)
        if image.region not in regions:
            has = ", ".join(regions) or "none that can be read; bind the driver of the card"
            self.failed(
                "program", f"the image is for region {image.region}, and {card.key} has {has}"
            )
        scan = Scan(self.host)
        for address in self._disabled(scan, card):
            self.failed("program", f"the port of {address} is disabled. {_BIND_AGAIN}")
        before = self._functions(scan, card)
        progress(0.1, "loading the image")
        self.host.privileged.run(actions.ProgramIntelFpga(card.function.address, path))
        progress(0.9, "reading the functions")
        after = self._functions(Scan(self.host), card)
        wrong = [
            f"{address} has function {', '.join(ids) or 'none'}"
            for address, ids in after.items()
            if ids != before.get(address) and not set(ids) <= set(image.functions)
        ]
        if not wrong and not {id_ for ids in after.values() for id_ in ids} & set(image.functions):
            wrong = [f"{card.key} does not have it"]
        if wrong:
            self.failed(
                "program",
                f"the image has function {', '.join(image.functions)}, and after it was loaded "
                f"{'; '.join(wrong)}",
            )

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; errors of the card and its ports, power states, and the last load.

        Raises exception.HostError for a file that is there and cannot be read.
        """
        card = self.card(device_key, "health", scan)
        for unit in self._units(card.function.address, _UNITS):
            for name, file, words in _CARD_ERRORS:
                if _number(self._value(f"{unit}/{file}")):
                    yield Signal("fpga", "dfl_error", name, words)
            for manager in self._below(unit, "dfl-fme-mgr.", "fpga_manager"):
                state = self._value(f"{manager}/state")[:40]
                # "write error", for example: fpga_mgr_states in the kernel.
                if state.endswith(" error"):
                    text = f"the last image was not loaded: {state}"
                    yield Signal("fpga", "manager", state, text)
        if self._disabled(scan, card):
            # The manager says so a moment after the kernel has disabled the ports for an image.
            self.host.pause(_MOMENT)
            loading = any(
                self._value(f"{manager}/state") in _LOADING
                for unit in self._units(card.function.address, _UNITS)
                for manager in self._below(unit, "dfl-fme-mgr.", "fpga_manager")
            )
            for address in self._disabled(scan, card):
                if not loading:
                    text = f"the port of {address} is disabled"
                    yield Signal("fpga", "port", "disabled", text)
        for function in (card.function, *scan.virtual_functions(card.address)):
            for port in self._units(function.address, _PORTS):
                if _number(self._value(f"{port}/errors/errors")):
                    text = f"errors of the port of {function.address}"
                    yield Signal("fpga", "dfl_error", "port_errors", text)
                power = _number(self._value(f"{port}/power_state"))
                if power in _POWER_STATES:
                    text = f"power state of {function.address} {_POWER_STATES[power]}"
                    yield Signal("fpga", "power_state", power, text)

    def _units(self, address: PciAddress, starts: tuple[str, ...]) -> Iterator[str]:
        """Yield the directories of a function whose names start with one of these words."""
        for root in _ROOTS:
            place = f"/sys/bus/pci/devices/{address}/{root}"
            for region in self.names_in(place):
                for name in self.names_in(f"{place}/{region}"):
                    if name.startswith(starts):
                        yield f"{place}/{region}/{name}"

    def _functions(self, scan: Scan, card: Card) -> dict[PciAddress, tuple[str, ...]]:
        """Return the ids of what is loaded into the ports, by the function that has the port."""
        return {
            function.address: uuids(
                self.text(f"{port}/afu_id") for port in self._units(function.address, _PORTS)
            )
            for function in (card.function, *scan.virtual_functions(card.address))
        }

    def _disabled(self, scan: Scan, card: Card) -> list[PciAddress]:
        """Return the functions with a port that the kernel has disabled, and does not read.

        After an image that was not loaded a port stays disabled, even when a later one is loaded,
        until the driver of the card is bound again: ``fpga_region_program_fpga`` enables ports
        after success only, and dfl-afu-main.c counts how often a port was disabled.
        """
        addresses = []
        for function in (card.function, *scan.virtual_functions(card.address)):
            for port in self._units(function.address, _PORTS):
                try:
                    self.host.read_text(f"{port}/afu_id")
                except exception.HostError as error:
                    if error.fields.get("errno") == errno.EBUSY:
                        addresses.append(function.address)
        return addresses

    def _regions(self, card: Card) -> tuple[str, ...]:
        """Return the ids of the regions of a card that can be reconfigured."""
        texts = []
        for unit in self._units(card.function.address, _UNITS):
            texts.append(self.text(f"{unit}/pr/interface_id"))
            texts += [
                self.text(f"{region}/compat_id")
                for region in self._below(unit, "dfl-fme-region.", "fpga_region")
            ]
        return uuids(texts)

    def _below(self, unit: str, start: str, kind: str) -> Iterator[str]:
        """Yield the objects of a class below the parts of a unit whose names start with a word."""
        for name in self.names_in(unit):
            if name.startswith(start):
                for item in self.names_in(f"{unit}/{name}/{kind}"):
                    yield f"{unit}/{name}/{kind}/{item}"

    def _value(self, path: str) -> str:
        """Return a file without white space around it, empty if there is none."""
        return (read_if_exists(self.host.read_text, path) or "").strip()


def _number(text: str) -> int:
    """Return the hexadecimal number in a file of errors or states, 0 if there is none."""
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
