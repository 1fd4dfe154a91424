# SPDX-License-Identifier: Apache-2.0
"""Devices: list, create, change, enable, disable and delete accelerators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import sqlalchemy as sa
import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.controllers.v2 import device_query, events, usage
from cyborg.api.controllers.v2.device_query import DeviceQuery
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import instant, link, moment, since
from cyborg.api.routing import Noun, Routes
from cyborg.db import devices
from cyborg.db import events as history_db
from cyborg.db.engine import Reader
from cyborg.model import creation, device_life
from cyborg.model.creation import parse_traits
from cyborg.model.device import DeviceStatus, DeviceType
from cyborg.model.labels import parse_change
from cyborg.model.operation import Operation
from cyborg.policies import devices as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "devices"
#: The number of latest events in the answer for a device.
LAST_EVENTS = 10
#: Name and status of an instance until Nova reports them.
_UNKNOWN = "unknown"
#: The two statuses below microversion 2.4: in service, or out of service for any reason.
_ENABLED = DeviceStatus.ENABLED.value
_MAINTAINING = DeviceStatus.MAINTAINING.value
#: The statuses that an update may set; ``ready`` is a synonym of ``enabled``.
_STATUSES = {
    _ENABLED: DeviceStatus.ENABLED,
    "ready": DeviceStatus.ENABLED,
    _MAINTAINING: DeviceStatus.MAINTAINING,
}
_TEXT = types.Text(255, minimum=1)
#: Members that tell where a device is; callers limited to their own project do not get them.
_PLACE = (
    *("hostname", "backend", "std_board_info", "vendor_board_info"),
    *("status_reason", "health_reasons", "address", "numa_node", "providers"),
    # The other users of a device are not shown either.
    *("units", "events"),
)


class DeviceBody(types.Declared):
    """The members of a device that may change; ``cyborg.model`` validates labels and traits."""

    status = wsme.wsattr(types.Word(*_STATUSES))
    status_reason = types.Field(types.Text(255), since=microversion.OPERATOR_VIEWS)
    labels = wsme.wsattr(types.ANYTHING)
    model = wsme.wsattr(_TEXT)
    traits = wsme.wsattr(types.ANYTHING)


class CreateBody(types.Declared):
    """A new device; ``cyborg.model`` validates traits, handles and labels."""

    host = wsme.wsattr(_TEXT, mandatory=True)
    driver = wsme.wsattr(types.Text(100, minimum=1), mandatory=True)
    backend = wsme.wsattr(_TEXT, mandatory=True)
    model = wsme.wsattr(_TEXT, mandatory=True)
    type = wsme.wsattr(types.Word(*DeviceType), mandatory=True)
    resource_class = wsme.wsattr(_TEXT, mandatory=True)
    traits = wsme.wsattr(types.ANYTHING)
    handles = wsme.wsattr(types.ANYTHING)
    labels = wsme.wsattr(types.ANYTHING)


@dataclass(frozen=True)
class View:
    """The data that an answer has besides the row of the device."""

    holders: Sequence[devices.Holder]
    parts: Sequence[devices.Part]

    @property
    def users(self) -> list[devices.User]:
        """The instances that hold units, without repetitions."""
        return list(dict.fromkeys(holder.instance for holder in self.holders if holder.instance))

    @property
    def words(self) -> Counter[str]:
        """The number of units by their state."""
        return sum((Counter(part.words) for part in self.parts), Counter())


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
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of devices; an empty filter value does not filter."""
        selection = device_query.selection(call, query)
        with self._reader.reader() as tx:
            rows = devices.page(tx, parsing.page(query), selection)
            views = self._views(tx, call, rows)
        return {COLLECTION: [render(row, call, views[row.id]) for row in rows]}

    @expose(policies.GET_ONE, types.UUID_TYPE, own=policies.GET_OWN)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a device."""
        return self._show(call, uuid)

    @expose(
        policies.UPDATE,
        types.UUID_TYPE,
        body=types.Change(DeviceBody),
        since=microversion.OPERATORS,
        own=policies.LABEL,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given members; labels that are not given stay, a null label is removed."""
        for name in ("status", "model"):
            if name in body and body[name] is None:
                raise exception.Invalid(field=name, reason="it must not be null")
        if body.get("status_reason") is not None and body.get("status") != _MAINTAINING:
            raise exception.Invalid(
                field="status_reason", reason=f"it goes with status {_MAINTAINING} only"
            )
        facts = {"model": body["model"]} if "model" in body else {}
        if "traits" in body:
            facts["traits"] = list(parse_traits(body["traits"]))
        self._conductor.update_device(
            call.caller,
            call.request_key,
            uuid,
            status=_STATUSES[body["status"]] if "status" in body else None,
            labels=parse_change(body["labels"]) if "labels" in body else {},
            project=device_query.scope(call),
            facts=facts,
            reason=body.get("status_reason"),
        )
        return self._show(call, uuid)

    @expose(
        policies.CREATE,
        query=types.WaitQuery,
        body=types.Object(CreateBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def create(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Create a device on a backend whose driver supports it."""
        return self._conductor.create_device(
            call.caller, call.request_key, creation.parse(body), wait=query.get("wait", False)
        )

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self._reader.reader() as tx:
            row = devices.show(tx, uuid, device_query.scope(call))
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            view = self._views(tx, call, [row])[row.id]
            history: Sequence[history_db.Row] = ()
            if call.minor >= microversion.OPERATOR_VIEWS and not call.own:
                history = history_db.of_device(tx, uuid, LAST_EVENTS)
        rendered = render(row, call, view)
        if call.minor >= microversion.OPERATOR_VIEWS and not call.own:
            rendered["events"] = [events.render(event) for event in history]
        return rendered

    def _views(
        self, tx: sa.Connection, call: Call, rows: Sequence[sa.Row[Any]]
    ) -> Mapping[int, View]:
        ids = [row.id for row in rows]
        holders: Mapping[int, Sequence[devices.Holder]] = {}
        parts: Mapping[int, Sequence[devices.Part]] = {}
        if call.minor >= microversion.OPERATORS:
            holders = devices.holders(tx, ids, device_query.scope(call))
        if call.minor >= microversion.OPERATOR_VIEWS:
            parts = devices.parts(tx, ids)
        return {id_: View(holders.get(id_, ()), parts.get(id_, ())) for id_ in ids}

    @expose(policies.DELETE, types.UUID_TYPE, status=204, since=microversion.OPERATORS)
    def delete(self, call: Call, uuid: str) -> None:
        """Remove a device that an operator created or that is lost, from Placement first."""
        self._conductor.delete_device(call.caller, call.request_key, uuid)

    @expose(policies.ENABLE, types.UUID_TYPE, status=204)
    def enable(self, call: Call, uuid: str) -> None:
        """Enable the device and all its deployables."""
        self._conductor.set_device_status(call.caller, call.request_key, uuid, DeviceStatus.ENABLED)

    @expose(policies.DISABLE, types.UUID_TYPE, status=204)
    def disable(self, call: Call, uuid: str) -> None:
        """Disable the device; instances that use it keep it."""
        self._conductor.set_device_status(
            call.caller, call.request_key, uuid, DeviceStatus.MAINTAINING
        )


def render(row: sa.Row[Any], call: Call, view: View) -> dict[str, Any]:
    """Return the JSON of a device at the microversion of the request.

    ``status`` is included from 2.3 on, all its values and the users from 2.4 on, and the members
    that tell equal cards apart from 2.5 on.
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
            "in_use": bool(view.holders),
            "instances": [_user(user) for user in view.users],
        }
    if call.minor >= microversion.OPERATOR_VIEWS:
        rendered |= {
            "address": row.device_key,
            "numa_node": row.numa_node,
            "resource_classes": sorted({part.resource_class for part in view.parts}),
            "traits": sorted({trait for part in view.parts for trait in part.traits}),
            "providers": [_provider(part) for part in view.parts],
            "units": usage.counts(view.words),
            "holders": [_holder(holder) for holder in view.holders],
            "health": row.health,
            "health_reasons": [] if row.health_reason is None else [row.health_reason],
            "health_since": since(row.health_ms),
        }
    if call.own:
        return {name: rendered[name] for name in rendered if name not in _PLACE}
    return rendered


def _provider(part: devices.Part) -> dict[str, Any]:
    return {
        "uuid": part.rp_uuid,
        "name": part.name,
        "resource_class": part.resource_class,
        "total": part.total,
        "reserved": part.reserved,
        "error": part.error,
    }


def _holder(holder: devices.Holder) -> dict[str, Any]:
    user = holder.instance and _user(holder.instance)
    return {
        "arq_uuid": holder.arq_uuid,
        "instance_uuid": user and user["uuid"],
        "instance_name": user and user["name"],
        "project_id": holder.project_id,
    }


def _user(user: devices.User) -> dict[str, Any]:
    return {
        "uuid": user.uuid,
        "name": _UNKNOWN if user.name is None else user.name,
        "status": _UNKNOWN if user.status is None else user.status,
        "seen_at": since(user.seen_ms),
    }


def _reason(row: sa.Row[Any]) -> str | None:
    reason: str | None = row.status_reason
    if reason is None and row.lost_ms is not None:
        return f"Its host has not shown it since {instant(row.lost_ms)}."
    return reason
