# SPDX-License-Identifier: Apache-2.0
"""Reports: taken in under the host's lock, in one transaction, whatever they bring."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from uuid import uuid4

import sqlalchemy as sa

from cyborg.conductor import difference
from cyborg.conductor.difference import Difference, Known
from cyborg.conductor.services import check_epoch
from cyborg.db import events, hosts, trees
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Deployable, Driver
from cyborg.model.attribute import Origin
from cyborg.model.device import Device, DeviceStatus
from cyborg.model.report import Acknowledged, DriverReport, DriverState, Report

LOG = logging.getLogger(__name__)


class Discovery:
    """Takes in what agents report of their hosts."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @retried
    def report(self, service_host: str, epoch: int, report: Report) -> Acknowledged:
        """Write what the report changes; raises NotFound (no hello yet), StaleEpoch.

        Deployables that cannot be kept, because their name is another's, are refused with the
        reason; everything else of the report stands.
        """
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            known = Known.read(tx, host.id)
            new = Difference(host.id, host.name, DeviceStatus.ENABLED)
            refused = self._compare(tx, report, known, new)
            changed = self._note_drivers(tx, host.id, report)
            difference.write(tx, self._db.now, new)
            entries = [
                events.Entry("device", uuid, what, hostname=host.name) for uuid, what in new.history
            ]
            events.record(tx, self._db.now, entries)
            desired = hosts.acknowledge(
                tx, self._db.now, host, report.digest(), changed=bool(new) or changed
            )
        for uuid, what in new.history:
            LOG.info("Device %s on %s: %s", uuid, host.name, what)
        return Acknowledged(desired, refused)

    @retried
    def published(self, service_host: str, epoch: int, refused: Mapping[str, str]) -> None:
        """Note which deployables Placement refuses (name → reason), so that none is bound."""
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            for row in trees.deployables(tx, host.id):
                if row.publish_error != refused.get(row.name):
                    error = refused.get(row.name)
                    trees.change(tx, Deployable, row.id, {"publish_error": error})

    def _compare(
        self, tx: sa.Connection, report: Report, known: Known, new: Difference
    ) -> dict[str, str]:
        """Fill the difference; answers the refused deployables by name."""
        seen = list(_devices(report))
        names = {one.name for _, device in seen for one in device.deployables}
        taken = trees.taken_names(tx, names)
        matched = _match(seen, known.devices)
        refused: dict[str, str] = {}
        used: set[object] = set()
        for index, (driver, device) in enumerate(seen):
            row = matched.get(index)
            reason = _refusal(driver, device, row, taken=taken, used=used)
            if reason is not None:
                LOG.warning("Device %s of %s is refused: %s", device.key, driver, reason)
                refused |= {one.name: reason for one in device.deployables}
                continue
            used |= {(driver, device.key), *(one.name for one in device.deployables)}
            if row is None:
                new.add_device(driver, device)
            else:
                new.compare_device(row, driver, device, known)
        kept = {row.id for row in matched.values()}
        failed = {one.driver for one in report.drivers if one.state is not DriverState.READY}
        for row in known.devices:
            discovered = row.origin == Origin.DISCOVERED.value
            if row.id not in kept and row.driver not in failed and discovered:
                new.lose_device(row)
        return refused

    def _note_drivers(self, tx: sa.Connection, host_id: int, report: Report) -> bool:
        """Keep the state of each driver; True when one changed between ready and not."""
        known = trees.drivers(tx, host_id)
        fresh = []
        changed = False
        for one in report.drivers:
            old = known.pop(one.driver, None)
            values = {"state": one.state.value, "error": one.error}
            if old is None:
                fresh.append(
                    {"uuid": str(uuid4()), "host_id": host_id, "name": one.driver, **values}
                )
                # Devices of a driver that is news may stand here since an upgrade.
                changed |= one.state is not DriverState.READY
            elif (old.state, old.error) != (one.state.value, one.error):
                trees.change(tx, Driver, old.id, values)
                changed |= old.state != one.state.value
        for row in known.values():
            if row.state != DriverState.STOPPED.value:
                trees.change(tx, Driver, row.id, {"state": DriverState.STOPPED.value})
        trees.insert_drivers(tx, fresh)
        return changed


def _devices(report: Report) -> Iterator[tuple[str, Device]]:
    for one in _ready(report):
        for device in one.devices:
            yield one.driver, device


def _ready(report: Report) -> list[DriverReport]:
    return [one for one in report.drivers if one.state is DriverState.READY]


def _match(seen: list[tuple[str, Device]], rows: Sequence[Record]) -> dict[int, Record]:
    """Position in the report → the row of the same device.

    First by driver and key. What is left is matched by key alone, so that a card which another
    driver has taken over (or whose driver an upgrade guessed wrong) keeps its uuid.
    """
    free = {(row.driver, row.device_key): row for row in rows}
    matched: dict[int, Record] = {}
    for index, (driver, device) in enumerate(seen):
        row = free.pop((driver, device.key), None)
        if row is not None:
            matched[index] = row
    by_key = {row.device_key: row for row in free.values()}
    for index, (_, device) in enumerate(seen):
        if index not in matched and device.key in by_key:
            matched[index] = by_key.pop(device.key)
    return matched


def _refusal(
    driver: str, device: Device, row: Record, *, taken: Mapping[str, Record], used: set[object]
) -> str | None:
    """Why a device cannot be kept; None when it can.

    ``taken`` are the names that stand in the database, ``used`` those of this report.
    """
    flaw = device.flaw()
    if flaw is not None:
        return flaw
    if (driver, device.key) in used:
        return f"{device.key} is reported twice"
    for one in device.deployables:
        if one.name in used:
            return f"{one.name} is reported twice"
        holder = taken.get(one.name)
        if holder is not None and (row is None or holder.device_id != row.id):
            return f"{one.name} is already a deployable of another device on {holder.hostname}"
    return None
