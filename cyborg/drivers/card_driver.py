# SPDX-License-Identifier: Apache-2.0
"""The base classes of drivers for PCI cards, such as the GPUs of one vendor.

A subclass says which functions it knows and how the API shows them. What guests may get of them
comes from the survey (``pci_survey``). The list of hardware, the clean steps, the layouts and the
reset are here, once for all drivers.
"""

import abc
import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import catalogue, function_cleaning, lasting_settings, pci_ids, vf_layout
from cyborg.drivers.base import CardLayouts, CleanStep, Driver, Progress, ResetLevel, no_progress
from cyborg.drivers.catalogue import Entry
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.function_cleaning import Erasure, FunctionCleaner
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.pci_survey import C, Card, Survey
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import RefusalLog, Scan
from cyborg.drivers.vf_layout import layout_name
from cyborg.model.cleaning import CleanLevel, HostClean, host_clean
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress, deployable_name
from cyborg.model.work import HandleTask


@dataclass
class _Surveyed(Generic[C]):
    """The cards of a scan and of created devices, with what is computed of them when needed."""

    scan: Scan
    created: Mapping[str, Device]
    by_key: Mapping[str, C]
    names: pci_ids.Names | None = None
    #: The names of clean steps, by card and function.
    clean_names: dict[tuple[str, PciAddress], Sequence[str]] = field(default_factory=dict)


