# SPDX-License-Identifier: Apache-2.0
"""Match the devices of a report to the rows of their host.

A number that moves with a device identifies it, such as a serial number: a card that was put into
another slot keeps its row, and a card that replaced another one gets a new row. Where no such
number is known of both, the key decides.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from cyborg.db import models
from cyborg.model.attribute import Origin
from cyborg.model.device import Confidence, Device, Identity, IdentityKind, identity_of

#: The numbers that move with a device, strongest first.
Numbers = dict[IdentityKind, str]


def match(
    reported: Sequence[tuple[str, Device]], rows: Sequence[models.Device]
) -> dict[int, models.Device]:
    """Return the rows of the devices that are stored already: position in the report → row.

    A device gets, in this order: the row with its number, if no other device and no other row has
    this number; the row with its driver and key; the row with its key, so that a card which another
    driver has taken over (or whose driver an upgrade guessed wrong) keeps its uuid. It never gets a
    row with another number. Devices that operators created stay with their driver and key.
    """
    reported_numbers = {
        index: numbers(device.identity) for index, (_, device) in enumerate(reported)
    }
    row_numbers = {row.id: numbers(stored_identity(row)) for row in rows}
    free = {row.id: row for row in rows}
    matched: dict[int, models.Device] = {}

    def take(index: int, row: models.Device | None) -> None:
        if row is None or row.id not in free or index in matched:
            return
        if is_operator_created(row) or not differ(reported_numbers[index], row_numbers[row.id]):
            matched[index] = free.pop(row.id)

    holders = _unambiguous(row_numbers)
    by_place = {(row.driver, row.device_key): row for row in rows}
    created = {place for place, row in by_place.items() if is_operator_created(row)}
    for number, index in _unambiguous(reported_numbers).items():
        row = free.get(holders.get(number, 0))
        driver, device = reported[index]
        stays = device.operator_created or (driver, device.key) in created
        if not (stays or row is None or is_operator_created(row)):
            take(index, row)
    for index, (driver, device) in enumerate(reported):
        take(index, by_place.get((driver, device.key)))
    by_key = {row.device_key: row for row in free.values() if not is_operator_created(row)}
    for index, (_, device) in enumerate(reported):
        if not device.operator_created:
            take(index, by_key.get(device.key))
    return matched


def displaced(
    stored: Iterable[tuple[str, Device]],
    rows: Iterable[models.Device],
    deployables: Mapping[int, Collection[str]],
    failed: Collection[str],
) -> set[int]:
    """Return the ids of those rows whose place a device has; none of the rows is that of a device.

    This is a device with the same key: of the same driver, with another number, or with the name of
    one of the row's ``deployables`` (row id → names that its driver uses). A name proves nothing
    about the devices of ``failed`` drivers, which may be there. Otherwise two drivers may have
    devices with one key. The address of a device that an operator created is the operator's.
    """
    at: dict[str, list[tuple[str, Device]]] = defaultdict(list)
    for driver, device in stored:
        at[device.key].append((driver, device))
    return {
        row.id
        for row in rows
        if not is_operator_created(row)
        for driver, device in at[row.device_key]
        if row.driver == driver
        or differ(numbers(device.identity), numbers(stored_identity(row)))
        or (
            row.driver not in failed
            and any(part.name in deployables[row.id] for part in device.deployables)
        )
    }


def is_operator_created(row: models.Device) -> bool:
    """Return whether an operator created this device."""
    return row.origin == Origin.OPERATOR.value


def stored_identity(row: models.Device) -> list[Identity]:
    """Return the identity of a row, without what only a later release understands."""
    return identity_of(row.identity)


def differ(numbers: Numbers, others: Numbers) -> bool:
    """Return whether the strongest number that two devices both have is another one."""
    common = [kind for kind in numbers if kind in others]
    return bool(common) and numbers[common[0]] != others[common[0]]


def numbers(identity: Sequence[Identity]) -> Numbers:
    """Return the numbers that move with a device, by kind."""
    return {fact.kind: fact.value for fact in identity if fact.confidence is not Confidence.PLACE}


def _unambiguous(numbers: Mapping[int, Numbers]) -> dict[tuple[IdentityKind, str], int]:
    """Return the numbers that occur once, with the index or id that has them.

    Some manufacturers give a whole batch of boards one number.
    """
    count = Counter(number for values in numbers.values() for number in values.items())
    return {
        number: index
        for index, values in numbers.items()
        for number in values.items()
        if count[number] == 1
    }
