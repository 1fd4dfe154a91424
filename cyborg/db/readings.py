# SPDX-License-Identifier: Apache-2.0
"""The latest readings of each host: what its devices measured, one row for each host.

Older readings are not kept: they are in the notifications and in Prometheus.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from cyborg.db.models import Host, HostReadings
from cyborg.db.transaction import Transaction

#: Age after which readings are not shown any more, in milliseconds: the host has sent no others.
LIFETIME_MS: Final = 3_600_000

#: The figures of each device, by its uuid.
Figures = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Reading:
    """The figures of a device, and when they came in, in milliseconds."""

    at_ms: int
    figures: Mapping[str, float]


def store(tx: Transaction, host_id: int, figures: Figures) -> None:
    """Replace the readings of a host; one statement, and three more at its first readings."""
    values = {"at_ms": tx.now, "figures": dict(figures)}
    update = sa.update(HostReadings).where(HostReadings.host_id == host_id).values(values)
    if tx.execute(update).rowcount:
        return
    # The lock keeps another conductor from inserting the row at the same time.
    tx.execute(sa.select(Host.id).where(Host.id == host_id).with_for_update())
    if not tx.execute(update).rowcount:
        tx.execute(sa.insert(HostReadings).values(host_id=host_id, **values))


def of_hosts(tx: Transaction, host_ids: Collection[int]) -> dict[str, Reading]:
    """Return the latest readings of the devices of these hosts, by the uuid of the device."""
    if not host_ids:
        return {}
    rows = tx.execute(
        sa.select(HostReadings.at_ms, HostReadings.figures).where(
            HostReadings.host_id.in_(sorted(host_ids)), HostReadings.at_ms > tx.now - LIFETIME_MS
        )
    )
    return {
        uuid: Reading(at_ms, figures)
        for at_ms, of_devices in rows
        for uuid, figures in (of_devices or {}).items()
    }
