# SPDX-License-Identifier: Apache-2.0
"""Devices: list, create, change, enable, disable and delete accelerators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.controllers.v2 import events, usage
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import instant, link, moment, since
from cyborg.db import devices
from cyborg.db import events as history_db
from cyborg.db.transaction import Transaction
from cyborg.model import creation
from cyborg.model.attribute import parse_label_change, parse_label_filter
from cyborg.model.creation import parse_traits
from cyborg.model.device import DEVICE_STATES, DeviceStatus, DeviceType
from cyborg.model.health import CONDITIONS
from cyborg.model.operation import Operation
from cyborg.rpc.verbs import CreateDevice, DeleteDevice, SetDeviceStatus, UpdateDevice

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
_OLDER = (_ENABLED, _MAINTAINING)
#: Filters that compare a column for equality.
_EQUAL = ("type", "vendor", "hostname", "driver", "backend", "health")
#: Filters that would tell a project where its devices are.
_LOCATION_FILTERS = ("hostname", "backend")
_TEXT = types.Text(255, minimum=1)
#: Members that tell where a device is; callers limited to their own project do not get them.
_HIDDEN_FROM_PROJECTS = (
    *("hostname", "backend", "std_board_info", "vendor_board_info"),
    *("status_reason", "health_reasons", "address", "numa_node", "providers"),
    *("identity", "topology"),
    # The other users of a device are not shown either.
    *("units", "events"),
)


class DeviceQuery(types.Listing):
    """Filters of the list; a device must match all of them."""

    type = wsme.wsattr(types.NAME)
    vendor = wsme.wsattr(types.NAME)
    hostname = wsme.wsattr(types.NAME)
    driver = types.Field(types.NAME, since=microversion.OPERATORS)
    backend = types.Field(types.NAME, since=microversion.OPERATORS)
    status = wsme.wsattr(types.Word(*DEVICE_STATES, "ready"))
    in_use = types.Field(types.FLAG, since=microversion.OPERATORS)
    instance = types.Field(types.UUID_TYPE, since=microversion.OPERATORS)
    labels = types.Field(types.Text(4096, minimum=1), since=microversion.OPERATORS)
    health = types.Field(types.Word(*CONDITIONS), since=microversion.OPERATOR_VIEWS)


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


class Devices(Controller):
    """``/v2/devices``."""

    collection = "devices"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
        "*/enable": {"POST": "enable"},
        "*/disable": {"POST": "disable"},
    }

    @expose("cyborg:device:get_all", query=DeviceQuery, own="cyborg:device:get_own")
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of devices; an empty filter value does not filter."""
        selection = _selection(call, query)
        with self.reader.reader() as tx:
            rows = devices.page(tx, parsing.page(query), selection)
            views = self._views(tx, call, rows)
        return {self.collection: [render(row, call, views[row.id]) for row in rows]}

    @expose("cyborg:device:get_one", types.UUID_TYPE, own="cyborg:device:get_own")
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a device."""
        return self._show(call, uuid)

    @expose(
        "cyborg:device:update",
        types.UUID_TYPE,
        body=types.Change(DeviceBody),
        since=microversion.OPERATORS,
        own="cyborg:device:label",
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
        self.conductor.write(
            UpdateDevice(
                *call.origin,
                uuid,
                status=_STATUSES[body["status"]] if "status" in body else None,
                labels=parse_label_change(body["labels"]) if "labels" in body else {},
                project=call.own,
                facts=facts,
                reason=body.get("status_reason"),
            )
        )
        return self._show(call, uuid)

    @expose(
        "cyborg:device:create",
        query=types.WaitQuery,
        body=types.Object(CreateBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def create(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Create a device on a backend whose driver supports it."""
        return self.conductor.write(
            CreateDevice(*call.origin, creation.parse(body), wait=query.get("wait", False))
        )

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self.reader.reader() as tx:
            row = devices.show(tx, uuid, call.own)
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            view = self._views(tx, call, [row])[row.id]
            history: Sequence[history_db.VisibleEvent] = ()
            if call.minor >= microversion.OPERATOR_VIEWS and not call.own:
                history = history_db.of_device(tx, uuid, LAST_EVENTS)
        rendered = render(row, call, view)
        if call.minor >= microversion.OPERATOR_VIEWS and not call.own:
            rendered["events"] = [events.render(event) for event in history]
        return rendered

    def _views(
        self, tx: Transaction, call: Call, rows: Sequence[devices.VisibleDevice]
    ) -> Mapping[int, View]:
        ids = [row.id for row in rows]
        holders: Mapping[int, Sequence[devices.Holder]] = {}
        parts: Mapping[int, Sequence[devices.Part]] = {}
        if call.minor >= microversion.OPERATORS:
            holders = devices.holders(tx, ids, call.own)
        if call.minor >= microversion.OPERATOR_VIEWS:
            parts = devices.parts(tx, ids)
        return {id_: View(holders.get(id_, ()), parts.get(id_, ())) for id_ in ids}

    @expose("cyborg:device:delete", types.UUID_TYPE, status=204, since=microversion.OPERATORS)
    def delete(self, call: Call, uuid: str) -> None:
        """Remove a device that an operator created or that is lost, from Placement first."""
        self.conductor.write(DeleteDevice(*call.origin, uuid))

    @expose("cyborg:device:enable", types.UUID_TYPE, status=204)
    def enable(self, call: Call, uuid: str) -> None:
        """Enable the device and all its deployables."""
        self.conductor.write(SetDeviceStatus(*call.origin, uuid, DeviceStatus.ENABLED))

    @expose("cyborg:device:disable", types.UUID_TYPE, status=204)
    def disable(self, call: Call, uuid: str) -> None:
        """Disable the device; instances that use it keep it."""
        self.conductor.write(SetDeviceStatus(*call.origin, uuid, DeviceStatus.MAINTAINING))


