# SPDX-License-Identifier: Apache-2.0
"""The base class of drivers for PCI cards of one kind, such as the GPUs of one vendor.

A subclass says which functions it knows and how the API shows them. The guard against functions in
use, the names, the list of hardware and the reset are here, once for all.
"""

import abc
import contextlib
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import catalogue, function_cleaning, pci_ids, vf_layout
from cyborg.drivers.base import CardLayouts, CleanStep, Driver, Progress, ResetLevel, no_progress
from cyborg.drivers.function_cleaning import FunctionCleaner
from cyborg.drivers.host import Host, read_if_exists
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import RefusalLog, Scan
from cyborg.drivers.vf_layout import Division, layout_name
from cyborg.model.cleaning import CleanLevel, host_clean
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask


@dataclass(frozen=True)
class Card:
    """A physical function of the driver's kind, and what guests may get of it.

    ``guests`` are the functions that guests may get now, each alone: the physical function itself,
    or virtual functions of it. ``refused`` maps the others to the reason, as a clause. ``reason``
    says why nothing of the card is offered; None if something is.
    """

    function: PciFunction
    guests: tuple[PciFunction, ...] = ()
    refused: Mapping[PciAddress, str] = field(default_factory=dict)
    reason: str | None = None
    division: Division | None = None

    @property
    def key(self) -> str:
        """Return the key of the device."""
        return str(self.function.address)


