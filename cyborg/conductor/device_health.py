# SPDX-License-Identifier: Apache-2.0
"""Compare the health of devices with what agents report, and store, record and log changes."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cyborg.db import events, host_inventory
from cyborg.db.host_inventory import StoredDevice
from cyborg.db.transaction import Transaction
from cyborg.model import health
from cyborg.model.health import DeviceHealth
from cyborg.model.report import Report

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A device whose health changes, or the reason of its health."""

    uuid: str
    before: str | None
    health: str | None
    reason: str | None


class Examined(Protocol):
    """A device with its stored health."""

    @property
    def health(self) -> str | None: ...

    @property
    def health_reason(self) -> str | None: ...


def of_report(
    report: Report, uuids: Mapping[tuple[str, str], str], existing: Sequence[StoredDevice]
) -> list[Change]:
    """Return the changes of health that a report makes.

    ``uuids`` maps (driver, key) of all devices to their uuids; ``existing`` are the rows before the
    report. A device that the report does not mention keeps its health, unless another driver has
    taken it over.
    """
    rows = {row.uuid: row for row in existing}
    reported = {
        uuids[driver.driver, device.key]: device
        for driver in report.drivers
        for device in driver.health
        if (driver.driver, device.key) in uuids
    }
    for (driver, key), uuid in uuids.items():
        if uuid in rows and rows[uuid].driver != driver:
            reported.setdefault(uuid, DeviceHealth(key))
    changes = (of_device(uuid, rows.get(uuid), device) for uuid, device in reported.items())
    return [change for change in changes if change is not None]


def of_device(uuid: str, row: Examined | None, reported: DeviceHealth) -> Change | None:
    """Return the change of one device; ``row`` is None for a new device."""
    before = (None, None) if row is None else (row.health, row.health_reason)
    after = None if reported.condition is None else reported.condition.value
    reason = health.legible(reported.reason)
    return None if before == (after, reason) else Change(uuid, before[0], after, reason)


def write(tx: Transaction, changes: Iterable[Change]) -> None:
    """Store the changes: one statement for all devices that have the same health now."""
    groups: dict[tuple[str | None, str | None, bool], list[str]] = defaultdict(list)
    for change in changes:
        moved = change.before != change.health
        groups[change.health, change.reason, moved].append(change.uuid)
    for (condition, reason, moved), uuids in groups.items():
        host_inventory.set_health(tx, uuids, condition, reason, since=tx.now if moved else None)


def entries(changes: Iterable[Change], hostname: str) -> list[events.Entry]:
    """Return the history entries of notable changes."""
    return [
        events.Entry(
            "device",
            change.uuid,
            health.action(change.health),
            hostname=hostname,
            reason=change.reason,
        )
        for change in changes
        if health.notable(change.before, change.health)
    ]


def log(changes: Iterable[Change], hostname: str) -> None:
    """Log the notable changes; call this after the commit."""
    for change in changes:
        if health.notable(change.before, change.health):
            LOG.log(
                logging.INFO if health.offered(change.health) else logging.WARNING,
                "Device %s on host %s: %s, before %s%s",
                *(change.uuid, hostname, health.action(change.health)),
                change.before or health.UNKNOWN,
                f": {change.reason}" if change.reason else "",
            )
