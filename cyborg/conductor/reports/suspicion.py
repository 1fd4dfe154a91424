# SPDX-License-Identifier: Apache-2.0
"""Find the units of a report that may have the data of a guest, and have them cleaned.

A dirty unit may come back as another row: its former row was removed, its driver gives it another
key, the bus has other numbers, or the database is older than its guest. Doubt means dirty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cyborg.conductor.reports.device_diff import DeviceAction, DeviceDiff
from cyborg.conductor.reports.matching import differ, numbers
from cyborg.db import attach_handles, dirty_units, events, hosts, work
from cyborg.db.dirty_units import Dirty, PlacedUnit
from cyborg.db.transaction import Transaction
from cyborg.model.cleaning import (
    CLEAN,
    CLEANING,
    FIRST,
    CleanLevel,
    CleanRecord,
    CleanResult,
    level,
)
from cyborg.model.device import identity_of
from cyborg.model.notification import UNIT_SUSPECTED
from cyborg.model.work import WorkKind

_UNSEEN: Final = "it is seen for the first time on a host that had guests"


class FirstSight(Enum):
    """Which units are cleaned because this service sees them for the first time."""

    #: None: the existing service offered them.
    NONE = auto()
    #: Those without a row, where the host had guests.
    NEW = auto()
    #: All free ones: the existing service may not have cleaned them.
    ALL = auto()


def suspect(tx: Transaction, diff: DeviceDiff, first: FirstSight) -> bool:
    """Have those units of a written difference cleaned that may have the data of a guest.

    A unit that was not there before may be a dirty unit with the same number, key or address, and
    any dirty unit of the same manufacturer unless their numbers tell otherwise. Where devices came
    or went, this is also true of free units that were there: without numbers, devices may have
    exchanged their addresses. Others are cleaned as ``first`` says, if the host can clean them.
    Return whether there is any; the caller has locked the host.
    """
    if not diff.units_changed and first is not FirstSight.ALL:
        return False
    identities = [columns.get("identity") for columns in diff.devices.reported.values()]
    unique = {number for identity in identities if (number := dirty_units.number(identity))}
    has_dirty, had_guests = dirty_units.are_around(tx, diff.hostname, unique)
    if not had_guests and first is not FirstSight.ALL:
        return False
    dirty = dirty_units.around(tx, diff.hostname, unique) if has_dirty else ()
    before, stored = diff.units_before(), diff.stored_units()
    suspects = []
    for unit in dirty_units.free_units(tx, diff.host_id):
        stayed = unit.id in before
        matches = []
        if diff.devices_changed or not stayed:
            matches = [row for row in dirty if _may_be(unit, row, stayed=stayed)]
        if matches:
            origin = min(matches, key=lambda row: _distance(unit, row))
            reason = (
                f"it may be the unit {origin.handle_key} of {origin.driver}, which was not cleaned "
                f"after instance {origin.instance_uuid}"
            )
            suspects.append(_Suspect(unit, CleanLevel(origin.level), reason, origin))
            continue
        is_first = first is FirstSight.NEW and unit.id not in stored
        required = level(unit.clean, None)
        if required in CLEANING and (is_first or first is FirstSight.ALL):
            suspects.append(_Suspect(unit, required, _UNSEEN, first=True))
    changes = _have_cleaned(tx, suspects)
    diff.history += changes
    return bool(changes)


def hold(tx: Transaction, host_id: int) -> int:
    """Neither offer nor reset the units of a host until an audit has looked.

    The database is older than the host: guests that it does not know may have these units, or have
    left them. Free units that the host can clean are dirty; they are cleaned when the host is
    checked, unless the audit sets them aside. Return how many there are.
    """
    hosts.set_unchecked(tx, host_id, unchecked=True)
    suspects = [
        _Suspect(unit, required, "the database is older than the host's last guests")
        for unit in dirty_units.free_units(tx, host_id)
        if (required := level(unit.clean, None)) in CLEANING
    ]
    changes = _have_cleaned(tx, suspects)
    events.record(tx, [change.entry(hosts.name_of(tx, host_id)) for change in changes])
    return len(changes)


@dataclass(frozen=True)
class _Suspect:
    """A free unit that may have the data of a guest; ``origin``: that of this dirty unit.

    ``first``: the service has not seen it before.
    """

    unit: PlacedUnit
    level: CleanLevel
    reason: str
    origin: Dirty | None = None
    first: bool = False


def _have_cleaned(tx: Transaction, suspects: Sequence[_Suspect]) -> list[DeviceAction]:
    """Reserve units that are still free, add the work that cleans them, and return the events."""
    # A bind may have been faster; the lock of the host does not stop it.
    ids = {suspect.unit.id for suspect in suspects}
    ready = attach_handles.lock_ready(tx, ids) if ids else {}
    still_free = {id_ for id_, arq_id in ready.items() if arq_id is None}
    suspects = [suspect for suspect in suspects if suspect.unit.id in still_free]
    dirty_units.adopt(
        tx, [(suspect.unit, suspect.origin) for suspect in suspects if suspect.origin]
    )
    dirty_units.add(
        tx, [(suspect.unit, suspect.level) for suspect in suspects if not suspect.origin]
    )
    for required in CLEANING:
        ids = {suspect.unit.id for suspect in suspects if suspect.level is required}
        if ids:
            record = CleanRecord(CleanResult.CLEANING, required).columns()
            attach_handles.clean_first(tx, ids, record)
    tasks = [
        {
            "kind": WorkKind.RELEASE,
            "deployable_id": suspect.unit.deployable_id,
            "attach_handle_id": suspect.unit.id,
            "spec": {CLEAN: suspect.level.value, **({FIRST: True} if suspect.first else {})},
        }
        for suspect in suspects
    ]
    work.add(tx, tasks)
    return [
        DeviceAction(
            suspect.unit.device_uuid,
            UNIT_SUSPECTED,
            reason=f"unit {suspect.unit.handle_key}: {suspect.reason}",
        )
        for suspect in suspects
    ]


def _may_be(unit: PlacedUnit, row: Dirty, *, stayed: bool) -> bool:
    """Return whether a unit may be a dirty one; ``stayed``: it had this place before.

    A unit that stayed can only have become another one if neither device has a number.
    """
    own, others = numbers(identity_of(unit.identity)), numbers(identity_of(row.identity))
    if own.keys() & others.keys():
        return not stayed and not differ(own, others)
    if row.hostname != unit.hostname:
        return False
    if stayed:
        return not own and not others and (unit.driver, unit.vendor) == (row.driver, row.vendor)
    return _same_place(unit, row) or unit.vendor == row.vendor


def _same_place(unit: PlacedUnit, row: Dirty) -> bool:
    return (
        unit.device_key == row.device_key
        or unit.handle_key == row.handle_key
        or unit.attach_info == row.attach_info
    )


def _distance(unit: PlacedUnit, row: Dirty) -> tuple[bool, ...]:
    """Return how little a unit and a dirty one have in common; equal numbers count most."""
    own, others = numbers(identity_of(unit.identity)), numbers(identity_of(row.identity))
    return (
        not own.keys() & others.keys(),
        unit.handle_key != row.handle_key,
        not _same_place(unit, row),
        not row.homeless,
        row.level != CleanLevel.FULL,
    )
