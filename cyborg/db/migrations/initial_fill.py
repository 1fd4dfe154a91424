# SPDX-License-Identifier: Apache-2.0
"""Fill the new tables and columns of revision c58e1f7a3b92 from the existing rows.

Each step changes only empty columns, so an interrupted upgrade continues where it stopped.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from cyborg.db.clock import db_now_ms
from cyborg.db.migrations import initial_tables as t
from cyborg.db.migrations.initial_facts import Facts, group_spec, holders, load

LOG = logging.getLogger(__name__)
T = TypeVar("T")
_ROWS_PER_STATEMENT = 500


def fill(connection: sa.Connection) -> None:
    """Fill all tables and columns, in the order of their dependencies."""
    facts = load(connection)
    _devices(connection, facts)
    _deployables(connection, facts)
    _handles(connection, facts)
    _group_specs(connection)
    _instances(connection)
    _uses(connection)


def _devices(connection: sa.Connection, facts: Facts) -> None:
    # Remove duplicates in Python: on MySQL the old columns ignore case, the new ones do not.
    existing = set(connection.scalars(sa.select(t.HOSTS.c.name)))
    names = sorted({device.hostname for device in facts.devices} - existing)
    for batch in _batches(names):
        rows = [{"name": name, "updated_ms": db_now_ms()} for name in batch]
        connection.execute(sa.insert(t.HOSTS).values(rows))
    hosts = {
        row.name: row.id for row in connection.execute(sa.select(t.HOSTS.c.name, t.HOSTS.c.id))
    }
    empty = _ids(connection, t.DEVICES, t.DEVICES.c.host_id)
    values = [
        {"row": d.id, "host": hosts[d.hostname], "by": d.driver, "key": d.key}
        for d in facts.devices
        if d.id in empty
    ]
    columns = {"host_id": "host", "driver": "by", "device_key": "key"}
    _update(connection, t.DEVICES, columns, values)


def _deployables(connection: sa.Connection, facts: Facts) -> None:
    c = t.DEPLOYABLES.c
    empty = _ids(connection, t.DEPLOYABLES, c.resource_class) | _ids(
        connection, t.DEPLOYABLES, c.rp_uuid
    )
    values = [
        {"row": d.id, "rc": d.resource_class, "rp": d.rp_uuid}
        for d in facts.deployables
        if d.id in empty
    ]
    _update(connection, t.DEPLOYABLES, {"resource_class": "rc", "rp_uuid": "rp"}, values)


def _handles(connection: sa.Connection, facts: Facts) -> None:
    c = t.ATTACH_HANDLES.c
    empty = _ids(connection, t.ATTACH_HANDLES, c.handle_key)
    values = [{"row": h.id, "key": h.key} for h in facts.handles if h.id in empty]
    _update(connection, t.ATTACH_HANDLES, {"handle_key": "key"}, values)
    # The old column in_use is ignored: after a crash it may be set although no ARQ has the handle.
    held = dict(holders(connection))
    _ownerless(connection, {arq: handle for handle, arq in held.items()})
    statement = sa.update(t.ATTACH_HANDLES).where(
        c.id == sa.bindparam("row"), c.arq_id.is_(None), c.state == "ready"
    )
    if held:
        connection.execute(
            statement.values(arq_id=sa.bindparam("arq"), updated_at=c.updated_at),
            [{"row": handle, "arq": arq} for handle, arq in held.items()],
        )


def _ownerless(connection: sa.Connection, handles: dict[int, int]) -> None:
    """End the binds that have no instance, which may have been lost: any guest may have the unit.

    Their handles (``handles``: ARQ id → handle id) are in quarantine until an operator frees them.
    """
    arqs, c = t.ARQS.c, t.ATTACH_HANDLES.c
    rows = connection.execute(
        sa.select(arqs.id, arqs.uuid, arqs.state)
        .where(arqs.state.in_(["Bound", "BindStarted"]), arqs.instance_uuid.is_(None))
        .order_by(arqs.id)
    ).all()
    for row in rows:
        handle_id = handles.get(row.id)
        unit = "it had no attach handle"
        if handle_id is not None:
            own = c.id == handle_id
            connection.execute(
                sa.update(t.ATTACH_HANDLES).where(own).values(state="quarantined", suspect=True)
            )
            uuid = connection.scalar(sa.select(c.uuid).where(own))
            unit = f"attach handle {uuid} is in quarantine until an operator frees it"
        reason = f"It was {row.state} without an instance before the upgrade; {unit}."
        LOG.warning("ARQ %s is BindFailed now: %s", row.uuid, reason)
        ended = {"state": "BindFailed", "deployable_id": None, "fault": reason}
        connection.execute(sa.update(t.ARQS).where(arqs.id == row.id).values(ended))


def _group_specs(connection: sa.Connection) -> None:
    arqs, profiles = t.ARQS.c, t.DEVICE_PROFILES.c
    used = connection.execute(
        sa.select(profiles.id, profiles.profile_json, arqs.device_profile_group_id)
        .join(t.ARQS, arqs.device_profile_id == profiles.id)
        .where(arqs.group_spec.is_(None))
        .distinct()
    ).all()
    for profile_id, profile_json, group_id in used:
        connection.execute(
            sa.update(t.ARQS)
            .where(
                arqs.device_profile_id == profile_id,
                arqs.device_profile_group_id == group_id,
                arqs.group_spec.is_(None),
            )
            .values(group_spec=group_spec(profile_json, group_id))
        )


def _instances(connection: sa.Connection) -> None:
    c = t.ARQS.c
    existing = set(connection.scalars(sa.select(t.INSTANCES.c.uuid)))
    rows: dict[str, dict[str, Any]] = {}
    for row in connection.execute(
        sa.select(c.instance_uuid, c.project_id, c.hostname, c.state)
        .where(c.instance_uuid.is_not(None))
        .order_by(c.id)
    ):
        # All ARQs of an instance have the same values, except one whose bind failed. A bound ARQ
        # has precedence.
        if row.instance_uuid in existing or (row.instance_uuid in rows and row.state != "Bound"):
            continue
        rows[row.instance_uuid] = {
            "uuid": row.instance_uuid,
            "project_id": row.project_id,
            "hostname": row.hostname,
            "updated_ms": db_now_ms(),
        }
    for batch in _batches(list(rows.values())):
        connection.execute(sa.insert(t.INSTANCES).values(batch))


def _uses(connection: sa.Connection) -> None:
    """Begin to count what ARQs have; the existing service does not say since when they have it."""
    arqs, uses = t.ARQS, t.USAGE_RECORDS
    if connection.scalar(sa.select(sa.func.count()).select_from(arqs)) and not connection.scalar(
        sa.select(sa.func.count()).select_from(t.USAGE_START)
    ):
        connection.execute(sa.insert(t.USAGE_START).values(at_ms=db_now_ms()))
    values: dict[str, sa.ColumnElement[Any]] = {
        "arq_id": arqs.c.id,
        "instance_uuid": arqs.c.instance_uuid,
        "project_id": arqs.c.project_id,
        "profile": t.DEVICE_PROFILES.c.name,
        "resource_class": t.DEPLOYABLES.c.resource_class,
        "type": t.DEVICES.c.type,
        "hostname": t.DEVICES.c.hostname,
        "began_ms": sa.select(sa.func.max(t.USAGE_START.c.at_ms)).scalar_subquery(),
    }
    held = (
        sa.select(*values.values())
        .select_from(t.ATTACH_HANDLES)
        .join(arqs, arqs.c.id == t.ATTACH_HANDLES.c.arq_id)
        .join(t.DEVICE_PROFILES, t.DEVICE_PROFILES.c.id == arqs.c.device_profile_id)
        .join(t.DEPLOYABLES, t.DEPLOYABLES.c.id == t.ATTACH_HANDLES.c.deployable_id)
        .join(t.DEVICES, t.DEVICES.c.id == t.DEPLOYABLES.c.device_id)
        .where(
            arqs.c.instance_uuid.is_not(None),
            ~sa.exists().where(uses.c.arq_id == arqs.c.id),
        )
    )
    connection.execute(sa.insert(uses).from_select(list(values), held))


def _ids(connection: sa.Connection, table: sa.Table, empty: sa.Column[Any]) -> set[int]:
    return set(connection.scalars(sa.select(table.c.id).where(empty.is_(None))))


def _update(
    connection: sa.Connection,
    table: sa.Table,
    columns: dict[str, str],
    values: list[dict[str, Any]],
) -> None:
    if values:
        statement = sa.update(table).where(table.c.id == sa.bindparam("row"))
        targets: dict[str, Any] = {name: sa.bindparam(key) for name, key in columns.items()}
        connection.execute(statement.values(targets), values)


def _batches(rows: Sequence[T]) -> Iterator[list[T]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, _ROWS_PER_STATEMENT)):
        yield batch
