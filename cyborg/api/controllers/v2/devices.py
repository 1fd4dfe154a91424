# SPDX-License-Identifier: Apache-2.0
"""Devices: list, create, change, enable, disable and delete accelerators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.controllers.v2 import events, usage
from cyborg.api.drains import DRAIN, Drain, Subject, servers
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.microversion import DEVICE_STATUS, EXTENDED
from cyborg.api.viewer import Viewer
from cyborg.db import device_profiles, devices, pools, providers, readings
from cyborg.db import events as history_db
from cyborg.db.transaction import Transaction
from cyborg.model import creation, health, satisfiability
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
#: The rule for the profiles that a device satisfies.
_LIST_PROFILES = "cyborg:device_profile:get_all"
#: Name and status of an instance until Nova reports them.
_UNKNOWN = "unknown"
#: The two statuses below microversion 2.100: in service, or out of service for any reason.
_ENABLED = DeviceStatus.ENABLED.value
_MAINTAINING = DeviceStatus.MAINTAINING.value
_DRAINING = DeviceStatus.DRAINING.value
#: The orders of an operator about the health of a device.
_IGNORE, _AUTO = "ignore", "auto"
#: The statuses that an update may set; ``ready`` is a synonym of ``enabled``.
_STATUSES = {
    _ENABLED: DeviceStatus.ENABLED,
    "ready": DeviceStatus.ENABLED,
    _MAINTAINING: DeviceStatus.MAINTAINING,
    _DRAINING: DeviceStatus.DRAINING,
}
_OLDER = (_ENABLED, _MAINTAINING)
#: Filters that compare a column for equality.
_EQUAL = ("type", "vendor", "hostname", "driver", "backend", "health")
_TEXT = types.Text(255, minimum=1)


class DeviceQuery(types.Listing):
    """Filters of the list; a device must match all of them."""

    type = wsme.wsattr(types.NAME)
    vendor = wsme.wsattr(types.NAME)
    hostname = wsme.wsattr(types.NAME)
    driver = types.Field(types.NAME, since=EXTENDED)
    backend = types.Field(types.NAME, since=EXTENDED)
    status = wsme.wsattr(types.Word(*DEVICE_STATES, "ready"))
    in_use = types.Field(types.FLAG, since=EXTENDED)
    instance = types.Field(types.UUID_TYPE, since=EXTENDED)
    labels = types.Field(types.Text(4096, minimum=1), since=EXTENDED)
    health = types.Field(types.Word(*CONDITIONS), since=EXTENDED)


#: ``cyborg.model`` validates labels, traits and handles.
_LABELS = types.Members(answers.STRING)
_NEW_LABELS = types.Anything(_LABELS.schema)
_CHANGED_LABELS = types.Anything(types.Members(answers.STRING, nullable=True).schema)
_TRAITS = types.Anything(types.Items(answers.STRING).schema)
_OBJECTS = types.Items(answers.OBJECT)
_HANDLES = types.Anything(_OBJECTS.schema)


class DeviceBody(types.Declared):
    """The members of a device that may change."""

    status = wsme.wsattr(types.Word(*_STATUSES))
    status_reason = wsme.wsattr(types.Text(255))
    free_unit = wsme.wsattr(_TEXT)
    health = wsme.wsattr(types.Word(_AUTO, _IGNORE))
    ignore_for = wsme.wsattr(types.Integer(IGNORE_LIMITS[1], IGNORE_LIMITS[0]))
    labels = wsme.wsattr(_CHANGED_LABELS)
    model = wsme.wsattr(_TEXT)
    traits = wsme.wsattr(_TRAITS)


class CreateBody(types.Declared):
    """A new device."""

    host = wsme.wsattr(_TEXT, mandatory=True)
    driver = wsme.wsattr(types.DRIVER, mandatory=True)
    backend = wsme.wsattr(_TEXT, mandatory=True)
    model = wsme.wsattr(_TEXT, mandatory=True)
    type = wsme.wsattr(types.Word(*DeviceType), mandatory=True)
    resource_class = wsme.wsattr(_TEXT, mandatory=True)
    traits = wsme.wsattr(_TRAITS)
    handles = wsme.wsattr(_HANDLES)
    labels = wsme.wsattr(_NEW_LABELS)


USER_VIEW = Answer[devices.User](
    "UserView",
    "An instance that uses a device.",
    uuid=Member(types.UUID_TYPE),
    name=Member(answers.STRING, lambda user: _reported(user.name)),
    status=Member(answers.STRING, lambda user: _reported(user.status)),
    seen_at=Member(answers.TIME_OR_NULL, lambda user: user.seen_ms),
)


HOLDER_VIEW = Answer[devices.Holder](
    "HolderView",
    "An accelerator request that holds a unit of a device.",
    arq_uuid=Member(types.UUID_TYPE),
    instance_uuid=Member(
        answers.UUID_OR_NULL, lambda holder: holder.instance and holder.instance.uuid
    ),
    instance_name=Member(
        answers.TEXT_OR_NULL,
        lambda holder: holder.instance and _reported(holder.instance.name),
    ),
    project_id=Member(answers.TEXT_OR_NULL),
)


PUBLISHED_VIEW = Answer[tuple[int, int]](
    "PublishedView",
    "The units of a resource provider as the agent has published them in Placement.",
    total=Member(types.INTEGER, lambda published: published[0]),
    reserved=Member(types.INTEGER, lambda published: published[1]),
)


PROVIDER_VIEW = Answer[providers.Part](
    "ProviderView",
    "A resource provider of a device: what Placement shall have, and what it has.",
    uuid=Member(answers.UUID_OR_NULL, lambda part: part.row.rp_uuid),
    name=Member(answers.STRING, lambda part: part.row.name),
    resource_class=Member(answers.STRING, lambda part: part.row.resource_class),
    total=Member(types.INTEGER, lambda part: part.desired.total),
    reserved=Member(types.INTEGER, lambda part: part.desired.reserved),
    group_size=Member(types.INTEGER, lambda part: part.desired.group_size),
    product_traits=Member(answers.STRINGS, lambda part: part.row.product_traits or []),
    published=Member(answers.Nullable(PUBLISHED_VIEW)),
    error=Member(answers.TEXT_OR_NULL, lambda part: part.row.publish_error),
)


@dataclass(frozen=True)
class SatisfiedProfile:
    """A profile, and the positions of its groups that the providers of a device can satisfy."""

    profile: device_profiles.NamedGroups
    groups: Sequence[int]


SATISFIED_VIEW = Answer[SatisfiedProfile](
    "SatisfiedProfile",
    "A device profile of which a device can satisfy groups when its units are free.",
    uuid=Member(types.UUID_TYPE, lambda satisfied: satisfied.profile.uuid),
    name=Member(answers.STRING, lambda satisfied: satisfied.profile.name),
    groups=Member(types.Items(types.INTEGER)),
)


READING_VIEW = Answer[readings.Reading](
    "ReadingView",
    "What a device measured last.",
    at=Member(answers.TIME, lambda reading: reading.at_ms),
    figures=Member(answers.OBJECT),
)


@dataclass(frozen=True)
class ShownDevice:
    """What answers show of a device: its row, users, deployables and latest changes."""

    row: devices.VisibleDevice
    #: Whether the caller may see what operators and users of the device write to each other.
    trusted: bool
    holders: Sequence[devices.Holder]
    parts: Sequence[providers.Part]
    #: What its units take of its pools by name; those that are all free are missing.
    used: Mapping[str, int]
    #: None: policy does not let the caller list profiles.
    profiles: Sequence[SatisfiedProfile] | None = None
    reading: readings.Reading | None = None
    cleanings: Sequence[devices.Cleaning] = ()
    events: Sequence[history_db.VisibleEvent] = ()

    @property
    def status_reason(self) -> str | None:
        """Return why the device has its status."""
        reason = self.row.status_reason
        if reason is None and self.row.lost_ms is not None:
            reason = f"Its host has not shown it since {answers.instant(self.row.lost_ms)}."
        return reason if self.trusted else None

    @property
    def users(self) -> list[devices.User]:
        """Return the instances that use the device, each once."""
        return list(dict.fromkeys(holder.instance for holder in self.holders if holder.instance))

    @property
    def address(self) -> str | None:
        """Return the PCI address; None if it has none, or another card has its place."""
        for fact in self.row.identity or ():
            if fact["kind"] == IdentityKind.ADDRESS:
                return fact["value"]
        try:
            return str(PciAddress.parse(self.row.device_key))
        except ValueError:
            return None

    @property
    def pools(self) -> dict[str, dict[str, int]] | None:
        """Return pool → its size, and what the units take of it."""
        if self.row.pools is None:
            return None
        return {
            name: {"total": size, "used": self.used.get(name, 0)}
            for name, size in sorted(self.row.pools.items())
        }

    @property
    def units(self) -> Mapping[str, int]:
        """Return how many units count as which word."""
        return sum((Counter(part.words) for part in self.parts), Counter())


class _OlderStatus(types.Word):
    """The status below microversion 2.100."""

    def render(self, value: str, viewer: Viewer) -> str:
        return _ENABLED if value == _ENABLED else _MAINTAINING


_STATUS = answers.Before(EXTENDED, _OlderStatus(*_OLDER), types.Word(*DEVICE_STATES))


DEVICE_VIEW = Answer[ShownDevice](
    "DeviceView",
    "An accelerator; callers limited to their own project do not get the optional members.",
    Source(row=lambda device: device.row),
    uuid=Member(types.UUID_TYPE),
    type=Member(answers.STRING),
    vendor=Member(answers.STRING),
    model=Member(answers.STRING),
    std_board_info=Member(answers.TEXT_OR_NULL, placed=True),
    vendor_board_info=Member(answers.TEXT_OR_NULL, placed=True),
    hostname=Member(answers.HOST),
    created_at=Member(answers.TIME_OR_NULL),
    updated_at=Member(answers.TIME_OR_NULL),
    links=Member(answers.Links("devices"), lambda device: device.row.uuid),
    status=Member(_STATUS, lambda device: device.row.state, since=DEVICE_STATUS),
    status_reason=Member(
        answers.TEXT_OR_NULL, lambda device: device.status_reason, since=EXTENDED, placed=True
    ),
    driver=Member(answers.TEXT_OR_NULL, since=EXTENDED),
    backend=Member(answers.TEXT_OR_NULL, since=EXTENDED, placed=True),
    labels=Member(
        _LABELS,
        lambda device: (device.row.labels if device.trusted else None) or {},
        since=EXTENDED,
    ),
    in_use=Member(types.FLAG, lambda device: bool(device.holders), since=EXTENDED),
    instances=Member(types.Items(USER_VIEW), lambda device: device.users, since=EXTENDED),
    address=Member(
        answers.TEXT_OR_NULL, lambda device: device.address, since=EXTENDED, placed=True
    ),
    numa_node=Member(answers.Nullable(types.INTEGER), since=EXTENDED, placed=True),
    identity=Member(
        _OBJECTS, lambda device: device.row.identity or [], since=EXTENDED, placed=True
    ),
    topology=Member(answers.Nullable(answers.OBJECT), since=EXTENDED, placed=True),
    pools=Member(
        answers.Nullable(answers.OBJECT), lambda device: device.pools, since=EXTENDED, placed=True
    ),
    resource_classes=Member(
        answers.STRINGS,
        lambda device: sorted({part.row.resource_class for part in device.parts}),
        since=EXTENDED,
    ),
    traits=Member(
        answers.STRINGS,
        lambda device: sorted({trait for part in device.parts for trait in part.desired.traits}),
        since=EXTENDED,
    ),
    providers=Member(
        types.Items(PROVIDER_VIEW), lambda device: device.parts, since=EXTENDED, placed=True
    ),
    units=Member(usage.COUNTS, lambda device: device.units, since=EXTENDED, placed=True),
    holders=Member(types.Items(HOLDER_VIEW), lambda device: device.holders, since=EXTENDED),
    health=Member(answers.Nullable(types.Word(*CONDITIONS)), since=EXTENDED),
    health_reasons=Member(
        answers.STRINGS,
        lambda device: health.stored(device.row.health_reason),
        since=EXTENDED,
        placed=True,
    ),
    health_since=Member(answers.TIME_OR_NULL, lambda device: device.row.health_ms, since=EXTENDED),
    reading=Member(
        answers.Nullable(READING_VIEW),
        lambda device: device.reading,
        since=EXTENDED,
        placed=True,
    ),
)


CLEANING_VIEW = Answer[devices.Cleaning](
    "CleaningView",
    "The last cleaning of a unit of a device after a guest.",
    unit=Member(answers.STRING, lambda cleaning: cleaning.handle_key),
    result=Member(types.Word(*CleanResult), lambda cleaning: cleaning.record["result"]),
    level=Member(types.Word(*CleanLevel), lambda cleaning: cleaning.record["level"]),
    steps=Member(_OBJECTS, lambda cleaning: cleaning.record["steps"]),
    reason=Member(answers.TEXT_OR_NULL, lambda cleaning: cleaning.record["reason"]),
    at=Member(answers.TIME_OR_NULL, lambda cleaning: cleaning.at_ms),
)


DEVICE_DETAIL = Answer[ShownDevice](
    "DeviceDetail",
    "An accelerator with its profiles, the last cleaning of each unit, and its latest events.",
    **DEVICE_VIEW.members(lambda device: device),
    profiles=Member(
        answers.Nullable(types.Items(SATISFIED_VIEW)),
        lambda device: device.profiles,
        since=EXTENDED,
    ),
    cleaning=Member(
        types.Items(CLEANING_VIEW), lambda device: device.cleanings, since=EXTENDED, placed=True
    ),
    events=Member(
        types.Items(events.EVENT_VIEW), lambda device: device.events, since=EXTENDED, placed=True
    ),
)


class Devices(Controller):
    """``/v2/devices``."""

    collection = "devices"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
        "*/drain": {"GET": "drain"},
        "*/enable": {"POST": "enable"},
        "*/disable": {"POST": "disable"},
    }

    @expose(
        "cyborg:device:get_all",
        query=DeviceQuery,
        own="cyborg:device:get_own",
        answer=answers.listing("devices", DEVICE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> list[ShownDevice]:
        """Return a page of devices; an empty filter value does not filter."""
        selection = _selection(call, query)
        with self.reader.reader() as tx:
            rows = devices.page(tx, parsing.page(query), call.scope, selection)
            return _shown(tx, call, rows)

    @expose(
        "cyborg:device:get_one", types.UUID_TYPE, own="cyborg:device:get_own", answer=DEVICE_DETAIL
    )
    def show(self, call: Call, uuid: str) -> ShownDevice:
        """Return a device."""
        return self._show(call, uuid)

    @expose(
        "cyborg:device:update",
        types.UUID_TYPE,
        body=types.PartialObject(DeviceBody),
        since=EXTENDED,
        own="cyborg:device:label",
        answer=DEVICE_DETAIL,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> ShownDevice:
        """Change the given members; labels that are not given stay, a null label is removed."""
        for name in ("status", "model", "free_unit", "health"):
            if name in body and body[name] is None:
                raise exception.Invalid(field=name, reason="it must not be null")
        disabling = (_MAINTAINING, _DRAINING)
        if body.get("status_reason") is not None and body.get("status") not in disabling:
            raise exception.Invalid(
                field="status_reason", reason=f"it goes with status {' or '.join(disabling)} only"
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
        "cyborg:device:update",
        types.UUID_TYPE,
        since=EXTENDED,
        answer=answers.Envelope(DRAIN, "drain"),
    )
    def drain(self, call: Call, uuid: str) -> Drain:
        """Return the servers that a drain of a device waits for, or would wait for."""
        call.check_everywhere()
        with self.reader.reader() as tx:
            row = devices.show(tx, uuid, call.scope)
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            held, notes = servers(tx, call.scope, Subject.of_device(uuid))
        return Drain(row.hostname, uuid, row.state, row.status_reason, held, notes)

    @expose(
        "cyborg:device:create",
        query=types.WaitQuery,
        body=types.Object(CreateBody, closed=True),
        since=EXTENDED,
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

    def _show(self, call: Call, uuid: str) -> ShownDevice:
        with self.reader.reader() as tx:
            row = devices.show(tx, uuid, call.scope)
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            (device,) = _shown(tx, call, [row])
            if call.minor < EXTENDED:
                return device
            if call.allows(_LIST_PROFILES):
                device = replace(device, profiles=_satisfied(tx, call, device.parts))
            if not call.scope.shows_hosts:
                return device
            return replace(
                device,
                cleanings=devices.cleanings(tx, row.id),
                events=history_db.of_device(tx, uuid, call.scope, LAST_EVENTS),
            )

    @expose(
        "cyborg:device:delete",
        types.UUID_TYPE,
        query=types.ForceQuery,
        status=204,
        since=EXTENDED,
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
    older = call.minor < EXTENDED
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


def _shown(tx: Transaction, call: Call, rows: Sequence[devices.VisibleDevice]) -> list[ShownDevice]:
    ids = [row.id for row in rows]
    holders: Mapping[int, Sequence[devices.Holder]] = {}
    parts: Mapping[int, Sequence[providers.Part]] = {}
    used: Mapping[int, Mapping[str, int]] = {}
    latest: Mapping[str, readings.Reading] = {}
    if call.minor >= EXTENDED:
        holders = devices.holders(tx, ids, call.scope)
        parts = providers.of_devices(tx, ids)
        used = pools.used(tx, [row.id for row in rows if row.pools])
        if call.scope.shows_hosts:
            latest = readings.of_hosts(tx, {row.host_id for row in rows})
    return [
        ShownDevice(
            row,
            trusted=call.scope.everywhere or bool(holders.get(row.id)),
            holders=holders.get(row.id, ()),
            parts=parts.get(row.id, ()),
            used=used.get(row.id, {}),
            reading=latest.get(row.uuid),
        )
        for row in rows
    ]


def _satisfied(
    tx: Transaction, call: Call, parts: Sequence[providers.Part]
) -> list[SatisfiedProfile]:
    """Return the profiles of the caller of which the providers can satisfy a group, by name."""
    supplies = [part.supply for part in parts]
    satisfied = (
        SatisfiedProfile(profile, satisfiability.groups_of(profile.groups, supplies))
        for profile in device_profiles.every(tx, call.scope)
    )
    return [each for each in satisfied if each.groups]


def _reported(text: str | None) -> str:
    return _UNKNOWN if text is None else text