class CardDriver(Driver, Generic[C]):
    """A driver whose devices come from the survey of the PCI bus.

    ``type`` is that of its devices. ``host_name`` is the first part of the names of deployables.
    """

    type: ClassVar[DeviceType]
    #: The group of the driver's options, with the option ``clean``.
    group: ClassVar[str]
    #: Drivers of the existing service that name deployables by the name of the machine, and not by
    #: option ``[DEFAULT] host``. Allocations refer to these names, so they must not change.
    named_after_machine: ClassVar[bool] = False
    #: Whether drivers of the host may take new virtual functions; None leaves it to the host.
    autoprobe: ClassVar[bool | None] = None

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self.host_name: str = socket.gethostname() if self.named_after_machine else conf.host
        self.catalogue = catalogue.read(conf)
        clean = self.read_clean(conf)
        self._clean = CleanLevel(clean) if clean else None
        self.device_type = self.type.value
        self._name_cache = pci_ids.NameCache()
        self._refusals = RefusalLog()
        self._survey = Survey(self.host_name, self.refusal)
        self._surveyed: _Surveyed[C] | None = None

    def read_clean(self, conf: cfg.ConfigOpts) -> str | None:
        """Return the value of the option ``clean``."""
        clean: str | None = conf[self.group].clean
        return clean

    @abc.abstractmethod
    def selected(self, scan: Scan) -> Iterable[C]:
        """Return the cards of the driver's kind, with what the driver knows of them; see Card."""

    @abc.abstractmethod
    def device(self, scan: Scan, card: C) -> Device:
        """Return a card of which something is offered; the base adds the facts of the scan.

        ``deployable`` makes its parts. Raises exception.HostError for a card that has just gone.
        """

    def completed(self, scan: Scan, card: C) -> C:
        """Return a card from the survey, with what the driver finds out only now."""
        return card

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """Return why the driver itself does not offer a function, as a clause; None if it does.

        The ownership check goes first, so the method need not know what the host or others use. A
        virtual function whose card does not have its layout yet is refused without that check.
        """
        return None

    def kind(self, function: PciFunction) -> str:
        """Return the word for a card in the list of hardware."""
        return self.type.value

    def capability(self, scan: Scan, card: C, function: PciFunction) -> dict[str, Any]:
        """Return what the list of hardware shows about a function of a card."""
        first, *others = (
            self.scanned_clean_names(scan, card, guest) for guest in card.guests or (function,)
        )
        clean = [name for name in first if all(name in other for other in others)]
        return {"pci_class": f"{function.class_code:06x}", "clean": clean}

    def clean_names(self, scan: Scan, card: C, function: PciFunction) -> Sequence[str]:
        """Return the names of the safe clean steps of a function that guests get."""
        return function_cleaning.step_names(self.host, scan, function)

    def scanned_clean_names(self, scan: Scan, card: C, function: PciFunction) -> Sequence[str]:
        """Return ``clean_names``, which read the host, as they were when the scan first needed it.

        ``card`` is one of ``cards``.
        """
        names, key = self._survey_of(scan).clean_names, (card.key, function.address)
        if key not in names:
            names[key] = self.clean_names(scan, card, function)
        return names[key]

    def erasure(self, function: PciFunction) -> Erasure:
        """Return how the data on a card is erased; ``function`` is its physical function."""
        return Erasure()

    def clean_step(self, name: str, card: C, task: HandleTask) -> CleanStep:
        """Return the step of this name for a unit of a card."""
        cleaner = FunctionCleaner(
            *(self.host, self.name, address_of(task.handle_key)),
            together=frozenset(part.address for part in card.parts if card.together),
            erasing=self._survey.erasing,
            erasure=self.erasure(card.function),
        )
        (step,) = cleaner.steps([name])
        return step

    def name_of(self, address: PciAddress) -> str:
        """Return the name of a function's deployable."""
        return deployable_name(self.host_name, address)

    def cards(self, scan: Scan) -> Collection[C]:
        """Return all cards of the driver's kind, ordered by key; computed once for a scan."""
        return self.by_key(scan).values()

    def card(self, key: str, verb: str, scan: Scan | None = None) -> C:
        """Return the card of a device; without ``scan`` the host is read again.

        Raises exception.DriverFailed, as the result of ``verb``, if the host has no such card.
        """
        cards = self.by_key(scan or Scan(self.host))
        if key not in cards:
            reason = f"{key} is not on the bus"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return cards[key]

    def by_key(self, scan: Scan) -> Mapping[str, C]:
        """Return the cards of the driver's kind by their keys; see ``cards``."""
        return self._survey_of(scan).by_key

    def _survey_of(self, scan: Scan) -> _Surveyed[C]:
        last = self._surveyed
        if last is None or last.scan is not scan or last.created is not self.operator_created:
            cards = self._survey.cards(scan, self.selected(scan))
            by_key = {card.key: self.completed(scan, card) for card in cards}
            last = self._surveyed = _Surveyed(scan, self.operator_created, by_key)
        return last

    def discover(self, scan: Scan) -> list[Device]:
        cards = self.cards(scan)
        self._refusals.log(
            (key, source, reason)
            for card in cards
            if (source := self.source(card)) is not None
            for key, reason in self.reasons(card)
        )
        devices = []
        for card in cards:
            if card.reason is None:
                # A function that cannot be read has just been removed.
                with contextlib.suppress(exception.HostError):
                    device = self.with_facts(scan, card, self.device(scan, card))
                    deployables = (
                        replace(unit, clean=self.cleaning(scan, card, unit))
                        for unit in device.deployables
                    )
                    device = replace(device, deployables=tuple(deployables))
                    # What has no clean step, and what has just been removed, have the same files.
                    if card.present is None or self.host.exists(f"/sys/bus/pci/devices/{card.key}"):
                        devices.append(device)
        return devices

    def with_facts(self, scan: Scan, card: C, device: Device) -> Device:
        """Return a device with the facts of its card; see ``Scan.with_facts``."""
        return device if card.present is None else scan.with_facts(device, card.present)

    def cleaning(self, scan: Scan, card: C, unit: Deployable) -> HostClean | None:
        """Return what the host says about the cleaning of a deployable of a card.

        All functions of the deployable must have a clean step.
        """
        functions = [self._function(scan, handle.key) for handle in unit.handles]
        cleanable = all(self.scanned_clean_names(scan, card, function) for function in functions)
        return host_clean(self._clean, cleanable=cleanable)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the steps of the unit's function, see ``clean_names``.

        Another kind of card can be in the slot after the host was off: it is not touched.
        """
        scan = Scan(self.host, all_managed=True)
        try:
            function = self._function(scan, task.handle_key)
            cards = (card for card in self.cards(scan) if function in (card.present, *card.parts))
            if (card := next(cards, None)) is None:
                raise exception.HostError(
                    action=f"looking for {task.handle_key}",
                    reason=f"the card there is not one of the {self.name}",
                )
        except exception.HostError as error:
            raise exception.DriverFailed(
                driver=self.name, verb="clean_steps", reason=str(error)
            ) from error
        names = self.clean_names(scan, card, function)
        return [self.clean_step(name, card, task) for name in names]

    def settings(self, scan: Scan, device_key: str, handle_key: str) -> Mapping[str, str]:
        """See Driver; those of a unit that is a whole function."""
        address = parse_name(handle_key)
        function = None if address is None else scan.functions.get(address)
        return {} if function is None else lasting_settings.read(self.host, function)

    def _function(self, scan: Scan, key: str) -> PciFunction:
        """Return the function that a unit is, or is a part of.

        Raises exception.HostError if it has gone.
        """
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
            reasons = dict(self.reasons(card))
            for function in (card.function, *scan.virtual_functions(card.address)):
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
                    capability=self.capability(scan, card, function),
                )
                items.append(item)
        return sorted(items, key=lambda item: item.key)

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the cards, and what guests could get of them; no card of an unknown id."""
        return {
            address
            for card in self.cards(scan)
            if card.parts or card.present is None
            for address in (card.address, *(part.address for part in card.parts))
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
        """See Driver; the list of hardware has the reason of a failure until a call succeeds."""
        try:
            self._divide(card_key, layout, progress)
        except exception.CyborgError as error:
            self._survey.failures[card_key] = str(error).rstrip(".")
            raise
        self._survey.failures.pop(card_key, None)

    def _divide(self, card_key: str, layout: str, progress: Progress) -> None:
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

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; the function of the card."""
        self.reset_function(self.card(device_key, "reset").address, level)

    def reset_function(self, function: PciAddress, level: ResetLevel) -> None:
        """Have the kernel reset a function; it refuses a bus with other functions on it.

        Source: ``pci_parent_bus_reset`` in ``drivers/pci/pci.c`` of Linux 6.12.
        """
        method = "bus" if level is ResetLevel.CARD else None
        self.host.privileged.run(actions.Reset(function, method))

    def deployable(
        self,
        function: PciFunction,
        *,
        resource_class: str,
        driver_name: str,
        traits: Sequence[str] = (),
        product: Collection[str] = (),
        more_info: Mapping[str, str] = MappingProxyType({}),
    ) -> Deployable:
        """Return one function as a deployable with one unit, for a guest that gets it whole.

        ``product`` are the traits that name the product; ``more_info`` is added to the address in
        what Nova gets.
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
            product_traits=tuple(product),
        )

    def names(self, scan: Scan) -> pci_ids.Names:
        """Return the names of the cards' vendors and products, as far as the host knows them."""
        surveyed = self._survey_of(scan)
        if surveyed.names is None:
            functions = (card.present for card in surveyed.by_key.values())
            ids = [(item.vendor, item.product) for item in functions if item is not None]
            surveyed.names = self._name_cache.lookup(self.host, ids)
        return surveyed.names

    def model(self, function: PciFunction, names: pci_ids.Names) -> str:
        """Return the name of a function's model."""
        model = self.entry(function).description.model
        return names.product(function.vendor, function.product, model)

    def entry(self, function: PciFunction) -> Entry:
        """Return the entry of a function in the device catalogue."""
        return self.catalogue.entry(
            function.vendor, function.product, function.class_code, subsystem=function.subsystem
        )

    def platform_reason(self, function: PciFunction) -> str | None:
        """Return why a function is one of the platform; see ``Catalogue.platform_reason``."""
        return self.catalogue.platform_reason(
            function.vendor, function.product, function.class_code, subsystem=function.subsystem
        )

    def source(self, card: C) -> str | None:
        """Return what selects a card, for the log; None for one that is only listed."""
        return f"driver {self.name}"

    def reasons(self, card: C) -> Iterator[tuple[str, str]]:
        """Yield why a card, and functions of it, are not offered: key and reason."""
        if card.reason is not None:
            yield card.key, card.reason
        for address, reason in card.refused.items():
            if address != card.address:
                yield str(address), reason


