# SPDX-License-Identifier: Apache-2.0
"""SQL for metrics: counts of everything in nine statements, and devices for readings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import notifications
from cyborg.db.base import Record
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
    Work,
)
from cyborg.model import health
from cyborg.model.device import HandleState
from cyborg.model.device_life import LOST

Counts = Mapping[tuple[str, ...], int]


@dataclass(frozen=True)
class Totals:
    """Counts by the words that tell things apart.

    ``arqs`` (state), ``units`` (host, resource class, state) and how many of them no ARQ has
    although they are held (``leaked``), ``devices`` (type, state), ``drivers`` (driver, state, in
    hosts), ``operations`` (state); of ``work`` (kind) also the age of the oldest, in ``ages``, and
    what failed when it was last tried, in ``failing``; of services (binary, host) the ``silence``
    of the process that was heard of last; ``untold`` is how long the oldest event waits to be told.
    ``healthy`` (host, driver, type, device) is 1 or 0 for the devices whose health is known and
    that are there. Times are in milliseconds.
    """

    arqs: Counts
    units: Counts
    leaked: int
    devices: Counts
    healthy: Counts
    drivers: Counts
    operations: Counts
    work: Counts
    ages: Counts
    failing: Counts
    silence: Counts
    untold: int


def totals(tx: sa.Connection, now: sa.ColumnElement[int]) -> Totals:
    """Count it all."""
    work = tx.execute(
        sa.select(
            Work.kind,
            _COUNT.label("amount"),
            (now - sa.func.min(Work.created_ms)).label("age"),
            sa.func.count(Work.error).label("failing"),
        ).group_by(Work.kind)
    ).all()
    silence = tx.execute(
        sa.select(Service.binary, Service.host, now - sa.func.max(Service.last_seen_ms)).group_by(
            Service.binary, Service.host
        )
    )
    units = tx.execute(_UNITS).all()
    return Totals(
        arqs=_counts(tx, _ARQS),
        units={(row.name, row.resource_class, row.word): int(row.amount) for row in units},
        leaked=sum(row.amount - row.owned for row in units if row.word == HandleState.HELD),
        devices=_counts(tx, _DEVICES),
        healthy={
            (row.hostname, row.driver, row.type, row.uuid): int(health.offered(row.health))
            for row in tx.execute(_HEALTH)
        },
        drivers=_counts(tx, _DRIVERS),
        operations=_counts(tx, _OPERATIONS),
        work={(row.kind,): int(row.amount) for row in work},
        ages={(row.kind,): int(row.age) for row in work},
        failing={(row.kind,): int(row.failing) for row in work},
        silence={(binary, host): int(ms) for binary, host, ms in silence},
        untold=notifications.behind(tx, now),
    )


def _counts(tx: sa.Connection, query: sa.Select[*tuple[Any, ...]]) -> Counts:
    return {tuple(row[:-1]): int(row[-1]) for row in tx.execute(query)}


_COUNT: Final = sa.func.count()
_HANDLE_STATE: Final = sa.case((AttachHandle.lost_ms.is_not(None), LOST), else_=AttachHandle.state)
_DEVICE_STATE: Final = sa.case((Device.lost_ms.is_not(None), LOST), else_=Device.status)
_ARQS: Final[Any] = sa.select(Arq.state, _COUNT).group_by(Arq.state)
# By position: PostgreSQL does not know two parameters for the same.
_UNITS: Final[Any] = (
    sa.select(
        Host.name,
        Deployable.resource_class,
        _HANDLE_STATE.label("word"),
        _COUNT.label("amount"),
        sa.func.count(Arq.id).label("owned"),
    )
    .select_from(AttachHandle)
    .join(Deployable, Deployable.id == AttachHandle.deployable_id)
    .join(Device, Device.id == Deployable.device_id)
    .join(Host, Host.id == Device.host_id)
    .outerjoin(Arq, Arq.attach_handle_id == AttachHandle.id)
    .group_by(Host.name, Deployable.resource_class, sa.text("word"))
)
_DEVICES: Final[Any] = sa.select(Device.type, _DEVICE_STATE.label("word"), _COUNT).group_by(
    Device.type, sa.text("word")
)
_HEALTH: Final[Any] = sa.select(
    Device.hostname, Device.driver, Device.type, Device.uuid, Device.health
).where(Device.health.is_not(None), Device.lost_ms.is_(None))
_OPERATIONS: Final[Any] = sa.select(Operation.state, _COUNT).group_by(Operation.state)
_DRIVERS: Final[Any] = sa.select(Driver.name, Driver.state, _COUNT).group_by(
    Driver.name, Driver.state
)


def devices_of(tx: sa.Connection, service_host: str) -> Sequence[Record]:
    """(epoch, driver, device_key, uuid, type) of each device of an agent's host.

    One row without a device where there is none, no row where there is no host.
    """
    return tx.execute(
        sa.select(
            AGENT_EPOCH.label("epoch"), Device.driver, Device.device_key, Device.uuid, Device.type
        )
        .select_from(Host)
        .outerjoin(Device, Device.host_id == Host.id)
        .where(Host.service_host == service_host)
    ).all()
