# SPDX-License-Identifier: Apache-2.0
"""Fill columns that an upgrade leaves empty, while services run; all functions are idempotent."""

from collections.abc import Callable, Collection

import sqlalchemy as sa

from cyborg.db.engine import Database, Reader, retried
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Instance
from cyborg.model.device import DeviceStatus, HandleState

_BATCH = 100


def project_ids(db: Database, project_of: Callable[[str], str | None]) -> int:
    """Set the project of ARQs without one to that of their instance; return how many were set.

    ``project_of`` is called once per instance, outside any transaction. Instances for which it
    returns None are skipped. An exception that it raises ends the run; rows that were filled
    before stay filled.
    """
    filled = 0
    after = ""
    while instances := _instances_without_project(db, after):
        for instance in instances:
            project = project_of(instance)
            if project is not None:
                filled += _set_project(db, instance, project)
        after = instances[-1]
    return filled


def device_states(db: Database) -> tuple[int, int]:
    """Set ``device_state`` of devices without one: allocated if a handle is in use, else available.

    Each batch is a separate transaction, so running services do not wait. Return how many devices
    were filled, and how many needed it. The first number is smaller if another process filled
    some of them.
    """
    filled = needed = after = 0
    while devices := _devices_without_state(db, after):
        needed += len(devices)
        filled += _set_states(db, devices)
        after = devices[-1]
    return filled, needed


def stateless_devices(db: Reader) -> int:
    """Return how many devices have no ``device_state`` yet."""
    with db.reader() as tx:
        return tx.scalar(sa.select(sa.func.count()).where(Device.device_state.is_(None))) or 0


def inactive_devices(db: Reader) -> int:
    """Return how many devices wait for an operator to enable them."""
    inactive = Device.status == DeviceStatus.INACTIVE.value
    with db.reader() as tx:
        return tx.scalar(sa.select(sa.func.count()).where(inactive, Device.lost_ms.is_(None))) or 0


@retried
def _devices_without_state(db: Reader, after: int) -> list[int]:
    with db.reader() as tx:
        return list(
            tx.scalars(
                sa.select(Device.id)
                .where(Device.device_state.is_(None), Device.id > after)
                .order_by(Device.id)
                .limit(_BATCH)
            )
        )


@retried
def _set_states(db: Database, devices: Collection[int]) -> int:
    used = (
        sa.exists()
        .where(Deployable.device_id == Device.id)
        .where(AttachHandle.deployable_id == Deployable.id)
        .where(
            sa.or_(AttachHandle.arq_id.is_not(None), AttachHandle.state != HandleState.READY.value)
        )
    )
    with db.writer() as tx:
        return tx.execute(
            sa.update(Device)
            .where(Device.id.in_(devices), Device.device_state.is_(None))
            .values(device_state=sa.case((used, "allocated"), else_="available"))
        ).rowcount


@retried
def _instances_without_project(db: Database, after: str) -> list[str]:
    with db.reader() as tx:
        uuids = tx.scalars(
            sa.select(Arq.instance_uuid)
            .where(Arq.project_id.is_(None), Arq.instance_uuid > after)
            .distinct()
            .order_by(Arq.instance_uuid)
            .limit(_BATCH)
        )
        return [uuid for uuid in uuids if uuid is not None]


@retried
def _set_project(db: Database, instance: str, project: str) -> int:
    with db.writer() as tx:
        tx.execute(
            sa.update(Instance)
            .where(Instance.uuid == instance, Instance.project_id.is_(None))
            .values(project_id=project)
        )
        return tx.execute(
            sa.update(Arq)
            .where(Arq.instance_uuid == instance, Arq.project_id.is_(None))
            .values(project_id=project)
        ).rowcount
