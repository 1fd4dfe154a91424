# SPDX-License-Identifier: Apache-2.0
"""Drivers of hosts, the backends that they attach, and the hardware that they report.

Drivers are installed, changed and uninstalled here; backends and hardware are only read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import since
from cyborg.db import drivers
from cyborg.model.operation import Operation
from cyborg.model.report import DriverState
from cyborg.rpc.verbs import InstallDriver, UninstallDriver, UpdateDriver

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


class Drivers(Controller):
    """``/v2/drivers``."""

    collection = "drivers"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "install"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "uninstall"},
    }

    @expose("cyborg:driver:get_all", query=DriverQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of drivers, with one row for each host that has the driver."""
        with self.reader.reader() as tx:
            rows = drivers.page(tx, drivers.DRIVERS, parsing.page(query), query)
        return {self.collection: [_render_driver(row, call.minor) for row in rows]}

    @expose("cyborg:driver:get_one", types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a driver of a host."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.DRIVERS, uuid)
        if row is None:
            raise exception.NotFound(noun="Driver", key=uuid)
        return _render_driver(row, call.minor)

    @expose(
        "cyborg:driver:install",
        query=types.WaitQuery,
        body=types.Object(InstallBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def install(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Load a driver on hosts, now and at every start of their agents."""
        return self.conductor.write(
            InstallDriver(
                *call.origin,
                driver=body["driver"],
                hosts=body.get("hosts"),
                options=body.get("options"),
                wait=query.get("wait", False),
            )
        )

    @expose(
        "cyborg:driver:update",
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
        return self.conductor.write(
            UpdateDriver(
                *call.origin,
                driver=driver,
                options=body.get("options"),
                enabled=body.get("enabled"),
                wait=query.get("wait", False),
            )
        )

    @expose(
        "cyborg:driver:uninstall",
        _DRIVER,
        query=UninstallQuery,
        since=microversion.OPERATORS,
        long=True,
    )
    def uninstall(self, call: Call, driver: str, query: Mapping[str, Any]) -> Operation:
        """Remove a driver and all devices that it offers from its hosts."""
        return self.conductor.write(
            UninstallDriver(
                *call.origin,
                driver=driver,
                drain=query.get("drain", False),
                wait=query.get("wait", False),
            )
        )


def _render_driver(row: drivers.VisibleDriver, minor: int) -> dict[str, Any]:
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
        "devices": {"found": row.present, "offered": row.offered, "in_use": row.in_use},
        "error": row.error,
        "discovered_at": since(row.discovered_ms),
    }
    if minor >= microversion.OPERATOR_VIEWS:
        rendered["options_accepted"] = row.accepts or []
    return rendered


class BackendQuery(types.Listing):
    """Filters of the list; ``capability`` names a member of the backend's capabilities."""

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    name = wsme.wsattr(types.NAME)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


class Backends(Controller):
    """``/v2/backends``."""

    collection = "backends"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose("cyborg:backend:get_all", query=BackendQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of backends."""
        with self.reader.reader() as tx:
            rows = drivers.page(tx, drivers.BACKENDS, parsing.page(query), query)
        return {self.collection: [_render_backend(row) for row in rows]}

    @expose("cyborg:backend:get_one", types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a backend."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.BACKENDS, uuid)
        if row is None:
            raise exception.NotFound(noun="Backend", key=uuid)
        return _render_backend(row)


def _render_backend(row: drivers.VisibleBackend) -> dict[str, Any]:
    """Return the JSON of a backend."""
    return {
        "uuid": row.uuid,
        "host": row.host,
        "driver": row.driver,
        "name": row.name,
        "state": row.state,
        "services": row.services or [],
        "capabilities": row.capabilities or {},
        "creates": row.creates,
        "discovered_at": since(row.discovered_ms),
    }


class HardwareQuery(types.Listing):
    """Filters of the list; ``type`` compares with the free capability word.

    ``remote`` is true for hardware with units that are not local to the host; ``capability`` names
    a member of ``acc_capability``.
    """

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    type = wsme.wsattr(types.NAME)
    setup_required = wsme.wsattr(types.FLAG)
    remote = types.Field(types.FLAG, since=microversion.OPERATOR_VIEWS)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


class Hardware(Controller):
    """``/v2/hardware``."""

    collection = "hardware"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose("cyborg:hardware:get_all", query=HardwareQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of hardware."""
        with self.reader.reader() as tx:
            rows = drivers.page(tx, drivers.HARDWARE, parsing.page(query), query)
        return {self.collection: [_render_hardware(row) for row in rows]}

    @expose("cyborg:hardware:get_one", types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a piece of hardware; if it becomes a device, the device has the same uuid."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.HARDWARE, uuid)
        if row is None:
            raise exception.NotFound(noun="Hardware", key=uuid)
        return _render_hardware(row)


def _render_hardware(row: drivers.VisibleHardware) -> dict[str, Any]:
    """Return the JSON of a piece of hardware."""
    return {
        "uuid": row.uuid,
        "hostname": row.host,
        "driver": row.driver,
        "key": row.hardware_key,
        "acc_specs": row.acc_specs,
        "acc_status": row.acc_status,
        "offered": row.offered,
    }
