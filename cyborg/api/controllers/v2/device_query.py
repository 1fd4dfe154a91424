# SPDX-License-Identifier: Apache-2.0
"""The query of the device list: which filters each microversion has, and who may use them."""

from collections.abc import Mapping
from typing import Any

import wsme

from cyborg import exception
from cyborg.api import microversion, types
from cyborg.api.expose import Call
from cyborg.db.devices import Filters
from cyborg.model.attribute import parse_label_filter
from cyborg.model.device import DEVICE_STATES, DeviceStatus
from cyborg.model.health import CONDITIONS

_ENABLED = DeviceStatus.ENABLED.value
_OLDER = (_ENABLED, DeviceStatus.MAINTAINING.value)
#: Filters that compare a column for equality.
_EQUAL = ("type", "vendor", "hostname", "driver", "backend", "health")
#: Filters that would tell a project where its devices are.
_LOCATION_FILTERS = ("hostname", "backend")


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


def scope(call: Call) -> str | None:
    """Return the project that the caller is limited to; None: all projects."""
    return call.caller.project_id if call.own else None


def selection(call: Call, query: Mapping[str, Any]) -> Filters:
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
    return Filters(
        equal={name: query[name] for name in _EQUAL if query.get(name)},
        in_service=status == _ENABLED if older and status is not None else None,
        status=None if older else {"ready": _ENABLED}.get(status or "", status),
        in_use=query.get("in_use"),
        instance=query.get("instance"),
        labels=parse_label_filter(query["labels"]) if "labels" in query else {},
        project_id=scope(call),
    )
