# SPDX-License-Identifier: Apache-2.0
"""Count rows for metrics, in eleven statements, and read the devices of an agent's readings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import devices, guests, notifications, units
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Driver,
    Host,
    Operation,
    Service,
    UsageRecord,
    Work,
)
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model import health
from cyborg.model.device import LOST

Counts = Mapping[tuple[str, ...], int]


@dataclass(frozen=True)
class Totals:
    """Counts by the labels in parentheses; times are in milliseconds.

    ``arqs`` (state), ``handles`` (state), ``devices`` (type, state), ``operations`` (state);
    ``units`` (host, resource class, word) holds words of ``units.WORD``; ``in_use`` (project,
    resource class) counts units, with an empty project for ARQs without one; ``drivers`` (driver,
    state) counts hosts. ``unattached`` counts the instances that run without a unit. For ``work``
    (kind), ``ages`` holds the age of the oldest row, and ``failing`` the number of rows whose last
    attempt failed. ``silence`` (binary, host) is the age of the last heartbeat of any process.
    ``notification_lag`` is how long the oldest event has waited to be published. ``healthy`` (host,
    driver, type, device) is 1 or 0 for each device that is not lost and whose health the driver has
    reported.
    """

    arqs: Counts
    handles: Counts
    units: Counts
    in_use: Counts
    unattached: int
    devices: Counts
    healthy: Counts
    drivers: Counts
    operations: Counts
    work: Counts
    ages: Counts
    failing: Counts
    silence: Counts
    notification_lag: int


def totals(tx: Transaction) -> Totals:
    """Return all counts, in eleven statements."""
    work = tx.execute(
        sa.select(
            Work.kind, _COUNT, tx.now - sa.func.min(Work.created_ms), sa.func.count(Work.error)
        ).group_by(Work.kind)
    ).all()
    silence = tx.execute(
        sa.select(
            Service.binary, Service.host, tx.now - sa.func.max(Service.last_seen_ms)
        ).group_by(Service.binary, Service.host)
    )
    handles, counted = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for row in tx.all(_UNITS):
        handles[row.state,] += row.amount
        counted[row.name, row.resource_class, row.word] += row.amount
    return Totals(
        arqs=_counts(tx, _ARQS),
        handles=handles,
        units=counted,
        in_use=_counts(tx, _IN_USE),
        unattached=guests.count_unattached(tx),
        devices=_counts(tx, _DEVICES),
        healthy={
            (hostname, driver, type_, uuid): int(health.offered(condition))
            for hostname, driver, type_, uuid, condition in tx.execute(_HEALTH)
        },
        drivers=_counts(tx, _DRIVERS),
        operations=_counts(tx, _OPERATIONS),
        work={(kind,): amount for kind, amount, _, _ in work},
        ages={(kind,): age for kind, _, age, _ in work},
        failing={(kind,): failing for kind, _, _, failing in work},
        silence={(binary, host): ms for binary, host, ms in silence},
        notification_lag=notifications.lag(tx),
    )


def _counts(tx: Transaction, query: sa.Select[*tuple[Any, ...]]) -> Counts:
    return {tuple(row[:-1]): int(row[-1]) for row in tx.execute(query)}


_COUNT: Final = sa.func.count()
_HANDLE_STATE: Final = sa.case((AttachHandle.lost_ms.is_not(None), LOST), else_=AttachHandle.state)
_ARQS: Final = sa.select(Arq.state, _COUNT).group_by(Arq.state)
_EACH: Final = units.join(
    sa.select(
        Host.name, Deployable.resource_class, _HANDLE_STATE.label("state"), units.WORD.label("word")
    )
).subquery()


class _Units(Row):
    """The number of units of a resource class on a host, by state and by what they count as."""

    name: str = column(_EACH.c.name)
    resource_class: str = column(_EACH.c.resource_class)
    state: str = column(_EACH.c.state)
    word: str = column(_EACH.c.word)
    amount = column(_COUNT)


_UNITS: Final = select(_Units).group_by(*_EACH.c)
# Grouped by label: PostgreSQL does not treat two parameters with one value as the same.
_DEVICES: Final[sa.Select[str, str, int]] = sa.select(
    Device.type, devices.STATE.label("word"), _COUNT
).group_by(Device.type, sa.text("word"))
_HEALTH: Final = sa.select(
    Device.hostname, Device.driver, Device.type, Device.uuid, Device.health
).where(Device.health.is_not(None), Device.lost_ms.is_(None))
_OWNER: Final = sa.func.coalesce(UsageRecord.project_id, "").label("owner")
_IN_USE: Final[sa.Select[str, str, int]] = (
    sa.select(_OWNER, UsageRecord.resource_class, _COUNT)
    .where(UsageRecord.arq_id.is_not(None))
    .group_by(sa.text("owner"), UsageRecord.resource_class)
)
_OPERATIONS: Final = sa.select(Operation.state, _COUNT).group_by(Operation.state)
_DRIVERS: Final = sa.select(Driver.name, Driver.state, _COUNT).group_by(Driver.name, Driver.state)


class ReadDevice(Row):
    """A device of an agent's host, with the agent's epoch."""

    epoch: int | None = column(AGENT_EPOCH)
    host_id = column(Host.id)
    driver = nullable(Device.driver)
    device_key = nullable(Device.device_key)
    uuid = nullable(Device.uuid)
    type = nullable(Device.type)


def devices_of(tx: Transaction, service_host: str) -> Sequence[ReadDevice]:
    """Return the devices of an agent's host.

    A host without devices has one row, in which only ``epoch`` and ``host_id`` are set; an unknown
    host has none.
    """
    return tx.all(
        select(ReadDevice)
        .select_from(Host)
        .outerjoin(Device, Device.host_id == Host.id)
        .where(Host.service_host == service_host)
    )
