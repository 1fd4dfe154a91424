# SPDX-License-Identifier: Apache-2.0
"""Apply the reports of agents: each under the lock of its host and in one transaction."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from cyborg.conductor import device_health
from cyborg.conductor.leases import check_epoch
from cyborg.conductor.reports.comparison import Comparison
from cyborg.conductor.reports.device_diff import DeviceDiff, StoredDevices
from cyborg.conductor.reports.driver_inventory import DriverInventory
from cyborg.conductor.tasks import set_up
from cyborg.db import base, created_accelerators, events, host_inventory, hosts
from cyborg.db.created_accelerators import Request
from cyborg.db.engine import Database, retried
from cyborg.db.host_inventory import NameHolder, StoredDevice
from cyborg.db.models import Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model import device as facts
from cyborg.model import health
from cyborg.model.attribute import Origin
from cyborg.model.device import DeviceStatus
from cyborg.model.report import Acknowledged, DriverState, Report

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReportApplier:
    """Apply what agents report of their hosts.

    New devices of the drivers that ``auto_enable`` names (``*``: all drivers) are enabled at once,
    the others wait for an operator. Enabled devices that need a set-up, for the first time or
    again, are set up. ``wake`` is called when work waits after a commit.
    """

    db: Database
    auto_enable: frozenset[str]
    wake: Callable[[], None]

    @retried
    def report(self, service_host: str, epoch: int, report: Report) -> Acknowledged:
        """Store what the report changes; raises NotFound (no heartbeat yet), StaleEpoch.

        Deployables that cannot be kept, because another device has their name, are refused with
        the reason. The rest of the report is stored.
        """
        with self.db.writer() as tx:
            host = check_epoch(hosts.lock_for_report(tx, service_host), service_host, epoch)
            # A host without devices or drivers has no rows to read.
            stored = StoredDevices.read(tx, host.id) if host.has_devices else StoredDevices()
            inventory = (
                DriverInventory.read(tx, host.id) if host.has_drivers else DriverInventory(host.id)
            )
            diff = DeviceDiff(host.id, host.name, self.auto_enable, stored)
            owning_drivers: dict[str, str] = {}
            refused = self._compare(
                tx, report, diff, inventory=inventory, owning_drivers=owning_drivers
            )
            changed = inventory.note_drivers(tx, report)
            uuids = diff.uuids()
            health_changes = device_health.of_report(report, uuids, stored.devices)
            changed |= any(
                health.offered(change.before) is not health.offered(change.health)
                for change in health_changes
            )
            changed |= diff.write(tx)
            device_health.write(tx, health_changes)
            unready = inventory.note_hardware(tx, report, uuids)
            begun = self._set_up(tx, report, diff, unready)
            entries = [
                events.Entry("device", uuid, action, hostname=host.name, state=state)
                for uuid, action, state in diff.history
            ]
            entries += device_health.entries(health_changes, host.name)
            events.record(tx, entries)
            generation = hosts.record_report(
                tx, host, report.digest(), changed=changed or bool(begun)
            )
        for uuid, action, _ in diff.history:
            LOG.info("Device %s on %s: %s", uuid, host.name, action)
        device_health.log(health_changes, host.name)
        if diff.waiting:
            LOG.info("%d device(s) on %s wait to be enabled", diff.waiting, host.name)
        if begun:
            self.wake()
        return Acknowledged(generation, refused, owning_drivers)

    def _compare(
        self,
        tx: Transaction,
        report: Report,
        diff: DeviceDiff,
        *,
        inventory: DriverInventory,
        owning_drivers: dict[str, str],
    ) -> dict[str, str]:
        """Fill the difference; return the refused deployables: name → reason.

        ``owning_drivers`` gets the driver of this report that keeps such a name, if there is one.
        """
        reported = [
            (driver.driver, device)
            for driver in report.drivers
            if driver.state is DriverState.READY
            for device in driver.devices
        ]
        names = {deployable.name for _, device in reported for deployable in device.deployables}
        taken = host_inventory.taken_names(tx, names)
        matched = _match(reported, diff.stored.devices)
        ordered: dict[tuple[str, str], Request] = {}
        keys = {(row.driver, row.device_key) for row in diff.stored.devices}
        if any(
            device.operator_created and (driver, device.key) not in keys
            for driver, device in reported
        ):
            # A created device is reported for the first time: its facts are the operator's.
            ordered = {
                (order.driver, order.facts.key): order
                for order in created_accelerators.requests(tx, diff.host_id)
            }
        refused: dict[str, str] = {}
        used: dict[object, str] = {}
        taken_uuids = {row.uuid for row in diff.stored.devices}
        for index, (driver, device) in enumerate(reported):
            row = matched.get(index)
            reason = _refusal(driver, device, row, taken=taken, used=used)
            if reason is not None:
                LOG.warning(
                    "Device %s of driver %s on %s is not stored: %s",
                    *(device.key, driver, diff.hostname, reason),
                )
                refused |= {deployable.name: reason for deployable in device.deployables}
                continue
            used |= {(driver, device.key): driver}
            used |= {deployable.name: driver for deployable in device.deployables}
            if row is not None and _is_operator_created(row):
                diff.compare_created(row, device)
            elif row is not None:
                diff.compare_device(row, driver, device)
            elif not device.operator_created:
                # The device keeps the uuid that it had as hardware.
                entry = inventory.hardware.get((driver, device.key))
                kept_uuid = entry.uuid if entry and entry.uuid not in taken_uuids else None
                diff.add_device(driver, device, kept_uuid or str(uuid4()))
            elif (order := ordered.get((driver, device.key))) is not None:
                diff.add_device(driver, device, order.uuid, order.labels)
            # Otherwise an operator has deleted the device, and its agent does not know it yet.
        owning_drivers |= {name: used[name] for name in refused if name in used}
        kept = {row.id for row in matched.values()}
        # A driver that is not enabled any more has lost its devices. A driver that fails may see
        # them again.
        conclusive = (DriverState.READY, DriverState.STOPPED)
        failed = {driver.driver for driver in report.drivers if driver.state not in conclusive}
        for row in diff.stored.devices:
            if row.id not in kept and row.driver not in failed:
                diff.lose_device(row)
        return refused

    def _set_up(
        self, tx: Transaction, report: Report, diff: DeviceDiff, unready: set[str]
    ) -> list[str]:
        """Begin the set-up of the enabled devices that need it; return their uuids.

        These are the new devices, and those in ``unready``, which did not need a set-up when they
        were last reported. A device that needed it before is left out: its set-up may have ended
        after this report was made.
        """
        entries = [entry for driver in report.drivers for entry in driver.hardware or ()]
        if not any(entry.setup_required for entry in entries):
            return []
        candidates = unready | diff.new_devices(DeviceStatus.ENABLED)
        if not candidates:
            return []
        uuids = set_up.begin_needed(tx, Device.uuid.in_(sorted(candidates)), None)
        diff.history += [(uuid, DeviceStatus.INSTALLING.value, None) for uuid in uuids]
        return uuids

    @retried
    def published(self, service_host: str, epoch: int, refused: Mapping[str, str]) -> None:
        """Store which deployables Placement refuses (name → reason), so that none is bound.

        Raises NotFound, StaleEpoch.
        """
        with self.db.writer() as tx:
            host = check_epoch(hosts.lock_for_agent(tx, service_host), service_host, epoch)
            rows = {row.name: row for row in host_inventory.deployables(tx, host.id)}
            expected = {name: {"publish_error": refused.get(name)} for name in rows}
            base.change(tx, Deployable, Comparison(rows, expected).changed)


def _match(
    reported: Sequence[tuple[str, facts.Device]], rows: Sequence[StoredDevice]
) -> dict[int, StoredDevice]:
    """Return the rows of the devices that are stored already: position in the report → row.

    A device is matched by driver and key first. The rest is matched by key alone, so that a card
    which another driver has taken over (or whose driver an upgrade guessed wrong) keeps its uuid.
    Devices that operators created stay with their driver.
    """
    free = {(row.driver, row.device_key): row for row in rows}
    matched: dict[int, StoredDevice] = {}
    for index, (driver, device) in enumerate(reported):
        row = free.pop((driver, device.key), None)
        if row is not None:
            matched[index] = row
    by_key = {row.device_key: row for row in free.values() if not _is_operator_created(row)}
    for index, (_, device) in enumerate(reported):
        if index not in matched and not device.operator_created and device.key in by_key:
            matched[index] = by_key.pop(device.key)
    return matched


def _is_operator_created(row: StoredDevice) -> bool:
    return row.origin == Origin.OPERATOR.value


def _refusal(
    driver: str,
    device: facts.Device,
    row: StoredDevice | None,
    *,
    taken: Mapping[str, NameHolder],
    used: Mapping[object, str],
) -> str | None:
    """Return why a device cannot be kept; None when it can.

    ``taken`` are the names in the database. ``used`` maps the names, and the pairs of driver and
    key, of the devices before it in this report to their driver.
    """
    flaw = device.validate()
    if flaw is not None:
        return flaw
    if (driver, device.key) in used:
        return f"{device.key} is reported twice"
    if device.operator_created and row is not None and not _is_operator_created(row):
        return f"{device.key} was discovered before it could be created"
    for deployable in device.deployables:
        other = used.get(deployable.name)
        if other == driver:
            return f"{deployable.name} is reported twice"
        if other is not None:
            return (
                f"{deployable.name} is claimed by driver {other} as well; disable one of the two "
                "drivers on this host, or limit what it offers"
            )
        holder = taken.get(deployable.name)
        if holder is not None and (row is None or holder.device_id != row.id):
            return (
                f"{deployable.name} is already a deployable of driver {holder.driver} on "
                f"{holder.hostname}; disable one of the two drivers there"
            )
    return None
