# SPDX-License-Identifier: Apache-2.0
"""Devices: what accelerators there are, and whether they may be used."""

from collections.abc import Mapping
from typing import Any, ClassVar

import sqlalchemy as sa
import wsme

from cyborg import exception
from cyborg.api import microversion, queries, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import link, moment
from cyborg.api.routing import Noun, Routes
from cyborg.db import devices
from cyborg.db.engine import Reader
from cyborg.model.device import DeviceStatus
from cyborg.policies import devices as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "devices"
#: The two words of this API: in service, or not for whatever reason.
_ENABLED = DeviceStatus.ENABLED.value
_MAINTAINING = DeviceStatus.MAINTAINING.value


class DeviceQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    type = wsme.wsattr(types.NAME)
    vendor = wsme.wsattr(types.NAME)
    hostname = wsme.wsattr(types.NAME)
    status = wsme.wsattr(types.Word(_ENABLED, _MAINTAINING))


class Devices(Noun):
    """``/v2/devices``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "*": {"GET": "show"},
        "*/enable": {"POST": "enable"},
        "*/disable": {"POST": "disable"},
    }

    def __init__(self, rules: Rules, reader: Reader, conductor: ConductorClient) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor

    @expose(policies.GET_ALL, query=DeviceQuery)
    def index(self, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A page of devices; an empty filter is none."""
        equal = {name: asked[name] for name in ("type", "vendor", "hostname") if asked.get(name)}
        status = asked.get("status")
        with self._reader.reader() as tx:
            found = devices.page(
                tx,
                queries.page(asked),
                equal,
                in_service=None if status is None else status == _ENABLED,
            )
        prefix = call.links.self_of(COLLECTION)
        return {COLLECTION: [render(one, prefix, call.minor) for one in found]}

    @expose(policies.GET_ONE, types.UUID_TYPE)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """One device."""
        with self._reader.reader() as tx:
            found = devices.show(tx, uuid)
        if found is None:
            raise exception.NotFound(noun="Device", key=uuid)
        return render(found, call.links.self_of(COLLECTION), call.minor)

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


def render(row: sa.Row[Any], prefix: str, minor: int) -> dict[str, Any]:
    """The JSON of a device; ``status`` from microversion 2.3 on."""
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
        "links": [link(prefix, row.uuid)],
    }
    if minor >= microversion.DEVICE_STATUS:
        in_service = row.status == _ENABLED and row.lost_ms is None
        rendered["status"] = _ENABLED if in_service else _MAINTAINING
    return rendered
