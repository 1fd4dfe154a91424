# SPDX-License-Identifier: Apache-2.0
"""The accelerators that an attach takes: chosen, claimed, and kept as hidden ARQs of the instance.

All of it belongs to the transaction that begins the attach.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Server
from cyborg.conductor import images
from cyborg.db import arq_moves, attach_handles, attaching, events, offers, profile_moves, work
from cyborg.db.bulk import Record
from cyborg.model import device_profile, health
from cyborg.model.arq import State, arq_uuids
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.work import WorkKind


@dataclass(frozen=True)
class Asked:
    """One attach: who asks for which profile for which server, and where it could be placed."""

    caller: Caller
    operation: str
    server: Server
    profile: str
    wanted: profile_moves.Wanted
    ways: Sequence[Mapping[int, str]]

    def refuse(self, reason: str) -> exception.CannotAttach:
        """The error that tells why not."""
        return exception.CannotAttach(instance=self.server.uuid, reason=reason)


@dataclass(frozen=True)
class Unit:
    """One ARQ about to be made, and the handle that it gets."""

    uuid: str
    group: int
    offer: Record
    handle: attach_handles.Claimed
    #: Whether an image is loaded, or being loaded, before the guest may have it.
    loads: bool

    @property
    def prepares(self) -> bool:
        """Whether its host has work to do before it is the guest's."""
        return bool(self.offer.prepare) or self.handle.waits or self.loads


def claim(tx: sa.Connection, asked: Asked) -> list[Unit]:
    """A handle for each ARQ to be, by the first way that leads to free devices.

    Raises CannotAttach when no way does, or attach types would be mixed, and NoFreeHandle.
    """
    way, found = _choose(tx, asked)
    groups = [
        index
        for index in sorted(way)
        for _ in range(device_profile.units(asked.wanted.groups[index]))
    ]
    uuids = arq_uuids(asked.operation, len(groups))
    wishes = [images.wish_of(asked.wanted.groups[index]) for index in groups]
    loading = {
        offer.id: images.admit(
            tx,
            offer,
            {
                uuid: wish
                for uuid, wish, index in zip(uuids, wishes, groups, strict=True)
                if way[index] == offer.rp_uuid
            },
        )
        for offer in sorted(found.values(), key=lambda one: int(one.id))
    }
    free: dict[int, list[attach_handles.Claimed]] = {}
    for offer in sorted(found.values(), key=lambda one: int(one.id)):
        count = sum(1 for index in groups if way[index] == offer.rp_uuid)
        # Nothing was skipped before, so that there is no harm in waiting for rivals.
        free[offer.id] = attach_handles.claim(tx, offer.id, count, wait=True)
        if len(free[offer.id]) < count:
            raise exception.NoFreeHandle(provider=offer.rp_uuid, wanted=count)
    units = [
        Unit(
            uuid,
            index,
            found[way[index]],
            free[found[way[index]].id].pop(0),
            loading[found[way[index]].id],
        )
        for uuid, index in zip(uuids, groups, strict=True)
    ]
    _check_types(tx, asked, units)
    return units


def keep(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    asked: Asked,
    units: Sequence[Unit],
    *,
    bind_timeout: int,
) -> None:
    """Hold the handles and make the ARQs; what has to be prepared for them is work of the hosts.

    ``bind_timeout`` is the time in milliseconds that a host has for it.
    """
    attach_handles.hold(tx, [one.handle.id for one in units if not one.handle.waits])
    arq_moves.insert(tx, [_arq(asked, one) for one in units])
    work.add(tx, now, [_preparation(asked, one, bind_timeout) for one in units if one.prepares])
    begun = State.BIND_STARTED.value
    server = asked.server
    entries = [
        events.Entry(
            "arq",
            one.uuid,
            begun,
            instance_uuid=server.uuid,
            hostname=server.node,
            device_uuid=one.offer.device_uuid,
        )
        for one in units
    ]
    events.record(tx, now, entries, caller=asked.caller, operation=asked.operation)


def _preparation(asked: Asked, unit: Unit, bind_timeout: int) -> dict[str, Any]:
    return {
        "kind": WorkKind.PREPARE,
        "instance_uuid": asked.server.uuid,
        "arq_uuid": unit.uuid,
        "operation_id": asked.operation,
        "host_id": unit.offer.host_id,
        "deployable_id": unit.offer.id,
        "attach_handle_id": unit.handle.id,
        "spec": device_profile.wishes(asked.wanted.groups[unit.group]),
        "deadline_in": bind_timeout,
    }


def _choose(tx: sa.Connection, asked: Asked) -> tuple[Mapping[int, str], dict[str, Record]]:
    """The first way that leads to devices of ours that are offered."""
    found = offers.by_provider(tx, {rp for way in asked.ways for rp in way.values()})
    for way in asked.ways:
        if all(_is_offered(found.get(rp)) for rp in way.values()):
            return way, {rp: found[rp] for rp in way.values()}
    raise asked.refuse(
        f"its host {asked.server.node} has no free accelerators for device profile {asked.profile}"
    )


def _is_offered(offer: Record | None) -> bool:
    return (
        offer is not None
        and offer.status == DeviceStatus.ENABLED
        and offer.lost_ms is None
        and offer.device_lost_ms is None
        and offer.publish_error is None
        and not offer.host_disabled
        and health.offered(offer.health)
    )


def _check_types(tx: sa.Connection, asked: Asked, units: Sequence[Unit]) -> None:
    """Older Nova drops all accelerators of a guest when their attach types are mixed."""
    new = attaching.types_of(tx, [one.handle.id for one in units])
    held = attaching.attach_types(tx, asked.server.uuid)
    if len(held | new) > 1:
        has = " and ".join(sorted(held)) or "none yet"
        raise asked.refuse(
            f"attach types must not be mixed: it has {has}, device profile {asked.profile} would "
            f"bring {' and '.join(sorted(new))}"
        )


def _arq(asked: Asked, unit: Unit) -> dict[str, Any]:
    return {
        "uuid": unit.uuid,
        "state": State.BIND_STARTED.value,
        "project_id": asked.server.project_id,
        "device_profile_id": asked.wanted.id,
        "device_profile_group_id": unit.group,
        "group_spec": asked.wanted.groups[unit.group],
        "hostname": asked.server.node,
        "device_rp_uuid": unit.offer.rp_uuid,
        "instance_uuid": asked.server.uuid,
        "attach_handle_id": unit.handle.id,
        "deployable_id": unit.offer.id,
        # As with a bind: where the last guest's traces are still being removed, the work sets it.
        "prepared": bool(unit.offer.prepare) and not unit.handle.waits,
        "origin": attaching.ATTACHED,
        "hidden": True,
        "operation_id": asked.operation,
        "created_at": datetime.now(UTC).replace(tzinfo=None, microsecond=0),
    }
