# SPDX-License-Identifier: Apache-2.0
"""Reports: taken in under the host's lock, in one transaction, whatever they bring."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa

from cyborg.conductor import device_health
from cyborg.conductor.leases import check_epoch
from cyborg.conductor.reports import device_diff
from cyborg.conductor.reports.device_diff import DeviceDiff, StoredDevices
from cyborg.conductor.reports.driver_inventory import DriverInventory
from cyborg.conductor.tasks import set_up as installing
from cyborg.db import created_accelerators, events, host_inventory, hosts
from cyborg.db.base import Record
from cyborg.db.created_accelerators import Ordered
from cyborg.db.engine import Database, retried
from cyborg.db.models import Deployable, Device
from cyborg.model import device as facts
from cyborg.model.attribute import Origin
from cyborg.model.device import DeviceStatus
from cyborg.model.report import Acknowledged, DriverReport, DriverState, Report

LOG = logging.getLogger(__name__)


class ReportApplier:
    """Takes in what agents report of their hosts.

    New devices of the drivers named by ``auto_enable`` (``*``: of all) are put into service, the
    others wait for an operator. What is in service and has to be set up, for the first time or once
    more, is set up. ``wake`` is called when work waits after a commit.
    """

    def __init__(
        self, *, db: Database, auto_enable: frozenset[str], wake: Callable[[], None]
    ) -> None:
        self._db = db
        self._auto_enable = auto_enable
        self._wake = wake

    def report(self, service_host: str, epoch: int, report: Report) -> Acknowledged:
        """Write what the report changes; raises NotFound (no hello yet), StaleEpoch.

        Deployables that cannot be kept, because their name is another's, are refused with the
        reason; everything else of the report stands.
        """
        taken, waits = self._report(service_host, epoch, report)
        if waits:
            self._wake()
        return taken

    @retried
    def _report(self, service_host: str, epoch: int, report: Report) -> tuple[Acknowledged, bool]:
        """Answers as well whether there are devices to be set up."""
        with self._db.writer() as tx:
            host = hosts.lock_for_report(tx, service_host)
            check_epoch(host, service_host, epoch)
            # Of a host that is news there is nothing to read.
            known = StoredDevices.read(tx, host.id) if host.has_devices else StoredDevices()
            equipment = (
                DriverInventory.read(tx, host.id) if host.has_drivers else DriverInventory(host.id)
            )
            new = DeviceDiff(host.id, host.name, self._auto_enable)
            keepers: dict[str, str] = {}
            refused = self._compare(tx, report, known, new, equipment=equipment, keepers=keepers)
            changed = equipment.note_drivers(tx, self._db.now, report)
            uuids = _uuids(known, new)
            healths = device_health.of_report(report, uuids, known.devices)
            changed |= any(one.moves_offer for one in healths)
            device_diff.write(tx, self._db.now, new)
            device_health.write(tx, self._db.now, healths)
            unready = equipment.note_hardware(tx, self._db.now, report, uuids)
            set_up = self._set_up(tx, new, unready) if _is_unready(report) else []
            entries = [
                events.Entry("device", uuid, what, hostname=host.name, state=state)
                for uuid, what, state in new.history
            ]
            entries += device_health.entries(healths, host.name)
            events.record(tx, self._db.now, entries)
            desired = hosts.acknowledge(
                tx, self._db.now, host, report.digest(), changed=bool(new or set_up) or changed
            )
        for uuid, what, _ in new.history:
            LOG.info("Device %s on %s: %s", uuid, host.name, what)
        device_health.log(healths, host.name)
        if new.waiting:
            LOG.info("%d device(s) of %s wait to be enabled", new.waiting, host.name)
        return Acknowledged(desired, refused, keepers), bool(set_up)

    def _set_up(self, tx: sa.Connection, new: DeviceDiff, lately: set[str]) -> list[str]:
        """Begin to set up what is in service and needs it: new devices, and those that lately do.

        That one needed it before, too, proves nothing: it may just have been set up since this
        report was made. Answers their uuids.
        """
        served = DeviceStatus.ENABLED.value
        fresh = {one["uuid"] for one in new.devices if one["status"] == served}
        if not fresh | lately:
            return []
        which = Device.uuid.in_(sorted(fresh | lately))
        uuids = installing.repeat(tx, self._db.now, which, None)
        new.history += [(one, DeviceStatus.INSTALLING.value, None) for one in uuids]
        return uuids

    @retried
    def published(self, service_host: str, epoch: int, refused: Mapping[str, str]) -> None:
        """Note which deployables Placement refuses (name → reason), so that none is bound."""
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            for row in host_inventory.deployables(tx, host.id):
                if row.publish_error != refused.get(row.name):
                    error = refused.get(row.name)
                    host_inventory.change(tx, Deployable, row.id, {"publish_error": error})

    def _compare(
        self,
        tx: sa.Connection,
        report: Report,
        known: StoredDevices,
        new: DeviceDiff,
        *,
        equipment: DriverInventory,
        keepers: dict[str, str],
    ) -> dict[str, str]:
        """Fill the difference; answers the refused deployables by name.

        ``keepers`` gets the driver of this report that keeps such a name, where there is one.
        """
        seen = list(_devices(report))
        names = {one.name for _, device in seen for one in device.deployables}
        taken = host_inventory.taken_names(tx, names)
        matched = _match(seen, known.devices)
        ordered = self._ordered(tx, known, new.host_id, seen)
        refused: dict[str, str] = {}
        used: dict[object, str] = {}
        taken_uuids = {row.uuid for row in known.devices}
        for index, (driver, device) in enumerate(seen):
            row = matched.get(index)
            reason = _refusal(driver, device, row, taken=taken, used=used)
            if reason is not None:
                LOG.warning("Device %s of %s is refused: %s", device.key, driver, reason)
                refused |= {one.name: reason for one in device.deployables}
                continue
            used |= {(driver, device.key): driver}
            used |= {one.name: driver for one in device.deployables}
            if row is not None and _is_made(row):
                new.see_made(row, device, known)
            elif row is not None:
                new.compare_device(row, driver, device, known)
            elif not device.made:
                uuid = equipment.uuid_for(driver, device.key, taken_uuids)
                new.add_device(driver, device, uuid)
            elif (order := ordered.get((driver, device.key))) is not None:
                new.add_device(driver, device, order.uuid, order.labels)
            # Else it has been deleted, and its agent has not heard of that yet.
        keepers |= {name: used[name] for name in refused if name in used}
        kept = {row.id for row in matched.values()}
        # What is not enabled any more offers nothing; who only fails may see it again.
        sure = (DriverState.READY, DriverState.STOPPED)
        failed = {one.driver for one in report.drivers if one.state not in sure}
        for row in known.devices:
            if row.id not in kept and row.driver not in failed:
                new.lose_device(row)
        return refused

    def _ordered(
        self,
        tx: sa.Connection,
        known: StoredDevices,
        host_id: int,
        seen: Sequence[tuple[str, facts.Device]],
    ) -> dict[tuple[str, str], Ordered]:
        """What operators have ordered and this host shows for the first time, by driver and key."""
        there = {(row.driver, row.device_key) for row in known.devices}
        if all((driver, one.key) in there for driver, one in seen if one.made):
            return {}
        return {
            (one.driver, one.facts.key): one for one in created_accelerators.ordered(tx, host_id)
        }


def _devices(report: Report) -> Iterator[tuple[str, facts.Device]]:
    for one in _ready(report):
        for device in one.devices:
            yield one.driver, device


def _ready(report: Report) -> list[DriverReport]:
    return [one for one in report.drivers if one.state is DriverState.READY]


def _is_unready(report: Report) -> bool:
    """Whether any hardware has to be set up before it can be used."""
    return any(one.setup_required for driver in report.drivers for one in driver.hardware or ())


def _uuids(known: StoredDevices, new: DeviceDiff) -> dict[tuple[str, str], str]:
    """The uuids of all devices of a host by driver and key, those of the report included."""
    stand = {(row.driver, row.device_key): row.uuid for row in known.devices}
    came = {(row["driver"], row["device_key"]): row["uuid"] for row in new.devices}
    moved = {uuid for key, uuid in new.moved.items() if stand.get(key) != uuid}
    return {key: uuid for key, uuid in stand.items() if uuid not in moved} | came | new.moved


def _match(seen: list[tuple[str, facts.Device]], rows: Sequence[Record]) -> dict[int, Record]:
    """Position in the report → the row of the same device.

    First by driver and key. What is left is matched by key alone, so that a card which another
    driver has taken over (or whose driver an upgrade guessed wrong) keeps its uuid. What operators
    created stays with its driver.
    """
    free = {(row.driver, row.device_key): row for row in rows}
    matched: dict[int, Record] = {}
    for index, (driver, device) in enumerate(seen):
        row = free.pop((driver, device.key), None)
        if row is not None:
            matched[index] = row
    by_key = {row.device_key: row for row in free.values() if not _is_made(row)}
    for index, (_, device) in enumerate(seen):
        if index not in matched and not device.made and device.key in by_key:
            matched[index] = by_key.pop(device.key)
    return matched


def _is_made(row: Record) -> bool:
    """Whether an operator created a device that is known."""
    return bool(row.origin == Origin.OPERATOR.value)


def _refusal(
    driver: str,
    device: facts.Device,
    row: Record,
    *,
    taken: Mapping[str, Record],
    used: Mapping[object, str],
) -> str | None:
    """Why a device cannot be kept; None when it can.

    ``taken`` are the names that stand in the database, ``used`` those of this report with the
    driver of each.
    """
    flaw = device.validate()
    if flaw is not None:
        return flaw
    if (driver, device.key) in used:
        return f"{device.key} is reported twice"
    if device.made and row is not None and not _is_made(row):
        return f"{device.key} was discovered before it could be created"
    for one in device.deployables:
        other = used.get(one.name)
        if other == driver:
            return f"{one.name} is reported twice"
        if other is not None:
            return (
                f"{one.name} is claimed by driver {other} as well; disable one of the two drivers "
                "on this host, or limit what it offers"
            )
        holder = taken.get(one.name)
        if holder is not None and (row is None or holder.device_id != row.id):
            return (
                f"{one.name} is already a deployable of driver {holder.driver} on "
                f"{holder.hostname}; disable one of the two drivers there"
            )
    return None
