# SPDX-License-Identifier: Apache-2.0
"""Notifications on the message bus: event types, and their payloads as plain data.

Within one major version a payload only gains fields. Times are ISO 8601 in UTC.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cyborg.model.arq import State
from cyborg.model.cleaning import CleanResult
from cyborg.model.device import LOST, Device, DeviceStatus
from cyborg.model.health import of_action
from cyborg.model.report import Reading

VERSION: Final = "1.0"
ARQ_STATE: Final = "arq.state"
ARQ_HEALTH: Final = "arq.health"
DEVICE_STATE: Final = "device.state"
DEVICE_HEALTH: Final = "device.health"
DEVICE_CLEANING: Final = "device.cleaning"
DRIVER_HEALTH: Final = "driver.health"
SERVICE_DOWN: Final = "service.down"
SERVICE_UP: Final = "service.up"
INSTANCE_UNATTACHED: Final = "instance.unattached"
ACCELERATOR_USAGE: Final = "accelerator.usage"

#: Actions of history records of a device, about the cleaning of one of its units.
UNIT_CLEANED: Final = "unit cleaned"
UNIT_NOT_CLEANED: Final = "unit not cleaned"
UNIT_FREED: Final = "unit freed"
#: An administrator has removed the rows of a unit that was not cleaned.
UNIT_LEFT: Final = "overridden"
#: A unit that may have the data of a guest is cleaned before its first guest.
UNIT_SUSPECTED: Final = "unit suspected"
_OF_CLEANING: Final[Mapping[str, str]] = {
    UNIT_CLEANED: CleanResult.CLEANED.value,
    UNIT_NOT_CLEANED: CleanResult.FAILED.value,
    UNIT_FREED: CleanResult.OVERRIDDEN.value,
}
#: Actions of history records of an instance that runs without an accelerator that is bound to it,
#: and whether the conductor reboots it.
UNATTACHED: Final = "without its accelerators"
REBOOTED: Final = "rebooted for its accelerators"
_OF_INSTANCE: Final[Mapping[str, bool]] = {UNATTACHED: False, REBOOTED: True}
#: The states of a removed ARQ and of a removed device.
DELETED: Final = "Deleted"
GONE: Final = "gone"

#: Action of a history record of an ARQ → the state after it.
_OF_ARQ: Final[Mapping[str, str]] = {
    **{state.value: state.value for state in State},
    "deleted": DELETED,
    "detached": DELETED,
}
#: The same for devices.
_OF_DEVICE: Final[Mapping[str, str]] = {
    **{status.value: status.value for status in DeviceStatus},
    "lost": LOST,
    "retired": GONE,
}
_AFTER: Final[Mapping[str, Mapping[str, str]]] = {"arq": _OF_ARQ, "device": _OF_DEVICE}
#: The nouns of the history whose events can be notifications.
NOTIFIED: Final = frozenset({*_AFTER, "driver", "instance"})


@dataclass(frozen=True)
class Notification:
    """One message to all subscribers."""

    event_type: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class HistoryEvent:
    """One history record, with the fields of notifications; ``at_ms`` by the database's clock."""

    id: int
    at_ms: int
    noun: str
    uuid: str
    action: str
    instance_uuid: str | None
    hostname: str | None
    reason: str | None
    request_id: str | None
    #: The state since then, if the action does not determine it.
    state: str | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """The facts of a device, and the current holders of its units.

    ``users`` are (arq uuid, instance uuid, project id).
    """

    type: str
    driver: str
    vendor: str
    model: str
    users: tuple[tuple[str, str | None, str | None], ...] = ()