class CardDriver(Driver):
    """A driver whose devices are physical PCI functions, with their virtual functions if any.

    ``type`` is that of its devices. ``host_name`` is the first part of the names of deployables.
    """

    type: ClassVar[DeviceType]
    #: The group of the driver's options, with the option ``clean``.
    group: ClassVar[str]
    #: Drivers of the existing service that name deployables by the name of the machine, and not by
    #: option ``[DEFAULT] host``. Allocations refer to these names, so they must not change.
    named_after_machine: ClassVar[bool] = False
    #: Whether the functions that guests get of a card belong together: all of them are offered, or
    #: none.
    together: ClassVar[bool] = False
    #: Whether drivers of the host may take new virtual functions; None leaves it to the host.
    autoprobe: ClassVar[bool | None] = None

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self.host_name: str = socket.gethostname() if self.named_after_machine else conf.host
        self.catalogue = catalogue.read(conf)
        clean = conf[self.group].clean
        self._clean = CleanLevel(clean) if clean else None
        #: The functions whose disks are erased now, see FunctionCleaner.
        self._erasing: set[PciAddress] = set()
        self.device_type = self.type.value
        self._name_cache = pci_ids.NameCache()
        self._refusals = RefusalLog()
        #: The last scan, with the cards that follow from it.
        self._survey: tuple[Scan, Sequence[Card]] | None = None

    @abc.abstractmethod
    def selects(self, function: PciFunction) -> bool:
        """Return whether a physical function is of the driver's kind."""

    @abc.abstractmethod
    def device(self, scan: Scan, card: Card) -> Device:
        """Return a card of which something is offered; the base adds the facts of the scan.

        ``deployable`` makes its parts. Raises exception.HostError for a card that has just gone.
        """

    def kind(self, function: PciFunction) -> str:
        """Return the word for a card in the list of hardware."""
        return self.type.value

    def guests(
        self, scan: Scan, function: PciFunction, vfs: Sequence[PciFunction]
    ) -> Sequence[PciFunction]:
        """Return what guests get of a card, by default its virtual functions if it has any."""
        return vfs or (function,)

    def unit_name(self, guest: PciFunction, guests: Sequence[PciFunction]) -> str:
        """Return the name of the deployable to which one of a card's ``guests`` belongs.

        By default, each function is a deployable.
        """
        return self.name_of(guest.address)

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """Return why the driver itself does not offer a function, as a clause; None if it does.

        The guard is asked before: the method need not know what the host or others use.
        """
        return None

    def clean_names(self, scan: Scan, function: PciFunction) -> Sequence[str]:
        """Return the names of the safe clean steps of a function that guests get."""
        return function_cleaning.step_names(self.host, scan, function)

    def clean_step(self, name: str, function: PciFunction) -> CleanStep:
        """Return the step of this name for a function."""
        cleaner = FunctionCleaner(*(self.host, self.name, function.address), erasing=self._erasing)
        (step,) = cleaner.steps([name])
        return step

    def stopped(self, scan: Scan, function: PciFunction, vfs: Sequence[PciFunction]) -> bool:
        """Return whether some of a card's virtual functions do not work until they are started.

        ``partition`` starts them.
        """
        return False

    def desired_vfs(self, function: PciFunction) -> int | None:
        """Return how many virtual functions the configuration requests for a card; None: any."""
        return None

    def name_of(self, address: PciAddress) -> str:
        """Return the name of a function's deployable.

        The format must not change, because existing allocations refer to the name.
        """
        return f"{self.host_name}_{address}"

    def cards(self, scan: Scan) -> Sequence[Card]:
        """Return all cards of the driver's kind, ordered by address; computed once for a scan."""
        survey = self._survey
        if survey is None or survey[0] is not scan:
            survey = self._survey = scan, tuple(self._find(scan))
        return survey[1]

    def card(self, key: str, verb: str, scan: Scan | None = None) -> Card:
        """Return the card of a device; without ``scan`` the host is read again.

        Raises exception.DriverFailed, as the result of ``verb``, if the host has no such card.
        """
        for card in self.cards(scan or Scan(self.host)):
            if card.key == key:
                return card
        raise exception.DriverFailed(driver=self.name, verb=verb, reason=f"{key} is not on the bus")

    def discover(self, scan: Scan) -> list[Device]:
        cards = self.cards(scan)
        self._refusals.log(
            (address, f"driver {self.name}", reason)
            for card in cards
            for address, reason in self._reasons(card)
        )
        devices = []
        for card in cards:
            if card.reason is None:
                # A function that cannot be read has just been removed.
                with contextlib.suppress(exception.HostError):
                    device = scan.with_facts(self.device(scan, card), card.function)
                    device = self._with_cleaning(scan, device)
                    # What has no clean step, and what has just been removed, have the same files.
                    if self.host.exists(f"/sys/bus/pci/devices/{card.function.address}"):
                        devices.append(device)
        return devices

    def _with_cleaning(self, scan: Scan, device: Device) -> Device:
        """Return a device whose deployables say whether all their functions can be cleaned."""
        deployables = []
        for deployable in device.deployables:
            functions = [self._function(scan, handle.key) for handle in deployable.handles]
            cleanable = all(self.clean_names(scan, function) for function in functions)
            clean = host_clean(self._clean, cleanable=cleanable)
            deployables.append(replace(deployable, clean=clean))
        return replace(device, deployables=tuple(deployables))

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the steps of the unit's function, see ``clean_names``.

        Another kind of card can be in the slot after the host was off: it is not touched.
        """
        scan = Scan(self.host, all_managed=True)
        try:
            function = self._function(scan, task.handle_key)
            if not any(
                function in (card.function, *card.guests) or function.address in card.refused
                for card in self.cards(scan)
            ):
                raise exception.HostError(
                    action=f"looking for {task.handle_key}",
                    reason=f"the card there is not one of the {self.name}",
                )
        except exception.HostError as error:
            raise exception.DriverFailed(
                driver=self.name, verb="clean_steps", reason=str(error)
            ) from error
        return [self.clean_step(name, function) for name in self.clean_names(scan, function)]

    def _function(self, scan: Scan, key: str) -> PciFunction:
        """Return the function that is a unit; raises exception.HostError if it has gone."""
        address = address_of(key)
        if address not in scan.functions:
            raise exception.HostError(
                action=f"looking for {key}", reason="it is not on the bus, or does not answer"
            )
        return scan.functions[address]

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all cards of the driver's kind, and the virtual functions that are refused."""
        names = self.names(scan)
        items = []
        for card in self.cards(scan):
            reasons = dict(self._reasons(card))
            for function in (card.function, *self._vfs(scan, card.function)):
                key = str(function.address)
                if function is not card.function and key not in reasons:
                    continue
                offered = function is card.function and card.reason is None
                item = Hardware(
                    key=key,
                    kind=self.kind(card.function),
                    vendor=names.vendor(function.vendor),
                    model=self.model(function, names),
                    offered=offered,
                    reason=None if offered else reasons.get(key),
                    num=max(1, len(card.guests)) if function is card.function else 1,
                    capability={
                        "pci_class": f"{function.class_code:06x}",
                        "clean": list(self._all_clean_names(scan, card.guests or (function,))),
                    },
                )
                items.append(item)
        return sorted(items, key=lambda item: item.key)

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the cards, and what guests get of them."""
        return {
            address
            for card in self.cards(scan)
            for address in (
                card.function.address,
                *(guest.address for guest in card.guests),
                *card.refused,
            )
        }

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        """See Driver; the cards for which the configuration requests a number of functions."""
        return [
            CardLayouts(
                card=card.key,
                layouts=division.layouts,
                current=division.layout,
                desired=layout_name(division.desired),
                deployables=division.deployables(self.host_name),
                refusal=division.refusal,
            )
            for card in self.cards(scan)
            if (division := card.division) is not None
        ]

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        scan = Scan(self.host)
        division = self.card(card_key, "partition", scan).division
        try:
            if division is None:
                raise ValueError(f"the configuration requests no layout of {card_key}")
            vf_layout.divide(
                *(scan, division, layout),
                host=self.host,
                progress=progress,
                autoprobe=self.autoprobe,
            )
        except ValueError as error:
            raise exception.DriverFailed(
                driver=self.name, verb="partition", reason=str(error)
            ) from error

    def _all_clean_names(self, scan: Scan, guests: Sequence[PciFunction]) -> list[str]:
        """Return the names of the clean steps that every one of these functions has."""
        first, *others = (self.clean_names(scan, guest) for guest in guests)
        return [name for name in first if all(name in other for other in others)]

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """Have the kernel reset the card; it refuses a bus with other functions on it.

        Source: ``pci_parent_bus_reset`` in ``drivers/pci/pci.c`` of Linux 6.12.
        """
        function = self.card(device_key, "reset").function.address
        method = "bus" if level is ResetLevel.CARD else None
        self.host.privileged.run(actions.Reset(function, method))

    def deployable(
        self,
        function: PciFunction,
        *,
        resource_class: str,
        driver_name: str,
        traits: Sequence[str] = (),
        more_info: Mapping[str, str] = MappingProxyType({}),
    ) -> Deployable:
        """Return one function as a deployable with one unit, for a guest that gets it whole.

        ``more_info`` is added to the address in what Nova gets.
        """
        address = function.address
        return Deployable(
            name=self.name_of(address),
            resource_class=resource_class,
            driver_name=driver_name,
            handles=(
                AttachHandle(str(address), AttachType.PCI, {**info_of(address), **more_info}),
            ),
            traits=tuple(traits),
            attributes=(
                Attribute("rc", resource_class),
                *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
            ),
        )

    def names(self, scan: Scan) -> pci_ids.Names:
        """Return the names of the cards' vendors and products, as far as the host knows them."""
        cards = (card.function for card in self.cards(scan))
        return self._name_cache.lookup(
            self.host, [(function.vendor, function.product) for function in cards]
        )

    def model(self, function: PciFunction, names: pci_ids.Names) -> str:
        """Return the name of a function's model."""
        entry = self.catalogue.entry(
            function.vendor, function.product, function.class_code, subsystem=function.subsystem
        )
        return names.product(function.vendor, function.product, entry.description.model)

    def _find(self, scan: Scan) -> Iterator[Card]:
        for function in scan.functions.values():
            if function.parent is not None or not self.selects(function):
                continue
            guests, refused = [], {}
            desired, vfs = self.desired_vfs(function), self._vfs(scan, function)
            division = None
            if desired is not None:
                stopped = self.stopped(scan, function, vfs)
                division = vf_layout.read(scan, function, desired, stopped=stopped)
            parts = self.guests(scan, function, vfs)
            together = frozenset(part.address for part in parts) if self.together else frozenset()
            for guest in parts:
                managed = scan.is_managed(self.unit_name(guest, parts))
                probe = guest.address not in self._erasing
                reason = scan.refusal(guest, managed=managed, probe=probe, together=together)
                reason = reason or self.refusal(scan, guest)
                if reason is None and not managed and division is not None and division.pending:
                    # A part that the conductor keeps may be in a guest.
                    reason = f"it is to be {division.goal}"
                    if guest is not function:
                        reason = f"its card {function.address} does not have its layout"
                if reason is None:
                    guests.append(guest)
                else:
                    refused[guest.address] = reason
            if self.together and refused:
                first, reason = next(iter(refused.items()))
                for guest in guests:
                    refused[guest.address] = f"guests get it together with {first}: {reason}"
                guests = []
            reason = None
            if not guests:
                reason = refused.pop(function.address, None)
                if reason is None and refused:
                    reason = f"none of its {len(refused)} virtual functions can be offered"
                reason = reason or "it has no function that a guest can have"
            yield Card(function, tuple(guests), refused, reason, division)

    def _vfs(self, scan: Scan, function: PciFunction) -> list[PciFunction]:
        """Return the virtual functions of a function, ordered by address."""
        if not function.vfs:
            return []
        return [vf for vf in scan.functions.values() if vf.parent == function.address]

    def _reasons(self, card: Card) -> Iterator[tuple[str, str]]:
        if card.reason is not None:
            yield card.key, card.reason
        for address, reason in card.refused.items():
            yield str(address), reason