class PhysicalCardDriver(CardDriver[Card]):
    """A driver whose devices are physical PCI functions, with their virtual functions if any.

    Which of them are its cards says the device catalogue (``driver`` of an entry), unless a
    subclass selects them by vendor and class alone (``selects``). A card of ``kinds`` that the
    catalogue lacks is listed with the remedy.
    """

    #: Vendor → first digits of the class codes of the cards that the driver is for.
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = MappingProxyType({})

    #: Whether the functions that guests get of a card belong together: all of them are offered, or
    #: none.
    together: ClassVar[bool] = False

    def selects(self, function: PciFunction) -> bool:
        """Return whether a physical function is of the driver's kind."""
        return self.entry(function).driver == self.name

    def unknown_id(self, function: PciFunction) -> str | None:
        """Return why a function is not known, as a clause; None if it is, or is no such card."""
        digits, entry = f"{function.class_code:06x}", self.entry(function)
        if not digits.startswith(self.kinds.get(function.vendor, ())):
            return None
        if entry.driver is not None or entry.names(function.vendor, function.product):
            return None
        ids = f"{function.vendor:04x}:{function.product:04x}"
        return (
            f"unknown id {ids}: the device catalogue does not have it; to offer the card, add an "
            f"entry with pci_ids: [{ids}] and driver: {self.name} to [generic_driver] devices_dir"
        )

    def guests(self, scan: Scan, function: PciFunction) -> Sequence[PciFunction]:
        """Return what guests get of a card, by default its virtual functions if it has any."""
        return scan.virtual_functions(function.address) or (function,)

    def unit_name(self, guests: Sequence[PciFunction]) -> str | None:
        """Return the name of the deployable to which all of a card's ``guests`` belong.

        None, by default: each function is a deployable.
        """
        return None

    def no_guests(self, function: PciFunction) -> str:
        """Return why guests get nothing of a card without ``guests``, as a clause."""
        return "it has no function that a guest can have"

    def desired_vfs(self, function: PciFunction) -> int | None:
        """Return how many virtual functions the configuration requests for a card; None: any."""
        return None

    def stopped(self, scan: Scan, function: PciFunction) -> bool:
        """Return whether some of a card's virtual functions do not work until they are started.

        ``partition`` starts them.
        """
        return False

    def selected(self, scan: Scan) -> Iterator[Card]:
        """See CardDriver; the physical functions of the driver's kind, and those it may miss."""
        for function in scan.functions.values():
            if function.parent is not None:
                continue
            if not self.selects(function):
                if (reason := self.unknown_id(function)) is not None:
                    yield Card(function.address, function, reason=reason)
                continue
            parts, desired = tuple(self.guests(scan, function)), self.desired_vfs(function)
            entry = self.entry(function)
            refused = entry.refused if entry.driver == self.name else None
            yield Card(
                *(function.address, function, parts),
                unit=self.unit_name(parts),
                together=self.together,
                desired_vfs=desired,
                stopped=desired is not None and self.stopped(scan, function),
                refused={} if refused is None else {part.address: refused for part in parts},
                reason=None if parts else self.no_guests(function),
            )


