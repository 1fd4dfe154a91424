# SPDX-License-Identifier: Apache-2.0
"""Apply the reports of agents: each under the lock of its host and in one transaction."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.leases import check_epoch
from cyborg.conductor.reports import suspicion
from cyborg.conductor.reports.comparison import Comparison
from cyborg.conductor.reports.device_diff import DeviceAction, DeviceDiff, StoredDevices
from cyborg.conductor.reports.driver_inventory import DriverInventory
from cyborg.conductor.reports.matching import displaced, is_operator_created, match
from cyborg.conductor.tasks import set_up
from cyborg.db import (
    bulk,
    created_accelerators,
    deployables,
    events,
    host_inventory,
    hosts,
    pools,
)
from cyborg.db.created_accelerators import Request
from cyborg.db.engine import retried
from cyborg.db.host_inventory import NameHolder
from cyborg.db.models import Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model import device as facts
from cyborg.model.device import DeviceStatus
from cyborg.model.provider import MAX_TOTAL
from cyborg.model.report import Acknowledged, DriverState, Report, cut
from cyborg.rpc.verbs import SendPublished, SendReport
from cyborg_cli.text import escaped_line

LOG = logging.getLogger(__name__)

#: The states of a driver whose report says what is there.
_CONCLUSIVE: Final = (DriverState.READY, DriverState.STOPPED)


@handles(SendReport)
@retried
def store(ctx: Conductor, c: SendReport) -> Acknowledged:
    """Store what the report changes; raises NotFound (no heartbeat yet), StaleEpoch.

    New devices of the drivers of ``[conductor] auto_enable`` (``*``: all drivers) are enabled at
    once, the others wait for an operator. Enabled devices that need a set-up, for the first time or
    again, are set up. With ``clean_existing_units`` the free units of a host of the existing
    service are cleaned first.

    Raises Invalid, and stores nothing, if the report is larger than any host needs.
    Deployables that cannot be kept, because another device has their name, are refused with
    the reason. The rest of the report is stored.
    """
    report = c.report
    flaw = report.validate()
    if flaw is not None:
        raise exception.Invalid(field="report", reason=flaw)
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_report(tx, c.host), c.host, c.epoch)
        # A host without devices or drivers has no rows to read.
        stored = StoredDevices.read(tx, host.id) if host.has_devices else StoredDevices()
        inventory = (
            DriverInventory.read(tx, host.id) if host.has_drivers else DriverInventory(host.id)
        )
        diff = DeviceDiff(host.id, host.name, ctx.settings.conductor.auto_enable, stored)
        owning_drivers: dict[str, str] = {}
        refused = _compare(
            ctx,
            tx,
            report,
            diff,
            service_host=c.host,
            inventory=inventory,
            owning_drivers=owning_drivers,
        )
        changed = inventory.note_drivers(tx, report)
        uuids = diff.uuids()
        health_changes = device_health.of_report(
            tx, report, uuids, stored.devices, rules=ctx.settings.health_rules
        )
        changed |= any(change.offer_changes for change in health_changes)
        changed |= diff.write(tx)
        suspected = suspicion.suspect(tx, diff, _first_sight(ctx, host))
        changed |= pools.book(tx, diff.pooled())
        device_health.write(tx, health_changes)
        unready = inventory.note_hardware(tx, report, uuids)
        begun = _set_up(tx, report, diff, unready)
        entries = [change.entry(host.name) for change in diff.history]
        totals = {driver.driver: len(driver.devices) for driver in report.drivers}
        news = device_health.News.of(health_changes, totals)
        entries += news.entries(tx, host.id, host.name)
        events.record(tx, entries)
        generation = hosts.record_report(
            tx, host, report.digest(), changed=changed or suspected or bool(begun)
        )
    for change in diff.history:
        LOG.info("Device %s on %s: %s", change.uuid, host.name, escaped_line(str(change)))
    news.log(host.name)
    if diff.waiting:
        LOG.info("%d device(s) on %s wait to be enabled", diff.waiting, host.name)
    return Acknowledged(generation, refused, owning_drivers)


def _first_sight(ctx: Conductor, host: hosts.ReportedHost) -> suspicion.FirstSight:
    """Return which units are cleaned before their first offer."""
    if host.digest is not None or not host.has_devices:
        return suspicion.FirstSight.NEW
    # The first report of a host that the existing service had.
    return (
        suspicion.FirstSight.ALL
        if ctx.settings.conductor.clean_existing_units
        else suspicion.FirstSight.NONE
    )


def _compare(
    ctx: Conductor,
    tx: Transaction,
    report: Report,
    diff: DeviceDiff,
    *,
    service_host: str,
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
    holders = host_inventory.taken_names(tx, names)
    rows, names_of = diff.stored.devices, diff.stored.deployables
    matched = match(reported, rows)
    kept = {row.id for row in matched.values()}
    failed = {driver.driver for driver in report.drivers if driver.state not in _CONCLUSIVE}
    moving = {row.id for i, row in matched.items() if row.device_key != reported[i][1].key}
    unmatched = [row for row in rows if row.id not in kept]
    moving |= displaced(reported, unmatched, names_of, failed)
    # Names that drivers still use for deployables of devices that have not moved.
    taken = {
        name: holder
        for name, holder in holders.items()
        if holder.key == name and holder.device_id not in moving
    }
    ordered: dict[tuple[str, str], Request] = {}
    keys = {(row.driver, row.device_key) for row in rows}
    if any(card.operator_created and (name, card.key) not in keys for name, card in reported):
        # A created device is reported for the first time: its facts are the operator's.
        ordered = {
            (order.driver, order.facts.key): order
            for order in created_accelerators.requests(tx, diff.host_id)
        }
    refused: dict[str, str] = {}
    unstored: set[int] = set()
    used: dict[object, str] = {}
    diff.taken_names = holders.keys()
    taken_uuids = {row.uuid for row in rows}
    for index, (driver, device) in enumerate(reported):
        row = matched.get(index)
        reason = _refusal(driver, device, row, taken=taken, used=used)
        reason = reason or _flaw_of_names(ctx, device, (service_host, diff.hostname), holders)
        if reason is not None:
            LOG.warning(
                "Device %s of driver %s on %s is not stored: %s",
                *(escaped_line(device.key), driver, diff.hostname, escaped_line(reason)),
            )
            refused |= {deployable.name: reason for deployable in device.deployables}
            unstored.add(index)
            continue
        used |= {(driver, device.key): driver}
        used |= {deployable.name: driver for deployable in device.deployables}
        if row is not None and is_operator_created(row):
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
    stored = [item for index, item in enumerate(reported) if index not in unstored]
    refused_rows = [matched[index] for index in unstored if index in matched]
    unmatched += [row for row in refused_rows if (row.driver, row.device_key) in used]
    diff.lose_devices(displaced(stored, unmatched, names_of, failed), kept, failed)
    return refused


def _flaw_of_names(
    ctx: Conductor,
    device: facts.Device,
    hosts_names: tuple[str, str],
    holders: Mapping[str, NameHolder],
) -> str | None:
    """Return why the host may not name a deployable so; what it has already stays."""
    for item in device.deployables:
        holder = holders.get(item.name)
        if holder is None or holder.hostname != hosts_names[1]:
            flaw = ctx.settings.host_names.flaw_of_deployable(hosts_names, item.name)
            if flaw is not None:
                return flaw
    return None


def _set_up(tx: Transaction, report: Report, diff: DeviceDiff, unready: set[str]) -> list[str]:
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
    diff.history += [DeviceAction(uuid, DeviceStatus.INSTALLING.value) for uuid in uuids]
    return uuids


@handles(SendPublished)
@retried
def store_published(ctx: Conductor, c: SendPublished) -> None:
    """Store which deployables Placement refuses (name → reason), so that none is bound.

    ``published`` are the total and reserved units that Placement has of the others. Raises
    NotFound, StaleEpoch, Invalid.
    """
    published = c.published
    flawed = [name for name, units in published.items() if not _is_published(units)]
    if flawed:
        raise exception.Invalid(field="published", reason=f"{flawed[0]} has no two numbers")
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_agent(tx, c.host), c.host, c.epoch)
        rows = {row.name: row for row in host_inventory.deployables(tx, host.id)}
        errors = {name: cut(reason) for name, reason in c.refused.items()}
        expected = {name: {"publish_error": errors.get(name)} for name in rows}
        bulk.change(tx, Deployable, Comparison(rows, expected).changed)
        units = {row.id: published.get(name) for name, row in rows.items()}
        before = {row.id: _stored(row) for row in rows.values()}
        changed = {id_: now for id_, now in units.items() if now != before[id_]}
        deployables.note_published(tx, changed)


def _stored(row: Deployable) -> list[int] | None:
    """Return what an agent last published of a deployable; None: nothing."""
    if row.published_total is None:
        return None
    return [row.published_total, row.published_reserved or 0]


def _is_published(units: Sequence[int]) -> bool:
    """Return whether these can be the total and reserved units of a provider."""
    return len(units) == 2 and 0 <= units[1] <= units[0] <= MAX_TOTAL


def _refusal(
    driver: str,
    device: facts.Device,
    row: Device | None,
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
    if device.operator_created and row is not None and not is_operator_created(row):
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