def moment(ms: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def state_after(noun: str, action: str, stated: str | None) -> str | None:
    """Return the state of an ARQ or device after an event; None if the event does not change it.

    ``stated`` is the state in the history record itself.
    """
    return stated or _AFTER.get(noun, {}).get(action)


def arq_state(event: HistoryEvent, project_id: str | None) -> Notification | None:
    """Return the notification that an ARQ changed its state; None if it did not.

    ``project_id`` is the owner; None if the ARQ is deleted or has no owner.
    """
    state = state_after(event.noun, event.action, event.state)
    return None if state is None else _of_arq(ARQ_STATE, event, {"state": state}, project_id)


def arq_health(event: HistoryEvent, project_id: str | None) -> Notification | None:
    """Return the notification that the health of an ARQ's unit changed; None if it did not.

    ``project_id`` is the owner, as for ``arq_state``.
    """
    health = of_action(event.action)
    return None if health is None else _of_arq(ARQ_HEALTH, event, {"health": health}, project_id)


def device_state(event: HistoryEvent, facts: DeviceFacts | None) -> Notification | None:
    """Return the notification that a device changed its state; None if it did not.

    ``facts`` is None for a removed device.
    """
    state = state_after(event.noun, event.action, event.state)
    return None if state is None else _of_device(DEVICE_STATE, event, {"state": state}, facts)


def device_health(event: HistoryEvent, facts: DeviceFacts | None) -> Notification | None:
    """Return the notification that the health of a device changed; None if it did not."""
    health = of_action(event.action)
    return None if health is None else _of_device(DEVICE_HEALTH, event, {"health": health}, facts)


def device_cleaning(event: HistoryEvent, facts: DeviceFacts | None) -> Notification | None:
    """Return the notification that a unit of a device was cleaned, or could not be; None if not.

    The reason has the key of the unit, and the steps or why they failed.
    """
    result = _OF_CLEANING.get(event.action)
    return None if result is None else _of_device(DEVICE_CLEANING, event, {"result": result}, facts)


def driver_health(
    event: HistoryEvent, driver: str | None, facts: Mapping[str, DeviceFacts]
) -> Notification | None:
    """Return the notification that the health of all devices of a driver changed; None otherwise.

    ``driver`` is the name of the driver, None if its host was removed; ``facts`` are those of its
    devices on the host, by uuid.
    """
    health = of_action(event.action)
    if health is None:
        return None
    return Notification(
        DRIVER_HEALTH,
        {
            **_common(event),
            "health": health,
            "driver": driver,
            "devices": sorted(facts),
            "users": [user for device in facts.values() for user in _users(device)],
        },
    )


def instance_unattached(event: HistoryEvent, project_id: str | None) -> Notification | None:
    """Return the notification that an instance runs without its accelerators; None if not."""
    rebooted = _OF_INSTANCE.get(event.action)
    if rebooted is None:
        return None
    payload = {**_common(event), "project_id": project_id, "rebooted": rebooted}
    return Notification(INSTANCE_UNATTACHED, payload)


def _of_arq(
    event_type: str, event: HistoryEvent, news: Mapping[str, Any], project_id: str | None
) -> Notification:
    owner = {"project_id": project_id, "instance": event.instance_uuid}
    return Notification(event_type, {**_common(event), **news, **owner})


def _users(facts: DeviceFacts | None) -> list[dict[str, str | None]]:
    return [
        {"arq": arq, "instance": instance, "project_id": project}
        for arq, instance, project in (() if facts is None else facts.users)
    ]


def _of_device(
    event_type: str, event: HistoryEvent, news: Mapping[str, Any], facts: DeviceFacts | None
) -> Notification:
    return Notification(
        event_type,
        {
            **_common(event),
            **news,
            "type": facts and facts.type,
            "driver": facts and facts.driver,
            "vendor": facts and facts.vendor,
            "model": facts and facts.model,
            "users": _users(facts),
        },
    )


def service(binary: str, host: str, *, up: bool, at_ms: int, seen_ms: int) -> Notification:
    """Return the notification that a service is down, or up again."""
    return Notification(
        SERVICE_UP if up else SERVICE_DOWN,
        {
            "version": VERSION,
            "occurred_at": moment(at_ms),
            "binary": binary,
            "host": host,
            "last_seen_at": moment(seen_ms),
        },
    )


def usage(
    host: str,
    at_ms: int,
    readings: Iterable[Reading],
    devices: Sequence[tuple[str, Device]],
    *,
    providers: Mapping[str, str],
) -> Notification:
    """Return the notification with a host's readings; ``devices`` are (driver, device) pairs.

    ``providers`` are the uuids of the host's providers by the name that the driver uses now. A
    deployable that is new, or refused, has none yet.
    """
    device_by_key = {(driver, device.key): device for driver, device in devices}
    accelerators = []
    for reading in readings:
        device = device_by_key.get((reading.driver, reading.key))
        if device is not None:
            accelerators.append(
                {
                    "driver": reading.driver,
                    "key": reading.key,
                    "type": device.type.value,
                    "vendor": device.vendor,
                    "model": device.model,
                    "providers": [
                        providers[deployable.name]
                        for deployable in device.deployables
                        if deployable.name in providers
                    ],
                    "figures": reading.figures,
                }
            )
    return Notification(
        ACCELERATOR_USAGE,
        {
            "version": VERSION,
            "measured_at": moment(at_ms),
            "host": host,
            "accelerators": accelerators,
        },
    )


def _common(event: HistoryEvent) -> dict[str, Any]:
    return {
        "version": VERSION,
        "event_id": event.id,
        "occurred_at": moment(event.at_ms),
        "uuid": event.uuid,
        "host": event.hostname,
        "reason": event.reason,
        "request_id": event.request_id,
    }
