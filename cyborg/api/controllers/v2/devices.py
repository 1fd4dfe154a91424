# SPDX-License-Identifier: Apache-2.0
"""Devices: what accelerators there are, and whether they may be used."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
import wsme

from cyborg import exception
from cyborg.api import microversion, queries, types
from cyborg.api.controllers.v2 import device_query
from cyborg.api.controllers.v2.device_query import DeviceQuery
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import instant, link, moment, since
from cyborg.api.routing import Noun, Routes
from cyborg.db import devices
from cyborg.db.engine import Reader
from cyborg.model import creation, device_life
from cyborg.model.creation import parse_traits
from cyborg.model.device import DeviceStatus, DeviceType
from cyborg.model.labels import parse_change
from cyborg.model.operation import Operation
from cyborg.policies import devices as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "devices"
Users = Sequence[devices.User | None]
#: What is said of an instance until Nova has.
_UNKNOWN = "unknown"
#: The two words that clients below microversion 2.4 know: in service, or not for any reason.
_ENABLED = DeviceStatus.ENABLED.value
_MAINTAINING = DeviceStatus.MAINTAINING.value
#: What an update may order; ``ready`` is another word for in service.
_ORDERS = {
    _ENABLED: DeviceStatus.ENABLED,
    "ready": DeviceStatus.ENABLED,
    _MAINTAINING: DeviceStatus.MAINTAINING,
}
_TEXT = types.Text(255, minimum=1)
#: What tells where a device is, and is not for those who only use it.
_PLACE = ("hostname", "backend", "std_board_info", "vendor_board_info", "status_reason")


class DeviceBody(types.Declared):
    """What may change of a device; the rules for labels and traits are the model's."""

    status = wsme.wsattr(types.Word(*_ORDERS))
    labels = wsme.wsattr(types.ANYTHING)
    model = wsme.wsattr(_TEXT)
    traits = wsme.wsattr(types.ANYTHING)


class CreateBody(types.Declared):
    """A new device; the rules for what is not plain text are the model's."""

    host = wsme.wsattr(_TEXT, mandatory=True)
    driver = wsme.wsattr(types.Text(100, minimum=1), mandatory=True)
    backend = wsme.wsattr(_TEXT, mandatory=True)
    model = wsme.wsattr(_TEXT, mandatory=True)
    type = wsme.wsattr(types.Word(*DeviceType), mandatory=True)
    resource_class = wsme.wsattr(_TEXT, mandatory=True)
    traits = wsme.wsattr(types.ANYTHING)
    handles = wsme.wsattr(types.ANYTHING)
    labels = wsme.wsattr(types.ANYTHING)


class Devices(Noun):
    """``/v2/devices``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
        "*/enable": {"POST": "enable"},
        "*/disable": {"POST": "disable"},
    }

    def __init__(self, rules: Rules, reader: Reader, conductor: ConductorClient) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor

    @expose(policies.GET_ALL, query=DeviceQuery, own=policies.GET_OWN)
    def index(self, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A page of devices; an empty filter is none."""
        which = device_query.wanted(call, asked)
        with self._reader.reader() as tx:
            found = devices.page(tx, queries.page(asked), which)
            users = self._users(tx, call, found)
        return {COLLECTION: [render(one, call, users.get(one.id, ())) for one in found]}

    @expose(policies.GET_ONE, types.UUID_TYPE, own=policies.GET_OWN)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """One device."""
        return self._show(call, uuid)

    @expose(
        policies.UPDATE,
        types.UUID_TYPE,
        body=types.Change(DeviceBody),
        since=microversion.OPERATORS,
        own=policies.LABEL,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change what is sent; labels that are not sent stay, null takes one away."""
        for name in ("status", "model"):
            if name in body and body[name] is None:
                raise exception.Invalid(field=name, reason="it must not be null")
        facts = {"model": body["model"]} if "model" in body else {}
        if "traits" in body:
            facts["traits"] = list(parse_traits(body["traits"]))
        self._conductor.update_device(
            call.caller,
            call.operation,
            uuid,
            status=_ORDERS[body["status"]] if "status" in body else None,
            labels=parse_change(body["labels"]) if "labels" in body else {},
            project=device_query.scope(call),
            facts=facts,
        )
        return self._show(call, uuid)

    @expose(
        policies.CREATE,
        query=types.Patience,
        body=types.Object(CreateBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def create(self, call: Call, asked: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Create a device on a backend whose driver can have it."""
        return self._conductor.create_device(
            call.caller, call.operation, creation.parse(body), wait=asked.get("wait", False)
        )

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self._reader.reader() as tx:
            found = devices.show(tx, uuid, device_query.scope(call))
            users = self._users(tx, call, [found] if found else [])
        if found is None:
            raise exception.NotFound(noun="Device", key=uuid)
        return render(found, call, users.get(found.id, ()))

    def _users(
        self, tx: sa.Connection, call: Call, found: Sequence[sa.Row[Any]]
    ) -> Mapping[int, Users]:
        if call.minor < microversion.OPERATORS:
            return {}
        return devices.instances(tx, [one.id for one in found], device_query.scope(call))

    @expose(policies.DELETE, types.UUID_TYPE, status=204, since=microversion.OPERATORS)
    def delete(self, call: Call, uuid: str) -> None:
        """Remove a device that was created or is lost: from Placement first, then from here."""
        self._conductor.delete_device(call.caller, call.operation, uuid)

    @expose(policies.ENABLE, types.UUID_TYPE, status=204)
    def enable(self, call: Call, uuid: str) -> None:
        """Put the device and all its deployables into service."""
        self._conductor.set_device_status(call.caller, call.operation, uuid, DeviceStatus.ENABLED)

    @expose(policies.DISABLE, types.UUID_TYPE, status=204)
    def disable(self, call: Call, uuid: str) -> None:
        """Take the device out of service; instances that use it keep it."""
        self._conductor.set_device_status(
            call.caller, call.operation, uuid, DeviceStatus.MAINTAINING
        )


def render(row: sa.Row[Any], call: Call, users: Users) -> dict[str, Any]:
    """The JSON of a device; ``status`` from 2.3 on, all of its words and the rest from 2.4.

    ``users`` are the instances whose requests hold units of it, None for those of no instance.
    """
    rendered = {
        "uuid": row.uuid,
        "type": row.type,
        "vendor": row.vendor,
        "model": row.model,
        "std_board_info": row.std_board_info,
        "vendor_board_info": row.vendor_board_info,
        "hostname": row.hostname,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "links": [link(call.links.self_of(COLLECTION), row.uuid)],
    }
    if call.minor >= microversion.DEVICE_STATUS:
        now = device_life.word(row.status, lost=row.lost_ms is not None)
        served = _ENABLED if now == _ENABLED else _MAINTAINING
        rendered["status"] = now if call.minor >= microversion.OPERATORS else served
    if call.minor >= microversion.OPERATORS:
        rendered |= {
            "status_reason": _reason(row),
            "driver": row.driver,
            "backend": row.backend,
            "labels": row.labels or {},
            "in_use": bool(users),
            "instances": [_user(one) for one in users if one is not None],
        }
    if call.own:
        return {name: rendered[name] for name in rendered if name not in _PLACE}
    return rendered


def _user(one: devices.User) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "name": _UNKNOWN if one.name is None else one.name,
        "status": _UNKNOWN if one.status is None else one.status,
        "seen_at": since(one.seen_ms),
    }


def _reason(row: sa.Row[Any]) -> str | None:
    reason: str | None = row.status_reason
    if reason is None and row.lost_ms is not None:
        return f"Its host has not shown it since {instant(row.lost_ms)}."
    return reason
