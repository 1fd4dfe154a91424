# SPDX-License-Identifier: Apache-2.0
"""Devices: list, create, change, enable, disable and delete accelerators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, references, types
from cyborg.api.controllers.v2 import events, usage
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import instant, link, moment, since
from cyborg.db import devices, pools
from cyborg.db import events as history_db
from cyborg.db.transaction import Transaction
from cyborg.model import creation, health
from cyborg.model.attribute import parse_label_change, parse_label_filter
from cyborg.model.cleaning import CleanLevel, CleanResult
from cyborg.model.creation import parse_traits
from cyborg.model.device import DEVICE_STATES, DeviceStatus, DeviceType, IdentityKind
from cyborg.model.health import CONDITIONS
from cyborg.model.operation import Operation
from cyborg.model.pci import PciAddress
from cyborg.model.probation import IGNORE_LIMITS, HealthOrder
from cyborg.rpc.verbs import CreateDevice, DeleteDevice, SetDeviceStatus, UpdateDevice

#: The number of latest events in the answer for a device.
LAST_EVENTS = 10
#: Name and status of an instance until Nova reports them.
_UNKNOWN = "unknown"
#: The two statuses below microversion 2.4: in service, or out of service for any reason.
_ENABLED = DeviceStatus.ENABLED.value
_MAINTAINING = DeviceStatus.MAINTAINING.value
#: The orders of an operator about the health of a device.
_IGNORE, _AUTO = "ignore", "auto"
#: The statuses that an update may set; ``ready`` is a synonym of ``enabled``.
_STATUSES = {
    _ENABLED: DeviceStatus.ENABLED,
    "ready": DeviceStatus.ENABLED,
    _MAINTAINING: DeviceStatus.MAINTAINING,
}
_OLDER = (_ENABLED, _MAINTAINING)
#: Filters that compare a column for equality.
_EQUAL = ("type", "vendor", "hostname", "driver", "backend", "health")
_TEXT = types.Text(255, minimum=1)
#: Members that tell where a device is; callers who must not know do not get them.
_HIDDEN_FROM_PROJECTS = (
    *("hostname", "backend", "std_board_info", "vendor_board_info"),
    *("status_reason", "health_reasons", "address", "numa_node", "providers"),
    *("identity", "topology", "pools"),
    # The other users of a device are not shown either.
    *("units", "events"),
)


class DeviceQuery(types.Listing):
    """Filters of the list; a device must match all of them."""

    type = wsme.wsattr(types.NAME)
    vendor = wsme.wsattr(types.NAME)
    hostname = wsme.wsattr(types.NAME)
    driver = types.Field(references.DRIVER_NAME, since=microversion.OPERATORS)
    backend = types.Field(types.NAME, since=microversion.OPERATORS)
    status = wsme.wsattr(types.Word(*DEVICE_STATES, "ready"))
    in_use = types.Field(types.FLAG, since=microversion.OPERATORS)
    instance = types.Field(references.INSTANCE, since=microversion.OPERATORS)
    labels = types.Field(types.Text(4096, minimum=1), since=microversion.OPERATORS)
    health = types.Field(types.Word(*CONDITIONS), since=microversion.OPERATOR_VIEWS)


#: ``cyborg.model`` validates labels, traits and handles.
_LABELS = types.Members(answers.STRING)
_NEW_LABELS = types.Anything(_LABELS.schema)
_CHANGED_LABELS = types.Anything(types.Members(answers.STRING, nullable=True).schema)
_TRAITS = types.Anything(types.Items(answers.STRING).schema)
_HANDLES = types.Anything(types.Items(answers.OBJECT).schema)


class DeviceBody(types.Declared):
    """The members of a device that may change."""

    status = wsme.wsattr(types.Word(*_STATUSES))
    status_reason = types.Field(types.Text(255), since=microversion.OPERATOR_VIEWS)
    free_unit = types.Field(_TEXT, since=microversion.OPERATOR_VIEWS)
    health = types.Field(types.Word(_AUTO, _IGNORE), since=microversion.OPERATOR_VIEWS)
    ignore_for = types.Field(
        types.Integer(IGNORE_LIMITS[1], IGNORE_LIMITS[0]), since=microversion.OPERATOR_VIEWS
    )
    labels = wsme.wsattr(_CHANGED_LABELS)
    model = wsme.wsattr(_TEXT)
    traits = wsme.wsattr(_TRAITS)


class CreateBody(types.Declared):
    """A new device."""

    host = wsme.wsattr(_TEXT, mandatory=True)
    driver = wsme.wsattr(types.Text(100, minimum=1), mandatory=True)
    backend = wsme.wsattr(_TEXT, mandatory=True)
    model = wsme.wsattr(_TEXT, mandatory=True)
    type = wsme.wsattr(types.Word(*DeviceType), mandatory=True)
    resource_class = wsme.wsattr(_TEXT, mandatory=True)
    traits = wsme.wsattr(_TRAITS)
    handles = wsme.wsattr(_HANDLES)
    labels = wsme.wsattr(_NEW_LABELS)


USER_VIEW = answers.Answer(
    "UserView",
    "An instance that uses a device.",
    uuid=answers.Shown(types.UUID_TYPE),
    name=answers.Shown(answers.STRING),
    status=answers.Shown(answers.STRING),
    seen_at=answers.Shown(answers.TIME_OR_NULL),
)


HOLDER_VIEW = answers.Answer(
    "HolderView",
    "An accelerator request that holds a unit of a device.",
    arq_uuid=answers.Shown(types.UUID_TYPE),
    instance_uuid=answers.Shown(answers.UUID_OR_NULL),
    instance_name=answers.Shown(answers.TEXT_OR_NULL),
    project_id=answers.Shown(answers.TEXT_OR_NULL),
)


PUBLISHED_VIEW = answers.Answer(
    "PublishedView",
    "The units of a resource provider as the agent has published them in Placement.",
    total=answers.Shown(types.INTEGER),
    reserved=answers.Shown(types.INTEGER),
)


PROVIDER_VIEW = answers.Answer(
    "ProviderView",
    "A resource provider of a device: what Placement shall have, and what it has.",
    uuid=answers.Shown(answers.UUID_OR_NULL),
    name=answers.Shown(answers.STRING),
    resource_class=answers.Shown(answers.STRING),
    total=answers.Shown(types.INTEGER),
    reserved=answers.Shown(types.INTEGER),
    published=answers.Shown(answers.Nullable(PUBLISHED_VIEW)),
    error=answers.Shown(answers.TEXT_OR_NULL),
)


DEVICE_VIEW = answers.Answer(
    "DeviceView",
    "An accelerator; callers limited to their own project do not get the optional members.",
    uuid=answers.Shown(types.UUID_TYPE),
    type=answers.Shown(answers.STRING),
    vendor=answers.Shown(answers.STRING),
    model=answers.Shown(answers.STRING),
    std_board_info=answers.Shown(answers.TEXT_OR_NULL, always=False),
    vendor_board_info=answers.Shown(answers.TEXT_OR_NULL, always=False),
    hostname=answers.Shown(answers.STRING, always=False),
    created_at=answers.Shown(answers.TIME_OR_NULL),
    updated_at=answers.Shown(answers.TIME_OR_NULL),
    links=answers.Shown(answers.LINKS),
    status=answers.Shown(
        answers.Before(microversion.OPERATORS, types.Word(*_OLDER), types.Word(*DEVICE_STATES)),
        since=microversion.DEVICE_STATUS,
    ),
    status_reason=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATORS, always=False),
    driver=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATORS),
    backend=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATORS, always=False),
    labels=answers.Shown(_LABELS, since=microversion.OPERATORS),
    in_use=answers.Shown(types.FLAG, since=microversion.OPERATORS),
    instances=answers.Shown(types.Items(USER_VIEW), since=microversion.OPERATORS),
    address=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATOR_VIEWS, always=False),
    numa_node=answers.Shown(
        answers.Nullable(types.INTEGER), since=microversion.OPERATOR_VIEWS, always=False
    ),
    identity=answers.Shown(
        types.Items(answers.OBJECT), since=microversion.OPERATOR_VIEWS, always=False
    ),
    topology=answers.Shown(
        answers.Nullable(answers.OBJECT), since=microversion.OPERATOR_VIEWS, always=False
    ),
    pools=answers.Shown(
        answers.Nullable(answers.OBJECT), since=microversion.OPERATOR_VIEWS, always=False
    ),
    resource_classes=answers.Shown(types.Items(answers.STRING), since=microversion.OPERATOR_VIEWS),
    traits=answers.Shown(types.Items(answers.STRING), since=microversion.OPERATOR_VIEWS),
    providers=answers.Shown(
        types.Items(PROVIDER_VIEW),
        since=microversion.OPERATOR_VIEWS,
        always=False,
    ),
    units=answers.Shown(usage.COUNTS, since=microversion.OPERATOR_VIEWS, always=False),
    holders=answers.Shown(types.Items(HOLDER_VIEW), since=microversion.OPERATOR_VIEWS),
    health=answers.Shown(
        answers.Nullable(types.Word(*CONDITIONS)), since=microversion.OPERATOR_VIEWS
    ),
    health_reasons=answers.Shown(
        types.Items(answers.STRING), since=microversion.OPERATOR_VIEWS, always=False
    ),
    health_since=answers.Shown(answers.TIME_OR_NULL, since=microversion.OPERATOR_VIEWS),
)


CLEANING_VIEW = answers.Answer(
    "CleaningView",
    "The last cleaning of a unit of a device after a guest.",
    unit=answers.Shown(answers.STRING),
    result=answers.Shown(types.Word(*CleanResult)),
    level=answers.Shown(types.Word(*CleanLevel)),
    steps=answers.Shown(types.Items(answers.OBJECT)),
    reason=answers.Shown(answers.TEXT_OR_NULL),
    at=answers.Shown(answers.TIME_OR_NULL),
)


DEVICE_DETAIL = DEVICE_VIEW.extended(
    "DeviceDetail",
    "An accelerator with the last cleaning of each unit, and its latest events.",
    cleaning=answers.Shown(
        types.Items(CLEANING_VIEW), since=microversion.OPERATOR_VIEWS, always=False
    ),
    events=answers.Shown(
        types.Items(events.EVENT_VIEW),
        since=microversion.OPERATOR_VIEWS,
        always=False,
    ),
)


@dataclass(frozen=True)
class View:
    """The data that an answer has besides the row of the device."""

    holders: Sequence[devices.Holder]
    parts: Sequence[devices.Part]
    #: What its units take of its pools by name; those that are all free are missing.
    used: Mapping[str, int]


class Devices(Controller):
    """``/v2/devices``."""

    collection = "devices"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
        "*/enable": {"POST": "enable"},
        "*/disable": {"POST": "disable"},
    }

    @expose(
        "cyborg:device:get_all",
        query=DeviceQuery,
        own="cyborg:device:get_own",
        answer=answers.listing("devices", DEVICE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of devices; an empty filter value does not filter."""
        selection = _selection(call, query)
        with self.reader.reader() as tx:
            rows = devices.page(tx, parsing.page(query), call.scope, selection)
            views = self._views(tx, call, rows)
        return {self.collection: [render(row, call, views[row.id]) for row in rows]}

    @expose(
        "cyborg:device:get_one", types.UUID_TYPE, own="cyborg:device:get_own", answer=DEVICE_DETAIL
    )
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a device."""
        return self._show(call, uuid)

    @expose(
        "cyborg:device:update",
        types.UUID_TYPE,
        body=types.Change(DeviceBody),
        since=microversion.OPERATORS,
        own="cyborg:device:label",
        answer=DEVICE_DETAIL,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given members; labels that are not given stay, a null label is removed."""
        for name in ("status", "model", "free_unit", "health"):
            if name in body and body[name] is None:
                raise exception.Invalid(field=name, reason="it must not be null")
        if body.get("status_reason") is not None and body.get("status") != _MAINTAINING:
            raise exception.Invalid(
                field="status_reason", reason=f"it goes with status {_MAINTAINING} only"
            )
        ignore_for = body.get("ignore_for")
        if (ignore_for is not None) is not (body.get("health") == _IGNORE):
            raise exception.Invalid(
                field="ignore_for",
                reason=f"it goes with health {_IGNORE}, and tells for how many seconds",
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
                project=call.scope.project_id,
                facts=facts,
                reason=body.get("status_reason"),
                free_unit=body.get("free_unit"),
                health=HealthOrder(ignore_for) if "health" in body else None,
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
        call.check_everywhere()
        return self.conductor.write(
            CreateDevice(*call.origin, creation.parse(body), wait=query.get("wait", False))
        )

    def _check_held(self, call: Call, uuid: str) -> None:
        if call.scope.everywhere:
            return
        with self.reader.reader() as tx:
            if devices.show(tx, uuid, call.held) is None:
                raise exception.NotFound(noun="Device", key=uuid)

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self.reader.reader() as tx:
            row = devices.show(tx, uuid, call.scope)
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            view = self._views(tx, call, [row])[row.id]
            history: Sequence[history_db.VisibleEvent] = ()
            cleanings: Sequence[devices.Cleaning] = ()
            if call.minor >= microversion.OPERATOR_VIEWS and call.scope.shows_hosts:
                history = history_db.of_device(tx, uuid, call.scope, LAST_EVENTS)
                cleanings = devices.cleanings(tx, row.id)
        rendered = render(row, call, view)
        if call.minor >= microversion.OPERATOR_VIEWS and call.scope.shows_hosts:
            rendered["cleaning"] = [
                {"unit": unit.handle_key, **(unit.record or {}), "at": since(unit.at_ms)}
                for unit in cleanings
            ]
            rendered["events"] = [events.render(event, call.scope) for event in history]
        return rendered

    def _views(
        self, tx: Transaction, call: Call, rows: Sequence[devices.VisibleDevice]
    ) -> Mapping[int, View]:
        ids = [row.id for row in rows]
        holders: Mapping[int, Sequence[devices.Holder]] = {}
        parts: Mapping[int, Sequence[devices.Part]] = {}
        if call.minor >= microversion.OPERATORS:
            holders = devices.holders(tx, ids, call.scope)
        used: Mapping[int, Mapping[str, int]] = {}
        if call.minor >= microversion.OPERATOR_VIEWS:
            parts = devices.parts(tx, ids)
            used = pools.used(tx, [row.id for row in rows if row.pools])
        return {
            id_: View(holders.get(id_, ()), parts.get(id_, ()), used.get(id_, {})) for id_ in ids
        }

    @expose(
        "cyborg:device:delete",
        types.UUID_TYPE,
        query=types.ForceQuery,
        status=204,
        since=microversion.OPERATORS,
    )
    def delete(self, call: Call, uuid: str, query: Mapping[str, Any]) -> None:
        """Remove a device that an operator created or that is lost, from Placement first."""
        call.check_everywhere()
        self.conductor.write(DeleteDevice(*call.origin, uuid, call.forced(query)))

    @expose("cyborg:device:enable", types.UUID_TYPE, status=204)
    def enable(self, call: Call, uuid: str) -> None:
        """Enable the device and all its deployables."""
        self._check_held(call, uuid)
        self.conductor.write(SetDeviceStatus(*call.origin, uuid, DeviceStatus.ENABLED))

    @expose("cyborg:device:disable", types.UUID_TYPE, status=204)
    def disable(self, call: Call, uuid: str) -> None:
        """Disable the device; instances that use it keep it."""
        self._check_held(call, uuid)
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
    call.check_places(query, "hostname", "backend")
    states = None if status is None else [_ENABLED if status == "ready" else status]
    if older and status == _MAINTAINING:
        states = [state for state in DEVICE_STATES if state != _ENABLED]
    return devices.Filters(
        equal={name: query[name] for name in _EQUAL if query.get(name)},
        states=states,
        in_use=query.get("in_use"),
        instance=query.get("instance"),
        labels=parse_label_filter(query["labels"]) if "labels" in query else {},
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
        # The users of a device set its labels, and operators write to them.
        mine = call.scope.everywhere or bool(view.holders)
        reason = row.status_reason
        if reason is None and row.lost_ms is not None:
            reason = f"Its host has not shown it since {instant(row.lost_ms)}."
        users = dict.fromkeys(holder.instance for holder in view.holders if holder.instance)
        rendered |= {
            "status_reason": reason if mine else None,
            "driver": row.driver,
            "backend": row.backend,
            "labels": (row.labels if mine else None) or {},
            "in_use": bool(view.holders),
            "instances": [_user(user) for user in users],
        }
    if call.minor >= microversion.OPERATOR_VIEWS:
        units: Counter[str] = sum((Counter(part.words) for part in view.parts), Counter())
        rendered |= {
            "address": _address(row),
            "numa_node": row.numa_node,
            "identity": row.identity or [],
            "topology": row.topology,
            "pools": None
            if row.pools is None
            else {
                name: {"total": size, "used": view.used.get(name, 0)}
                for name, size in sorted(row.pools.items())
            },
            "resource_classes": sorted({part.resource_class for part in view.parts}),
            "traits": sorted({trait for part in view.parts for trait in part.traits}),
            "providers": [
                {
                    "uuid": part.rp_uuid,
                    "name": part.name,
                    "resource_class": part.resource_class,
                    "total": part.total,
                    "reserved": part.reserved,
                    "published": part.published
                    and dict(zip(("total", "reserved"), part.published, strict=True)),
                    "error": part.error,
                }
                for part in view.parts
            ],
            "units": usage.counts(units),
            "holders": [_holder(holder) for holder in view.holders],
            "health": row.health,
            "health_reasons": list(health.stored(row.health_reason)),
            "health_since": since(row.health_ms),
        }
    if call.scope.shows_hosts:
        return rendered
    visible = {name: rendered[name] for name in rendered if name not in _HIDDEN_FROM_PROJECTS}
    if call.minor >= microversion.OPERATOR_VIEWS:
        visible["hostname"] = call.scope.host(row.hostname)
    return visible


def _holder(holder: devices.Holder) -> dict[str, Any]:
    user = holder.instance and _user(holder.instance)
    return {
        "arq_uuid": holder.arq_uuid,
        "instance_uuid": user and user["uuid"],
        "instance_name": user and user["name"],
        "project_id": holder.project_id,
    }


def _address(row: devices.VisibleDevice) -> str | None:
    """Return the PCI address; None if the device has none, or another card has its place."""
    for fact in row.identity or ():
        if fact["kind"] == IdentityKind.ADDRESS:
            return fact["value"]
    try:
        return str(PciAddress.parse(row.device_key))
    except ValueError:
        return None


def _user(user: devices.User) -> dict[str, Any]:
    return {
        "uuid": user.uuid,
        "name": _UNKNOWN if user.name is None else user.name,
        "status": _UNKNOWN if user.status is None else user.status,
        "seen_at": since(user.seen_ms),
    }
