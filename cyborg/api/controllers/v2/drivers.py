# SPDX-License-Identifier: Apache-2.0
"""Drivers: list the drivers of each host with their state; install, change and uninstall them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import since
from cyborg.api.routing import Noun, Routes
from cyborg.db import host_drivers
from cyborg.db.engine import Reader
from cyborg.model.operation import Operation
from cyborg.model.report import DriverState
from cyborg.policies import drivers as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "drivers"
#: The name of an entry point, or the uuid of one host's row.
_DRIVER = types.Text(100, minimum=1)
_OPTION = types.Text(16_000)


class InstallBody(types.Declared):
    """The driver to load, the hosts (default: all hosts that are up) and the options."""

    driver = wsme.wsattr(_DRIVER, mandatory=True)
    hosts = wsme.wsattr(types.HOSTS)
    options = wsme.wsattr(types.Members(_OPTION))


class UpdateBody(types.Declared):
    """The changes; an option that is null gets the value of the host's own files again."""

    options = wsme.wsattr(types.Members(_OPTION, nullable=True))
    enabled = wsme.wsattr(types.FLAG)


class UninstallQuery(types.WaitQuery):
    """Whether to wait until no device of the driver is in use."""

    drain = wsme.wsattr(types.FLAG)


class DriverQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    host = wsme.wsattr(types.NAME)
    name = wsme.wsattr(types.NAME)
    state = wsme.wsattr(types.Word(*DriverState))


class Drivers(Noun):
    """``/v2/drivers``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "install"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "uninstall"},
    }

    def __init__(self, rules: Rules, reader: Reader, conductor: ConductorClient) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor

    @expose(policies.GET_ALL, query=DriverQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of drivers, with one row for each host that has the driver."""
        with self._reader.reader() as tx:
            rows = host_drivers.page(tx, host_drivers.DRIVERS, parsing.page(query), query)
        return {COLLECTION: [render(row, call.minor) for row in rows]}

    @expose(policies.GET_ONE, types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a driver of a host."""
        with self._reader.reader() as tx:
            row = host_drivers.show(tx, host_drivers.DRIVERS, uuid)
        if row is None:
            raise exception.NotFound(noun="Driver", key=uuid)
        return render(row, call.minor)

    @expose(
        policies.INSTALL,
        query=types.WaitQuery,
        body=types.Object(InstallBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def install(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Load a driver on hosts, now and at every start of their agents."""
        return self._conductor.install_driver(
            call.caller,
            call.request_key,
            driver=body["driver"],
            hosts=body.get("hosts"),
            options=body.get("options"),
            wait=query.get("wait", False),
        )

    @expose(
        policies.UPDATE,
        _DRIVER,
        query=types.WaitQuery,
        body=types.Object(UpdateBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def update(
        self, call: Call, driver: str, query: Mapping[str, Any], body: Mapping[str, Any]
    ) -> Operation:
        """Change a driver's options, enable or disable it; an empty object loads it again."""
        return self._conductor.update_driver(
            call.caller,
            call.request_key,
            driver=driver,
            options=body.get("options"),
            enabled=body.get("enabled"),
            wait=query.get("wait", False),
        )

    @expose(
        policies.UNINSTALL,
        _DRIVER,
        query=UninstallQuery,
        since=microversion.OPERATORS,
        long=True,
    )
    def uninstall(self, call: Call, driver: str, query: Mapping[str, Any]) -> Operation:
        """Remove a driver and all devices that it offers from its hosts."""
        return self._conductor.uninstall_driver(
            call.caller,
            call.request_key,
            driver=driver,
            drain=query.get("drain", False),
            wait=query.get("wait", False),
        )


def render(row: host_drivers.Row, minor: int) -> dict[str, Any]:
    """Return the JSON of a driver on a host at microversion 2.``minor``."""
    rendered = {
        "uuid": row.uuid,
        "host": row.host,
        "name": row.name,
        "state": row.state,
        "version": row.version,
        "type": row.device_type,
        "endpoint": row.endpoint,
        "enabled": row.enabled,
        "options": row.options or {},
        "devices": {"found": row.found, "offered": row.offered, "in_use": row.in_use},
        "error": row.error,
        "discovered_at": since(row.discovered_ms),
    }
    if minor >= microversion.OPERATOR_VIEWS:
        rendered["options_accepted"] = row.accepts or []
    return rendered
