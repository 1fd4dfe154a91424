# SPDX-License-Identifier: Apache-2.0
"""The rows by which processes prove that they live, and the epochs that fence their forerunners."""

from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.models import Service


@dataclass(frozen=True)
class Process:
    """Who a process is; ``process`` tells several of one binary on a host apart."""

    host: str
    binary: str
    version: str
    endpoint: str
    process: str = ""


def register(
    tx: sa.Connection, now: sa.ColumnElement[int], process: Process, status: str
) -> tuple[int, int]:
    """Begin a new epoch of this process; answers (id, epoch).

    What an older epoch did or does under the same name no longer counts from now on.
    """
    row = tx.execute(
        sa.select(Service.id, Service.epoch).where(*_named(process)).with_for_update()
    ).one_or_none()
    values = {
        "version": process.version,
        "endpoint": process.endpoint,
        "status": status,
        "last_seen_ms": now,
    }
    if row is None:
        fresh = {"host": process.host, "binary": process.binary, "process": process.process}
        made = tx.execute(
            sa.insert(Service).values(uuid=str(uuid4()), disabled=False, epoch=1, **fresh, **values)
        )
        return int((made.inserted_primary_key or (0,))[0]), 1
    tx.execute(sa.update(Service).where(Service.id == row.id).values(epoch=row.epoch + 1, **values))
    return int(row.id), int(row.epoch) + 1


def beat(
    tx: sa.Connection, now: sa.ColumnElement[int], process: Process, *, epoch: int, status: str
) -> bool:
    """Renew the lease of an epoch; False when it is over."""
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process), Service.epoch == epoch)
        .values(last_seen_ms=now, status=status, version=process.version)
    )
    return int(result.rowcount) == 1


def current(tx: sa.Connection, now: sa.ColumnElement[int], process: Process) -> Record:
    """The epoch in force and its age since last seen: (epoch, silent_ms); None when unknown."""
    return tx.execute(
        sa.select(Service.epoch, (now - Service.last_seen_ms).label("silent_ms")).where(
            *_named(process)
        )
    ).one_or_none()


def forget_silent(
    tx: sa.Connection, now: sa.ColumnElement[int], process: Process, *, silent_ms: int
) -> None:
    """Remove rows of the same binary and host whose process ended long ago."""
    tx.execute(
        sa.delete(Service).where(
            Service.host == process.host,
            Service.binary == process.binary,
            Service.process != process.process,
            Service.last_seen_ms < now - silent_ms,
        )
    )


def _named(process: Process) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Service.host == process.host,
        Service.binary == process.binary,
        Service.process == process.process,
    )