class ListedCardDriver(CardDriver):
    """A driver for the cards of one vendor, whose product ids it lists.

    Guests get whole cards in units of ``resource_class``, and virtual functions in units of
    ``vf_resource_class``. The option ``virtual_functions`` says how many each card gets, if the
    cards are ``divisible``.
    """

    vendor: ClassVar[int]
    products: ClassVar[frozenset[int]]
    resource_class: ClassVar[str]
    vf_resource_class: ClassVar[str]
    #: The name of the vendor in deployables, and the first word of the trait with the product id.
    vendor_word: ClassVar[str]
    trait_word: ClassVar[str]
    divisible: ClassVar[bool] = True
    vendor_board_info: ClassVar[str | None] = None

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._vfs_wanted: int | None = (
            conf[self.group].virtual_functions if self.divisible else None
        )

    def selects(self, function: PciFunction) -> bool:
        return function.vendor == self.vendor and function.product in self.products

    def desired_vfs(self, function: PciFunction) -> int | None:
        return self._vfs_wanted

    def traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits of a card and of its virtual functions; none may change in use."""
        return "OWNER_CYBORG", f"CUSTOM_{self.trait_word}_{function.product:04X}"

    def std_board_info(self, function: PciFunction) -> Mapping[str, str | None]:
        """Return what the API shows as ``std_board_info``."""
        return {"product_id": f"{function.product:04x}"}

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=tuple(
                self.deployable(
                    guest,
                    resource_class=(
                        self.resource_class if guest.parent is None else self.vf_resource_class
                    ),
                    driver_name=self.vendor_word,
                    traits=self.traits(function),
                )
                for guest in card.guests
            ),
            std_board_info=dict(self.std_board_info(function)),
            vendor_board_info=self.vendor_board_info,
        )

    def served(self, scan: Scan, device_key: str, verb: str) -> PciFunction:
        """Return the function of a card that a driver of the host has, so that it can be asked.

        Raises exception.DriverCannot, about ``verb``, for a card without a driver, or in a guest.
        """
        function = self.card(device_key, verb, scan).function
        if function.host_driver is None or function.on_vfio:
            self._cannot(f"{verb} of {device_key} while no driver of the host has it")
        return function

    def attribute(self, device_key: str, name: str) -> str | None:
        """Return the text of a file of the card in sysfs, stripped; None if there is none.

        Raises exception.HostError for a file that cannot be read.
        """
        path = f"/sys/bus/pci/devices/{device_key}/{name}"
        text = read_if_exists(self.host.read_text, path)
        return None if text is None else text.strip()


def info_of(address: PciAddress) -> dict[str, str]:
    """Return the parts of an address as the rows of the existing service have them, in order."""
    return dict(sorted(address.info().items()))


def address_of(key: str) -> PciAddress:
    """Return the address that is the key of a device or handle (ValueError for any other text)."""
    address = parse_name(key)
    if address is None:
        raise ValueError(f"{key!r} is not a PCI address")
    return address