def _selection(call: Call, query: Mapping[str, Any]) -> devices.Filters:
    """Return what a checked query selects.

    Raises Invalid for a status that this microversion does not have, and Forbidden for a filter or
    sort key that would tell a project member where devices are.
    """
    status = query.get("status")
    older = call.minor < microversion.OPERATORS
    if older and status not in (None, *_OLDER):
        raise exception.Invalid(field="status", reason=f"it must be one of {', '.join(_OLDER)}")
    if call.own:
        names = [name for name in _LOCATION_FILTERS if query.get(name)]
        if query.get("sort_key") in _LOCATION_FILTERS:
            names.append(query["sort_key"])
        if names:
            raise exception.Forbidden(reason=f"Only operators list devices by {names[0]}.")
    states = None if status is None else [_ENABLED if status == "ready" else status]
    if older and status == _MAINTAINING:
        states = [state for state in DEVICE_STATES if state != _ENABLED]
    return devices.Filters(
        equal={name: query[name] for name in _EQUAL if query.get(name)},
        states=states,
        in_use=query.get("in_use"),
        instance=query.get("instance"),
        labels=parse_label_filter(query["labels"]) if "labels" in query else {},
        project_id=call.own,
    )


def render(row: devices.VisibleDevice, call: Call, view: View) -> dict[str, Any]:
    """Return the JSON of a device at the microversion of the request.

    ``status`` is included from 2.3 on, all its values and the users from 2.4 on, and the members
    that tell equal cards apart from 2.5 on.
    """
    rendered: dict[str, Any] = {
        "uuid": row.uuid,
        "type": row.type,
        "vendor": row.vendor,
        "model": row.model,
        "std_board_info": row.std_board_info,
        "vendor_board_info": row.vendor_board_info,
        "hostname": row.hostname,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "links": [link(call.links.self_of(Devices.collection), row.uuid)],
    }
    if call.minor >= microversion.DEVICE_STATUS:
        older = _ENABLED if row.state == _ENABLED else _MAINTAINING
        rendered["status"] = row.state if call.minor >= microversion.OPERATORS else older
    if call.minor >= microversion.OPERATORS:
        reason = row.status_reason
        if reason is None and row.lost_ms is not None:
            reason = f"Its host has not shown it since {instant(row.lost_ms)}."
        users = dict.fromkeys(holder.instance for holder in view.holders if holder.instance)
        rendered |= {
            "status_reason": reason,
            "driver": row.driver,
            "backend": row.backend,
            "labels": row.labels or {},
            "in_use": bool(view.holders),
            "instances": [_user(user) for user in users],
        }
    if call.minor >= microversion.OPERATOR_VIEWS:
        units: Counter[str] = sum((Counter(part.words) for part in view.parts), Counter())
        rendered |= {
            "address": row.device_key,
            "numa_node": row.numa_node,
            "identity": row.identity or [],
            "topology": row.topology,
            "resource_classes": sorted({part.resource_class for part in view.parts}),
            "traits": sorted({trait for part in view.parts for trait in part.traits}),
            "providers": [
                {
                    "uuid": part.rp_uuid,
                    "name": part.name,
                    "resource_class": part.resource_class,
                    "total": part.total,
                    "reserved": part.reserved,
                    "error": part.error,
                }
                for part in view.parts
            ],
            "units": usage.counts(units),
            "holders": [_holder(holder) for holder in view.holders],
            "health": row.health,
            "health_reasons": [] if row.health_reason is None else [row.health_reason],
            "health_since": since(row.health_ms),
        }
    if call.own:
        return {name: rendered[name] for name in rendered if name not in _HIDDEN_FROM_PROJECTS}
    return rendered


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
