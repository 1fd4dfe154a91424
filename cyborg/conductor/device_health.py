# SPDX-License-Identifier: Apache-2.0
"""The health of devices, as their agents report it: compared, stored, and told to the history."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg.db import events, host_inventory
from cyborg.db.base import Record
from cyborg.model import health
from cyborg.model.health import DeviceHealth
from cyborg.model.report import Report

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A device whose health or whose reason is another from now on."""

    uuid: str
    before: str | None
    health: str | None
    reason: str | None

    @property
    def moves_offer(self) -> bool:
        """Whether units of the device become available, or stop being so."""
        return health.offered(self.before) is not health.offered(self.health)


def of_report(
    report: Report, uuids: Mapping[tuple[str, str], str], known: Sequence[Record]
) -> list[Change]:
    """What a report changes; ``uuids`` are those of all devices by driver and key.

    ``known`` are the rows before the report. A device that is not mentioned keeps its health,
    unless another driver has taken it over.
    """
    rows = {row.uuid: row for row in known}
    told = {
        uuids[driver.driver, one.key]: one
        for driver in report.drivers
        for one in driver.health
        if (driver.driver, one.key) in uuids
    }
    for (driver, key), uuid in uuids.items():
        if uuid in rows and rows[uuid].driver != driver:
            told.setdefault(uuid, DeviceHealth(key))
    found = (of_device(uuid, rows.get(uuid), one) for uuid, one in told.items())
    return [one for one in found if one is not None]


def of_device(uuid: str, row: Record | None, told: DeviceHealth) -> Change | None:
    """What an answer changes of a device; ``row`` is None for a device that is new."""
    before = (None, None) if row is None else (row.health, row.health_reason)
    after = None if told.condition is None else told.condition.value
    reason = health.legible(told.reason)
    return None if before == (after, reason) else Change(uuid, before[0], after, reason)


def write(tx: sa.Connection, now: sa.ColumnElement[int], changes: Iterable[Change]) -> None:
    """Store the changes: one statement for all devices that have the same health now."""
    groups: dict[tuple[str | None, str | None, bool], list[str]] = defaultdict(list)
    for one in changes:
        groups[one.health, one.reason, one.before != one.health].append(one.uuid)
    for (word, reason, moved), uuids in groups.items():
        host_inventory.set_health(tx, uuids, word, reason, since=now if moved else None)


def entries(changes: Iterable[Change], hostname: str) -> list[events.Entry]:
    """The lines of history."""
    return [
        events.Entry(
            "device", one.uuid, health.action(one.health), hostname=hostname, reason=one.reason
        )
        for one in changes
        if health.notable(one.before, one.health)
    ]


def log(changes: Iterable[Change], hostname: str) -> None:
    """Tell the operator, after the commit."""
    for one in changes:
        if health.notable(one.before, one.health):
            LOG.log(
                logging.INFO if health.offered(one.health) else logging.WARNING,
                "Device %s on %s: %s, before %s%s",
                one.uuid,
                hostname,
                health.action(one.health),
                one.before or health.UNKNOWN,
                f": {one.reason}" if one.reason else "",
            )
