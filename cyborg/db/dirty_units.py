# SPDX-License-Identifier: Apache-2.0
"""Units that have had a guest and were not cleaned since, whether they still have a row or not.

A row begins with the bind, because the guest may write from then on. It ends with a completed
cleaning, or with the order of an operator. Nothing that deletes hosts, devices, deployables or
handles touches it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import bulk, events
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, DirtyUnit
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model.cleaning import CleanLevel, stricter
from cyborg.model.device import UNRELEASED, Confidence, HandleState
from cyborg.model.notification import UNIT_LEFT

#: How many units a refusal names.
_NAMED: Final = 10
#: The width of ``DirtyUnit.number``.
_WIDTH: Final = 255


class PlacedUnit(Row):
    """A unit that has a handle, with all that identifies it."""

    id = column(AttachHandle.id)
    handle_uuid = column(AttachHandle.uuid)
    hostname = column(Device.hostname)
    driver = column(Device.driver)
    device_key = column(Device.device_key)
    handle_key = column(AttachHandle.handle_key)
    attach_info = column(AttachHandle.attach_info)
    vendor = column(Device.vendor)
    identity = column(Device.identity)
    device_uuid = column(Device.uuid)
    deployable_id = column(AttachHandle.deployable_id)
    clean = column(Deployable.clean)
    #: The level at which it must be cleaned; None: it is not dirty.
    level = nullable(DirtyUnit.level)


class Dirty(DirtyUnit):
    """A dirty unit, as it was when its guest got it."""

    __abstract__ = True

    #: Whether its handle has gone.
    homeless = column(~sa.exists().where(AttachHandle.uuid == DirtyUnit.handle_uuid))


@dataclass(frozen=True)
class Use:
    """A unit that a guest gets, and the level at which it must be cleaned afterwards."""

    handle_id: int
    level: CleanLevel
    arq_uuid: str | None
    instance_uuid: str | None


#: Columns that say where a unit is and what identifies it.
_PLACE: Final = (
    *("handle_uuid", "hostname", "driver", "device_key", "handle_key", "attach_info"),
    *("vendor", "identity"),
)
#: Columns that say what made a unit dirty.
_ORIGIN: Final = ("level", "arq_uuid", "instance_uuid", "since_ms", "fault")
#: The level at which the unit of a handle must be cleaned, by ``Arq.id``.
LEVEL_OF_ARQ: sa.ScalarSelect[Any] = (
    sa.select(DirtyUnit.level)
    .join(AttachHandle, AttachHandle.uuid == DirtyUnit.handle_uuid)
    .where(AttachHandle.arq_id == Arq.id)
    .correlate(Arq)
    .scalar_subquery()
)
_PLACED = (
    select(PlacedUnit)
    .join(Deployable, Deployable.id == AttachHandle.deployable_id)
    .join(Device, Device.id == Deployable.device_id)
    .outerjoin(DirtyUnit, DirtyUnit.handle_uuid == AttachHandle.uuid)
)
_OF_HANDLES = _PLACED.where(AttachHandle.id.in_(sa.bindparam("ids", expanding=True)))


def mark(tx: Transaction, uses: Sequence[Use]) -> None:
    """Store that guests get units; the caller has locked their handles.

    A unit that is dirty already keeps its row, with the stricter level.
    """
    if not uses:
        return
    levels = {use.handle_id: use for use in uses}
    added = []
    for unit in tx.all(_OF_HANDLES, {"ids": sorted(levels)}):
        use = levels[unit.id]
        if unit.level is None:
            more = {"arq_uuid": use.arq_uuid, "instance_uuid": use.instance_uuid}
            added.append({**place(unit), **more, "level": use.level.value, "fault": None})
        elif (required := stricter(CleanLevel(unit.level), use.level)) != unit.level:
            tx.execute(
                sa.update(DirtyUnit)
                .where(DirtyUnit.handle_uuid == unit.handle_uuid)
                .values(level=required)
            )
    bulk.insert(tx, DirtyUnit, added, {"since_ms": tx.now})


def level_of(tx: Transaction, handle_uuid: str) -> CleanLevel | None:
    """Return the level at which the unit of a handle must be cleaned; None: it is not dirty."""
    query = sa.select(DirtyUnit.level).where(DirtyUnit.handle_uuid == handle_uuid)
    word = tx.execute(query).scalar()
    return None if word is None else CleanLevel(word)


def note_fault(tx: Transaction, handle_uuid: str, fault: str | None) -> None:
    """Store why a dirty unit could not be cleaned."""
    tx.execute(sa.update(DirtyUnit).where(DirtyUnit.handle_uuid == handle_uuid).values(fault=fault))


def end(tx: Transaction, handle_id: int, handle_uuid: str) -> None:
    """Store that a unit is clean; if an ARQ has waited for it, the unit is dirty again."""
    own = DirtyUnit.handle_uuid == handle_uuid
    holder = tx.execute(
        sa.select(Arq.uuid, Arq.instance_uuid)
        .join(AttachHandle, AttachHandle.arq_id == Arq.id)
        .where(AttachHandle.id == handle_id)
    ).first()
    if holder is None:
        tx.execute(sa.delete(DirtyUnit).where(own))
    else:
        values = {"arq_uuid": holder.uuid, "instance_uuid": holder.instance_uuid, "fault": None}
        tx.execute(sa.update(DirtyUnit).where(own).values(since_ms=tx.now, **values))


def rename_host(tx: Transaction, host_id: int, name: str) -> None:
    """Let the dirty units of a host follow its new name; its devices have the former one."""
    former = sa.select(Device.hostname).where(Device.host_id == host_id).distinct()
    tx.execute(sa.update(DirtyUnit).where(DirtyUnit.hostname.in_(former)).values(hostname=name))


def are_around(tx: Transaction, hostname: str, numbers: Collection[str]) -> tuple[bool, bool]:
    """Return whether ``around`` returns any unit, and whether the host ever had a guest.

    The latter is what the history, the dirty units and the requests show. A host that was removed,
    or that got its name from another one, counts as if it had guests.
    """
    dirty = sa.exists().where(_is_around(hostname, numbers))
    used = sa.or_(
        dirty,
        sa.exists().where(Arq.hostname == hostname),
        events.tell_of_guests(hostname),
    )
    row = tx.execute(sa.select(*(sa.case((term, 1), else_=0) for term in (dirty, used)))).one()
    return bool(row[0]), bool(row[1])


def around(tx: Transaction, hostname: str, numbers: Collection[str]) -> Sequence[Dirty]:
    """Return the dirty units of a host, and those of any host whose device has such a number."""
    return tx.all(select(Dirty).where(_is_around(hostname, numbers)).order_by(DirtyUnit.id))


def _is_around(hostname: str, numbers: Collection[str]) -> sa.ColumnElement[bool]:
    return sa.or_(DirtyUnit.hostname == hostname, DirtyUnit.number.in_(sorted(numbers)))


def free_units(tx: Transaction, host_id: int) -> Sequence[PlacedUnit]:
    """Return the present units of a host that are free and not dirty."""
    return tx.all(
        _PLACED.where(
            Device.host_id == host_id,
            *(part.lost_ms.is_(None) for part in (AttachHandle, Deployable, Device)),
            AttachHandle.state == HandleState.READY.value,
            AttachHandle.arq_id.is_(None),
            DirtyUnit.id.is_(None),
        ).order_by(AttachHandle.id)
    )


def adopt(tx: Transaction, suspects: Sequence[tuple[PlacedUnit, Dirty]]) -> None:
    """Store that units may be these dirty ones.

    A dirty unit whose handle has gone continues as the first of them; the others are dirty beside
    it, because only one of them is cleaned by its cleaning.
    """
    taken: set[int] = set()
    added = []
    for unit, dirty in suspects:
        if dirty.homeless and dirty.id not in taken:
            taken.add(dirty.id)
            tx.execute(sa.update(DirtyUnit).where(DirtyUnit.id == dirty.id).values(**place(unit)))
        else:
            origin = {name: getattr(dirty, name) for name in _ORIGIN}
            added.append({**place(unit), **origin})
    bulk.insert(tx, DirtyUnit, added)


def add(tx: Transaction, units: Sequence[tuple[PlacedUnit, CleanLevel]]) -> None:
    """Store that units may have the data of guests that are not known."""
    blank = dict.fromkeys(("arq_uuid", "instance_uuid", "fault"))
    rows = [{**blank, **place(unit), "level": level.value} for unit, level in units]
    bulk.insert(tx, DirtyUnit, rows, {"since_ms": tx.now})


def check_clean(tx: Transaction, *terms: sa.ColumnElement[bool], force: bool | None) -> None:
    """Raise Conflict, which lists the units, if the host has not cleaned units yet.

    ``terms`` select the units. With ``force`` the history gets an event for each instead; the
    units stay dirty.
    """
    unclean = sa.or_(
        AttachHandle.state.in_(sorted(state.value for state in UNRELEASED)), AttachHandle.cleaning
    )
    units = tx.all(_PLACED.where(unclean, *terms).order_by(AttachHandle.id))
    if units and not force:
        names = [f"{unit.handle_key} of {unit.hostname}" for unit in units[:_NAMED]]
        more = f" and {len(units) - _NAMED} more" if len(units) > _NAMED else ""
        raise exception.Conflict(
            reason=f"These units are not cleaned after their last guests: {', '.join(names)}"
            f"{more}. Let their host clean them, or free those that you have cleaned with cyborg "
            "accelerator-update --free-unit. An administrator can force the removal: the units "
            "stay dirty."
        )
    events.record(
        tx,
        [
            events.Entry(
                "device",
                unit.device_uuid,
                UNIT_LEFT,
                hostname=unit.hostname,
                reason=f"unit {unit.handle_key} was not cleaned",
            )
            for unit in units
        ],
    )


def place(unit: PlacedUnit) -> dict[str, Any]:
    """Return the columns that say where a unit is and what identifies it."""
    columns = {name: getattr(unit, name) for name in _PLACE}
    return {**columns, "number": number(unit.identity)}


def number(identity: Sequence[Mapping[str, str]] | None) -> str | None:
    """Return the strongest number that moves with a device, as ``DirtyUnit.number`` has it."""
    for item in identity or ():
        if item["confidence"] != Confidence.PLACE.value:
            return f"{item['kind']}:{item['value']}"[:_WIDTH]
    return None
