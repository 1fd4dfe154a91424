# SPDX-License-Identifier: Apache-2.0
"""Compare the health of devices with what agents report, and store, record and log changes."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Protocol, Self

from cyborg.db import arqs, devices, drivers, events, host_inventory, hosts
from cyborg.db.engine import Database, retried
from cyborg.db.models import Device
from cyborg.db.transaction import Transaction
from cyborg.model import health
from cyborg.model.health import DeviceHealth
from cyborg.model.probation import Rules, State
from cyborg.model.report import Report

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class HealthChange:
    """A device whose stored health changes; ``driver`` is the name of its driver."""

    uuid: str
    driver: str
    before: State
    after: State

    @property
    def health(self) -> str | None:
        """Return the new health."""
        return self.after.health

    @property
    def moved(self) -> bool:
        """Return whether the health has another word now."""
        return self.before.health != self.health

    @property
    def notable(self) -> bool:
        """Return whether the history records the change."""
        return health.notable(self.before.health, self.health)

    @property
    def offer_changes(self) -> bool:
        """Return whether the units were offered before, and are not now, or the other way."""
        return health.offered(self.before.health) is not health.offered(self.health)


class Examined(Protocol):
    """A device with its stored health."""

    @property
    def health(self) -> str | None: ...

    @property
    def health_reason(self) -> str | None: ...

    @property
    def reported_health(self) -> str | None: ...

    @property
    def reported_health_reason(self) -> str | None: ...

    @property
    def health_until_ms(self) -> int | None: ...

    @property
    def health_faults(self) -> list[int] | None: ...


def state_of(row: Examined | None) -> State:
    """Return the stored health of a device; ``row`` is None for a new device."""
    if row is None:
        return State()
    return State(
        row.health,
        health.stored(row.health_reason),
        row.reported_health,
        health.stored(row.reported_health_reason),
        row.health_until_ms,
        tuple(row.health_faults or ()),
    )


def of_report(
    tx: Transaction,
    report: Report,
    uuids: Mapping[tuple[str, str], str],
    existing: Sequence[Device],
    *,
    rules: Rules,
) -> list[HealthChange]:
    """Return the changes of health that a report makes.

    ``uuids`` maps (driver, key) of all devices to their uuids; ``existing`` are the rows before the
    report. A device that the report does not mention keeps its health, unless another driver has
    taken it over.
    """
    rows = {row.uuid: row for row in existing}
    reported = {
        uuids[driver.driver, device.key]: (driver.driver, device)
        for driver in report.drivers
        for device in driver.health
        if (driver.driver, device.key) in uuids
    }
    for (driver, key), uuid in uuids.items():
        if uuid in rows and rows[uuid].driver != driver:
            reported.setdefault(uuid, (driver, DeviceHealth(key)))
    states = {uuid: state_of(rows.get(uuid)) for uuid in reported}
    # The clock is only read for a report that says something new.
    news = [uuid for uuid, (_, device) in reported.items() if _is_news(states[uuid], device)]
    if not news:
        return []
    changes = (
        HealthChange(
            uuid, driver, states[uuid], states[uuid].after_report(device, tx.now_ms, rules)
        )
        for uuid in news
        for driver, device in (reported[uuid],)
    )
    return [change for change in changes if change.before != change.after]


def _is_news(state: State, reported: DeviceHealth) -> bool:
    word = None if reported.condition is None else reported.condition.value
    reasons = health.legible_all(reported.reasons)
    return (state.reported, state.reported_reasons) != (word, reasons)


def write(tx: Transaction, changes: Iterable[HealthChange]) -> None:
    """Store the changes: one statement for all devices that have the same health now."""
    groups: dict[tuple[State, bool], list[str]] = defaultdict(list)
    for change in changes:
        groups[change.after, change.moved].append(change.uuid)
    for (state, moved), uuids in groups.items():
        host_inventory.set_health(tx, uuids, state, since=tx.now_ms if moved else None)


@dataclass(frozen=True)
class News:
    """The notable changes of one host, as the history, notifications and the log tell of them.

    ``shared`` are the changes that all devices of a driver make for the same reason, by driver:
    they have one cause, such as a library that does not work, and are one event.
    """

    single: tuple[HealthChange, ...]
    shared: Mapping[str, tuple[HealthChange, ...]]

    @classmethod
    def of(
        cls, changes: Iterable[HealthChange], totals: Mapping[str, int] = MappingProxyType({})
    ) -> Self:
        """Return the news of changes; ``totals`` are the numbers of devices by driver."""
        by_driver: dict[str, list[HealthChange]] = defaultdict(list)
        for change in changes:
            if change.notable:
                by_driver[change.driver].append(change)
        shared = {
            driver: tuple(same)
            for driver, same in by_driver.items()
            if len({(change.health, change.after.reasons) for change in same}) == 1
            and 1 < len(same) == totals.get(driver)
        }
        single = (
            change for driver, same in by_driver.items() if driver not in shared for change in same
        )
        return cls(tuple(single), shared)

    def entries(self, tx: Transaction, host_id: int, hostname: str) -> list[events.Entry]:
        """Return the history entries: of devices, of drivers whose devices all changed, of ARQs.

        The entry of an ARQ tells its owner that the health of its unit has changed. It has no
        reason, because the evidence is for operators.
        """
        uuids = drivers.uuids(tx, host_id, self.shared) if self.shared else {}
        subjects: list[tuple[str, str, tuple[HealthChange, ...]]] = [
            ("device", change.uuid, (change,)) for change in self.single
        ]
        subjects += [
            ("driver", uuids[driver], changes)
            for driver, changes in self.shared.items()
            if driver in uuids
        ]
        # A driver that has never been reported has no row.
        subjects += [
            ("device", change.uuid, (change,))
            for driver in self.shared.keys() - uuids.keys()
            for change in self.shared[driver]
        ]
        entries = [
            events.Entry(
                noun,
                uuid,
                health.action(changes[0].health),
                hostname=hostname,
                reason=_reason(changes),
            )
            for noun, uuid, changes in subjects
        ]
        now = {change.uuid: change.health for change in chain(self.single, *self.shared.values())}
        entries += [
            events.Entry(
                *("arq", holder.uuid, health.action(now[holder.held_uuid])),
                instance_uuid=holder.instance_uuid,
                hostname=hostname,
                device_uuid=holder.held_uuid,
            )
            for holder in arqs.holders(tx, now.keys())
        ]
        return entries

    def log(self, hostname: str) -> None:
        """Log the changes; call this after the commit."""
        for change in self.single:
            reason = _reason((change,))
            LOG.log(
                logging.INFO if health.offered(change.health) else logging.WARNING,
                "Device %s on host %s: %s, before %s%s",
                *(change.uuid, hostname, health.action(change.health)),
                change.before.health or health.UNKNOWN,
                f": {reason}" if reason else "",
            )
        for driver, changes in self.shared.items():
            LOG.log(
                logging.INFO if health.offered(changes[0].health) else logging.WARNING,
                "Driver %s on host %s: %s: %s",
                *(driver, hostname, health.action(changes[0].health)),
                _reason(changes),
            )


def _reason(changes: Sequence[HealthChange]) -> str | None:
    reasons = changes[0].after.reasons
    if len(changes) > 1:
        driver = changes[0].driver
        reasons = (f"All {len(changes)} devices of driver {driver} have this health", *reasons)
    return health.summary(reasons)


def expire(db: Database, rules: Rules) -> None:
    """Offer devices again after their probation, and let faults count that were ignored for a time.

    Several conductors may do it at the same time: each reads a device again under the lock of its
    host. Raises exception.Unavailable.
    """
    with db.reader() as tx:
        due = devices.due_health(tx)
    for host_id in due:
        _expire_on(db, rules, host_id)


@retried
def _expire_on(db: Database, rules: Rules, host_id: int) -> None:
    """Change the devices of a host that are due."""
    with db.writer() as tx:
        tx.publish(host_id)
        rows = host_inventory.devices(tx, host_id)
        if not rows:
            return
        states = {row.uuid: (row.driver, state_of(row)) for row in rows}
        changes = [
            HealthChange(uuid, driver, before, after)
            for uuid, (driver, before) in states.items()
            for after in (before.settled(tx.now_ms, rules),)
            if before != after
        ]
        write(tx, changes)
        news = News.of(changes, Counter(row.driver for row in rows if row.lost_ms is None))
        name = hosts.name_of(tx, host_id)
        events.record(tx, news.entries(tx, host_id, name))
    news.log(name)
