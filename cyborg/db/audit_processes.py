# SPDX-License-Identifier: Apache-2.0
"""Read for the audit which processes are silent or in trouble."""

from collections.abc import Iterator

import sqlalchemy as sa

from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import Deployable, Device, Host, Service
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.readiness import Process

_HAS_DEPLOYABLES = (
    sa.select(Deployable.id)
    .join(Device, Device.id == Deployable.device_id)
    .where(Device.host_id == Host.id)
    .correlate(Host)
    .exists()
)


class _Agent(Row):
    """A host with the process of its agent, None when it never reported."""

    name = column(Host.name)
    service_host = nullable(Service.host)
    last_seen_ms = nullable(Service.last_seen_ms)
    bus_error = nullable(Service.bus_error)
    bus_error_ms = nullable(Service.bus_error_ms)
    publish_error = nullable(Service.publish_error)
    publish_error_ms = nullable(Service.publish_error_ms)
    clock_error = nullable(Service.clock_error)


def troubled_agents(
    tx: Transaction, now: int, silence: int
) -> Iterator[tuple[str, Process | None]]:
    """Yield hosts with a troubled agent: silent, deaf, unable to publish, or with a wrong clock.

    ``silence`` is from when on an agent is silent. None instead of the agent: it never reported. A
    host without deployables needs no agent.
    """
    query = (
        select(_Agent)
        .outerjoin(Service, IS_AGENT)
        .where(
            sa.or_(
                Service.last_seen_ms < now - silence,
                sa.func.coalesce(Service.bus_error, "") != "",
                sa.func.coalesce(Service.publish_error, "") != "",
                Service.clock_error.is_not(None),
                sa.and_(Service.id.is_(None), _HAS_DEPLOYABLES),
            )
        )
    )
    for row in tx.all(query.order_by(Host.id)):
        host, seen_ms = row.service_host, row.last_seen_ms
        agent = None
        if host is not None and seen_ms is not None:
            agent = Process(
                AGENT,
                host,
                now - seen_ms,
                seen_ms,
                bus_error=row.bus_error,
                bus_error_ms=row.bus_error_ms,
                publish_error=row.publish_error,
                publish_error_ms=row.publish_error_ms,
                clock_error=row.clock_error,
            )
        yield row.name, agent


def conductors(tx: Transaction, now: int) -> list[Process]:
    """Return the processes of the conductors, in order of id."""
    query = sa.select(
        Service.host, Service.last_seen_ms, Service.bus_error, Service.bus_error_ms
    ).where(Service.binary == CONDUCTOR)
    return [
        Process(CONDUCTOR, host, now - seen_ms, seen_ms, error, error_ms)
        for host, seen_ms, error, error_ms in tx.execute(query.order_by(Service.id))
    ]


def silence(tx: Transaction, now: int) -> int | None:
    """Return how long no conductor was up, in milliseconds; None: none ever was.

    Conductors store the heartbeats of the other processes, and one that stops removes its own row.
    """
    seen_ms: int | None = tx.execute(sa.select(sa.func.max(Service.last_seen_ms))).scalar_one()
    return None if seen_ms is None else now - seen_ms
