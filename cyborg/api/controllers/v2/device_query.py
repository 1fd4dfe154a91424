# SPDX-License-Identifier: Apache-2.0
"""Which devices a list shows: what each microversion may ask for, and of whose devices."""

from collections.abc import Mapping
from typing import Any

import wsme

from cyborg import exception
from cyborg.api import microversion, types
from cyborg.api.expose import Call
from cyborg.db.devices import Wanted
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import WORDS
from cyborg.model.health import CONDITIONS
from cyborg.model.labels import parse_filter

_ENABLED = DeviceStatus.ENABLED.value
_OLDER = (_ENABLED, DeviceStatus.MAINTAINING.value)
#: Filters that compare a column for equality.
_EQUAL = ("type", "vendor", "hostname", "driver", "backend", "health")
#: What would let those who only use a device guess where it is.
_TELLING = ("hostname", "backend")


class DeviceQuery(types.Listing):
    """Filters of the list; all have to hold."""

    type = wsme.wsattr(types.NAME)
    vendor = wsme.wsattr(types.NAME)
    hostname = wsme.wsattr(types.NAME)
    driver = types.Field(types.NAME, since=microversion.OPERATORS)
    backend = types.Field(types.NAME, since=microversion.OPERATORS)
    status = wsme.wsattr(types.Word(*WORDS, "ready"))
    in_use = types.Field(types.FLAG, since=microversion.OPERATORS)
    instance = types.Field(types.UUID_TYPE, since=microversion.OPERATORS)
    labels = types.Field(types.Text(4096, minimum=1), since=microversion.OPERATORS)
    health = types.Field(types.Word(*CONDITIONS), since=microversion.OPERATOR_VIEWS)


def scope(call: Call) -> str | None:
    """The project whose devices alone the caller reaches; None reaches all of them."""
    return call.caller.project_id if call.own else None


def wanted(call: Call, asked: Mapping[str, Any]) -> Wanted:
    """What a checked query asks for; raises Invalid for a status that this version does not have.

    Raises Forbidden for what would tell a member where devices are.
    """
    status = asked.get("status")
    older = call.minor < microversion.OPERATORS
    if older and status not in (None, *_OLDER):
        raise exception.Invalid(field="status", reason=f"it must be one of {', '.join(_OLDER)}")
    if call.own:
        _check_telling(asked)
    return Wanted(
        equal={name: asked[name] for name in _EQUAL if asked.get(name)},
        in_service=status == _ENABLED if older and status is not None else None,
        status=None if older else {"ready": _ENABLED}.get(status or "", status),
        in_use=asked.get("in_use"),
        instance=asked.get("instance"),
        labels=parse_filter(asked["labels"]) if "labels" in asked else {},
        project_id=scope(call),
    )


def _check_telling(asked: Mapping[str, Any]) -> None:
    telling = [name for name in _TELLING if asked.get(name)]
    if telling or asked.get("sort_key") in _TELLING:
        raise exception.Forbidden(
            reason=f"Only operators list devices by {(telling or [asked['sort_key']])[0]}."
        )
