# SPDX-License-Identifier: Apache-2.0
"""What a host has, what its drivers would offer, and what the next report would change.

Nothing is changed or sent: the drivers read the host, or an archive of one, as in a scan of the
agent. Placement is not asked, so claims of Nova are missing.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager, Load, load_nothing
from cyborg.agent.health import HealthChecks
from cyborg.agent.reporter import Reporter
from cyborg.drivers import health_policy
from cyborg.drivers.host import Host
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, Hardware
from cyborg.model.pci import PciAddress
from cyborg.model.report import Desired, DriverReport, DriverState, Report

T = TypeVar("T", Device, Hardware)

_BUS: Final = "The PCI functions of the host cannot be listed"


@dataclass(frozen=True)
class Row:
    """One device of the host, from all drivers that list it.

    ``type`` is the device type of an offered device, ``host_driver`` the kernel driver that is
    bound to it. ``reasons`` maps the drivers that list the device and do not offer it to the
    reason. ``units`` is the number that ``offered_by`` would offer.
    """

    address: str
    kind: str
    type: str | None
    vendor: str
    model: str
    host_driver: str | None
    numa_node: int | None
    offered_by: str | None
    units: int
    deployables: tuple[str, ...]
    reasons: Mapping[str, str]
    #: The drivers in ``reasons`` that are not enabled.
    idle: frozenset[str] = frozenset()

    @property
    def reason(self) -> str | None:
        """Return why the device is not offered, None when it is; idle drivers come last."""
        if self.offered_by is not None:
            return None
        enabled = {name: text for name, text in self.reasons.items() if name not in self.idle}
        texts = enabled or self.reasons
        if len(set(texts.values())) == 1:
            return next(iter(texts.values()))
        return "; ".join(f"{name}: {text}" for name, text in texts.items())


@dataclass(frozen=True)
class Difference:
    """A difference between two reports.

    ``what`` is ``driver``, ``device`` or ``hardware``; ``change`` is ``added``, ``changed`` or
    ``lost``. ``details`` are pairs of a field's name and its new value as text.
    """

    driver: str
    what: str
    key: str
    change: str
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Discovery:
    """The result of one scan; ``notes`` are sentences about what could not be read."""

    report: Report
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()


def discover(
    loaded: Sequence[LoadResult],
    host: Host,
    *,
    timeout: float,
    load: Load = load_nothing,
    desired: Desired | None = None,
    only: Set[str] = frozenset(),
    worker: Worker | None = None,
    traits: Mapping[str, Any] = MappingProxyType({}),
) -> Discovery:
    """Scan the host once with these drivers, each with a limit of ``timeout`` seconds.

    ``desired`` is what the conductor last required of the host: drivers and their options, created
    devices, and the deployables that it keeps. ``only`` names the drivers to call, empty for all.
    ``traits`` are the arguments of ``Reporter`` that say which traits it adds.
    A driver that fails or does not answer costs its own rows, and has a note.
    """
    worker = worker or Worker(patience=timeout)
    manager = DriverManager(loaded, load, desired)
    if only:
        for drivers in (manager.drivers, manager.idle, manager.failures):
            for name in drivers.keys() - only:
                del drivers[name]
    checks = HealthChecks(
        drivers=manager.drivers,
        devices=lambda: (),
        last_scan=lambda: scan,
        last_report=None,
        policy=health_policy.shipped(),
        on_change=lambda: None,
        worker=worker,
        enabled=False,
    )
    managed = desired.tree.deployables() if desired is not None else frozenset()
    scan = Scan(host, managed_deployables=managed)
    report = Reporter(manager, checks, worker, timeout=timeout, **traits).scan(scan)
    functions, error = _functions(scan, worker)
    notes = [
        f"Driver {driver.driver}: {driver.error.rstrip('.')}."
        for driver in report.drivers
        if driver.error is not None
    ]
    if error is not None:
        notes.append(f"{_BUS}: {error.rstrip('.')}.")
    return Discovery(report, tuple(_rows(report, functions)), tuple(notes))


def changes(before: Report, after: Report) -> list[Difference]:
    """Return what a report changes; the health of devices is not compared.

    A driver that failed keeps its devices and its hardware, like in the database.
    """
    old = {driver.driver: driver for driver in before.drivers}
    new = {driver.driver: driver for driver in after.drivers}
    result = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            result.append(Difference(name, "driver", name, "added", (("state", new[name].state),)))
        elif name not in new:
            result.append(Difference(name, "driver", name, "lost"))
        elif old[name].state is not new[name].state:
            details = (("state", new[name].state.value),)
            result.append(Difference(name, "driver", name, "changed", details))
        former = old.get(name, DriverReport(name, DriverState.STOPPED))
        current = new.get(name, DriverReport(name, DriverState.STOPPED))
        if current.state is DriverState.FAILED:
            continue
        result += _differences(name, "device", former.devices, current.devices)
        if current.hardware is not None:
            result += _differences(name, "hardware", former.hardware or (), current.hardware)
    return result


def restricted(report: Report, only: Set[str]) -> Report:
    """Return the part of a report about these drivers; all of it for an empty set."""
    drivers = (driver for driver in report.drivers if not only or driver.driver in only)
    return Report(tuple(drivers))


def _differences(
    driver: str, what: str, before: Sequence[T], after: Sequence[T]
) -> Iterator[Difference]:
    old, new = ({entry.key: entry for entry in entries} for entries in (before, after))
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            yield Difference(driver, what, key, "added")
        elif key not in new:
            yield Difference(driver, what, key, "lost")
        elif old[key] != new[key]:
            details = tuple(
                (name, _text(value))
                for name, value in vars(new[key]).items()
                if vars(old[key])[name] != value
            )
            yield Difference(driver, what, key, "changed", details)


def _text(value: Any) -> str:
    """Return a plain value as text, and the number of the parts of any other."""
    if isinstance(value, tuple | dict):
        return f"{len(value)} of them"
    return str(value)


def _functions(scan: Scan, worker: Worker) -> tuple[Mapping[PciAddress, PciFunction], str | None]:
    """Return the functions of a scan, and why they are missing; a file may hang."""
    try:
        return worker.read("the PCI bus", lambda: scan.functions), None
    except exception.HostError as error:
        return {}, str(error)


def _rows(report: Report, functions: Mapping[PciAddress, PciFunction]) -> Iterator[Row]:
    """Yield a row for each device that a driver lists, ordered by address."""
    entries: dict[tuple[str, str], list[tuple[DriverReport, Hardware]]] = {}
    for driver in report.drivers:
        hardware = driver.hardware
        if hardware is None:
            hardware = tuple(map(Hardware.of, driver.devices))
        for entry in hardware:
            function = _function(entry, functions)
            # A device that is no PCI function of the host is the driver's own.
            owner = "" if function is not None else driver.driver
            entries.setdefault((entry.key, owner), []).append((driver, entry))
    for (address, _), listed in sorted(entries.items()):
        yield _row(address, listed, _function(listed[0][1], functions))


def _function(entry: Hardware, functions: Mapping[PciAddress, PciFunction]) -> PciFunction | None:
    """Return the PCI function that an entry of the inventory is about, None if it is simulated.

    A simulated device can have the address of a function; it has another vendor id then.
    """
    address = parse_name(entry.key)
    function = functions.get(address) if address is not None else None
    if function is None or not entry.vendor.startswith("0x"):
        return function
    return function if entry.vendor.lower() == f"0x{function.vendor:04x}" else None


def _row(
    address: str, listed: Sequence[tuple[DriverReport, Hardware]], function: PciFunction | None
) -> Row:
    offers = [(driver, entry) for driver, entry in listed if entry.offered]
    driver, entry = (offers or listed)[0]
    devices = [device for device in driver.devices if device.key == address]
    deployables = [deployable for device in devices for deployable in device.deployables]
    return Row(
        address=address,
        kind=entry.kind,
        type=devices[0].type.value if devices and offers else None,
        vendor=entry.vendor,
        model=entry.model,
        host_driver=function.host_driver if function is not None else None,
        numa_node=devices[0].numa_node if devices else None,
        offered_by=driver.driver if offers else None,
        units=sum(len(deployable.handles) for deployable in deployables) if offers else 0,
        deployables=tuple(deployable.name for deployable in deployables) if offers else (),
        reasons={
            other.driver: item.reason or "its driver gives no reason"
            for other, item in listed
            if not item.offered
        },
        idle=frozenset(other.driver for other, _ in listed if other.state is DriverState.STOPPED),
    )