class ListedCardDriver(PhysicalCardDriver):
    """A driver for the cards of one vendor that the device catalogue lists.

    Guests get whole cards in units of ``resource_class``, and virtual functions in units of
    ``vf_resource_class``. The option ``virtual_functions`` says how many each card gets, if the
    cards are ``divisible``.
    """

    resource_class: ClassVar[str]
    vf_resource_class: ClassVar[str]
    #: The name of the vendor in deployables, and the first word of the trait with the product id.
    vendor_word: ClassVar[str]
    trait_word: ClassVar[str]
    divisible: ClassVar[bool] = True
    #: Whether guests can get all cards of the host together: the option ``group_size``.
    joinable: ClassVar[bool] = False
    vendor_board_info: ClassVar[str | None] = None

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._vfs_wanted: int | None = (
            conf[self.group].virtual_functions if self.divisible else None
        )
        self._group_size: int = conf[self.group].group_size if self.joinable else 1
        if self._group_size > 1 and self._vfs_wanted:
            reason = f"Options [{self.group}] group_size and virtual_functions exclude each other."
            raise exception.ConfigError(reason=reason)

    def selected(self, scan: Scan) -> Iterator[Card]:
        """See CardDriver; with ``group_size`` the cards that share links are one.

        All cards of the driver belong to it: a group of some of them could get other members when
        a card is added or fails.
        """
        cards = super().selected(scan)
        if self._group_size == 1:
            yield from cards
            return
        members: list[PciFunction] = []
        for card in cards:
            if card.parts == (card.present,) and not card.refused:
                members.append(card.function)
            else:
                reason = card.reason or next(iter(card.refused.values()), None)
                yield replace(
                    card,
                    parts=(),
                    refused={},
                    reason=reason
                    or "it has virtual functions, and option group_size is for whole cards",
                )
        if members:
            members.sort(key=lambda member: member.address)
            count, reason = len(members), None
            if count != self._group_size:
                reason = f"{count} whole cards are there; option group_size is {self._group_size}"
            first = members[0].address
            yield Card(
                *(first, members[0], tuple(members)),
                unit=self.name_of(first),
                together=True,
                reason=reason,
            )

    def capability(self, scan: Scan, card: Card, function: PciFunction) -> dict[str, Any]:
        capability = super().capability(scan, card, function)
        if card.unit is not None:
            capability["functions"] = [str(part.address) for part in card.parts]
        return capability

    def each_card(
        self, scan: Scan, device_key: str, ask: Callable[[str], Iterable[Signal]]
    ) -> Iterator[Signal]:
        """Yield the signals of all cards of a device, with the address of the one that tells.

        A card that cannot be asked does not hide the others: its error is raised after them.
        """
        card = self.card(device_key, "health", scan)
        if card.unit is None:
            yield from ask(device_key)
            return
        errors: list[exception.CyborgError] = []
        for part in card.parts:
            try:
                for signal in ask(str(part.address)):
                    yield replace(signal, evidence=f"{part.address}: {signal.evidence}")
            except exception.CyborgError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def desired_vfs(self, function: PciFunction) -> int | None:
        return self._vfs_wanted

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits that name the product of a card."""
        return (f"CUSTOM_{self.trait_word}_{function.product:04X}",)

    def traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits of a card and of its virtual functions; none may change in use.

        Those of the device catalogue, such as CUSTOM_GAUDI3, follow the others.
        """
        own = "OWNER_CYBORG", *self.product_traits(function)
        return tuple(dict.fromkeys((*own, *self.entry(function).description.traits)))

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
            deployables=self._units(card),
            std_board_info=dict(self.std_board_info(function)),
            vendor_board_info=self.vendor_board_info,
        )

    def _units(self, card: Card) -> tuple[Deployable, ...]:
        units = tuple(
            self.deployable(
                guest,
                resource_class=(
                    self.resource_class if guest.parent is None else self.vf_resource_class
                ),
                driver_name=self.vendor_word,
                traits=self.traits(card.function),
                product=self.product_traits(card.function),
            )
            for guest in card.guests
        )
        if card.unit is None:
            return units
        handles = tuple(handle for unit in units for handle in unit.handles)
        return (replace(units[0], handles=handles, group_size=len(handles)),)

    def served(self, scan: Scan, device_key: str, verb: str) -> PciFunction:
        """Return the function of a card that a driver of the host has, so that it can be asked.

        Raises exception.DriverCannot, about ``verb``, for a card without a driver, or in a guest.
        """
        parts = {str(part.address): part for card in self.cards(scan) for part in card.parts}
        function = parts.get(device_key) or self.card(device_key, verb, scan).function
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
    """Return the address in the key of a device or handle (ValueError for any other text).

    The key of a mediated device has a mark after the address of its function.
    """
    address = parse_name(key.partition("/")[0])
    if address is None:
        raise ValueError(f"{key!r} is not a PCI address")
    return address
