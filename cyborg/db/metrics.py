# SPDX-License-Identifier: Apache-2.0
"""How much there is of everything, counted for metrics: six statements, whatever there is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db.models import Arq, AttachHandle, Device, Driver, Service, Work
from cyborg.model.device_life import LOST

Counts = Mapping[tuple[str, ...], int]


@dataclass(frozen=True)
class Totals:
    """Counts by the words that tell things apart.

    ``arqs``, ``handles`` (state), ``devices`` (type, state), ``drivers`` (driver, state, in
    hosts); of ``work`` (kind) also the age of the oldest, in ``ages``; of services (binary, host)
    the ``silence`` of the process that was heard of last. Times are in milliseconds.
    """

    arqs: Counts
    handles: Counts
    devices: Counts
    drivers: Counts
    work: Counts
    ages: Counts
    silence: Counts


def totals(tx: sa.Connection, now: sa.ColumnElement[int]) -> Totals:
    """Count it all."""
    work = tx.execute(
        sa.select(
            Work.kind, _COUNT.label("amount"), (now - sa.func.min(Work.created_ms)).label("age")
        ).group_by(Work.kind)
    ).all()
    silence = tx.execute(
        sa.select(Service.binary, Service.host, now - sa.func.max(Service.last_seen_ms)).group_by(
            Service.binary, Service.host
        )
    )
    return Totals(
        arqs=_counts(tx, _ARQS),
        handles=_counts(tx, _HANDLES),
        devices=_counts(tx, _DEVICES),
        drivers=_counts(tx, _DRIVERS),
        work={(row.kind,): int(row.amount) for row in work},
        ages={(row.kind,): int(row.age) for row in work},
        silence={(binary, host): int(ms) for binary, host, ms in silence},
    )


def _counts(tx: sa.Connection, query: sa.Select[*tuple[Any, ...]]) -> Counts:
    return {tuple(row[:-1]): int(row[-1]) for row in tx.execute(query)}


_COUNT: Final = sa.func.count()
_HANDLE_STATE: Final = sa.case((AttachHandle.lost_ms.is_not(None), LOST), else_=AttachHandle.state)
_DEVICE_STATE: Final = sa.case((Device.lost_ms.is_not(None), LOST), else_=Device.status)
_ARQS: Final[Any] = sa.select(Arq.state, _COUNT).group_by(Arq.state)
# By position: PostgreSQL does not know two parameters for the same.
_HANDLES: Final[Any] = sa.select(_HANDLE_STATE.label("word"), _COUNT).group_by(sa.text("word"))
_DEVICES: Final[Any] = sa.select(Device.type, _DEVICE_STATE.label("word"), _COUNT).group_by(
    Device.type, sa.text("word")
)
_DRIVERS: Final[Any] = sa.select(Driver.name, Driver.state, _COUNT).group_by(
    Driver.name, Driver.state
)
