# SPDX-License-Identifier: Apache-2.0
"""Drivers of hosts, the backends that they attach, and the hardware that they report.

Drivers are installed, changed and uninstalled here; backends and hardware are only read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, references, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import since
from cyborg.db import drivers
from cyborg.model.operation import Operation
from cyborg.model.report import DriverState
from cyborg.model.scope import Scope
from cyborg.rpc.verbs import InstallDriver, UninstallDriver, UpdateDriver

_OPTION = types.Text(16_000, lines=True)


class InstallBody(types.Declared):
    """The driver to load, the hosts (default: all hosts that are up) and the options."""

    driver = wsme.wsattr(references.INSTALLED_DRIVER, mandatory=True)
    hosts = wsme.wsattr(types.HOSTS)
    options = wsme.wsattr(types.Members(_OPTION))


class UpdateBody(types.Declared):
    """The changes; an option that is null gets the value of the host's own files again."""

    options = wsme.wsattr(types.Members(_OPTION, nullable=True))
    enabled = wsme.wsattr(types.FLAG)


class UninstallQuery(types.WaitQuery, types.ForceQuery):
    """Whether to wait until no device of the driver is in use, or dirty units do not matter."""

    drain = wsme.wsattr(types.FLAG)


class DriverQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    host = wsme.wsattr(types.NAME)
    name = wsme.wsattr(references.DRIVER_NAME)
    state = wsme.wsattr(types.Word(*DriverState))


DEVICE_COUNTS = answers.Answer(
    "DeviceCounts",
    "Counts of the devices of a driver on a host.",
    found=answers.Shown(types.INTEGER),
    offered=answers.Shown(types.INTEGER),
    in_use=answers.Shown(types.INTEGER),
)


DRIVER_VIEW = answers.Answer(
    "DriverView",
    "A driver on a host.",
    uuid=answers.Shown(types.UUID_TYPE),
    host=answers.Shown(answers.STRING),
    name=answers.Shown(answers.STRING),
    state=answers.Shown(types.Word(*DriverState)),
    version=answers.Shown(answers.TEXT_OR_NULL),
    type=answers.Shown(answers.TEXT_OR_NULL),
    endpoint=answers.Shown(answers.TEXT_OR_NULL),
    enabled=answers.Shown(types.FLAG),
    options=answers.Shown(answers.OBJECT),
    devices=answers.Shown(DEVICE_COUNTS),
    error=answers.Shown(answers.TEXT_OR_NULL),
    discovered_at=answers.Shown(answers.TIME_OR_NULL),
    options_accepted=answers.Shown(types.Items(types.ANYTHING), since=microversion.OPERATOR_VIEWS),
)


class Drivers(Controller):
    """``/v2/drivers``."""

    collection = "drivers"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "install"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "uninstall"},
    }

    @expose(
        "cyborg:driver:get_all",
        query=DriverQuery,
        since=microversion.OPERATORS,
        answer=answers.listing("drivers", DRIVER_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of drivers, with one row for each host that has the driver."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            rows = drivers.page(tx, drivers.DRIVERS, parsing.page(query), call.scope, filters=query)
        return {self.collection: [_render_driver(row, call) for row in rows]}

    @expose(
        "cyborg:driver:get_one",
        types.UUID_TYPE,
        since=microversion.OPERATORS,
        answer=DRIVER_VIEW,
    )
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a driver of a host."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.DRIVERS, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Driver", key=uuid)
        return _render_driver(row, call)

    @expose(
        "cyborg:driver:install",
        query=types.WaitQuery,
        body=types.Object(InstallBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def install(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Load a driver on hosts, now and at every start of their agents."""
        call.check_everywhere()
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
        references.DRIVER,
        query=types.WaitQuery,
        body=types.Object(UpdateBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def update(
        self, call: Call, driver: str, query: Mapping[str, Any], body: Mapping[str, Any]
    ) -> Operation:
        """Change a driver's options, enable or disable it; an empty object loads it again."""
        call.check_everywhere()
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
        references.DRIVER,
        query=UninstallQuery,
        since=microversion.OPERATORS,
        long=True,
    )
    def uninstall(self, call: Call, driver: str, query: Mapping[str, Any]) -> Operation:
        """Remove a driver and all devices that it offers from its hosts."""
        call.check_everywhere()
        return self.conductor.write(
            UninstallDriver(
                *call.origin,
                driver=driver,
                drain=query.get("drain", False),
                wait=query.get("wait", False),
                force=call.forced(query),
            )
        )


def _render_driver(row: drivers.VisibleDriver, call: Call) -> dict[str, Any]:
    """Return the JSON of a driver on a host."""
    rendered = {
        "uuid": row.uuid,
        "host": call.scope.host(row.host),
        "name": row.name,
        "state": row.state,
        "version": row.version,
        "type": row.device_type,
        "endpoint": call.scope.placed(row.endpoint),
        "enabled": row.enabled,
        "options": call.scope.placed(row.options) or {},
        "devices": {"found": row.present, "offered": row.offered, "in_use": row.in_use},
        "error": call.scope.said(row.error, [row.host]),
        "discovered_at": since(row.discovered_ms),
    }
    if call.minor >= microversion.OPERATOR_VIEWS:
        rendered["options_accepted"] = row.accepts or []
    return rendered


class BackendQuery(types.Listing):
    """Filters of the list; ``capability`` names a member of the backend's capabilities."""

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(references.DRIVER_NAME)
    name = wsme.wsattr(types.NAME)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


BACKEND_VIEW = answers.Answer(
    "BackendView",
    "A backend: a piece of software of a host through which a driver has its devices.",
    uuid=answers.Shown(types.UUID_TYPE),
    host=answers.Shown(answers.STRING),
    driver=answers.Shown(answers.STRING),
    name=answers.Shown(answers.STRING),
    state=answers.Shown(answers.STRING),
    services=answers.Shown(types.Items(answers.OBJECT)),
    capabilities=answers.Shown(answers.OBJECT),
    creates=answers.Shown(answers.TEXT_OR_NULL),
    discovered_at=answers.Shown(answers.TIME_OR_NULL),
)


class Backends(Controller):
    """``/v2/backends``."""

    collection = "backends"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:backend:get_all",
        query=BackendQuery,
        since=microversion.OPERATORS,
        answer=answers.listing("backends", BACKEND_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of backends."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            rows = drivers.page(
                tx, drivers.BACKENDS, parsing.page(query), call.scope, filters=query
            )
        return {self.collection: [_render_backend(row, call.scope) for row in rows]}

    @expose(
        "cyborg:backend:get_one",
        types.UUID_TYPE,
        since=microversion.OPERATORS,
        answer=BACKEND_VIEW,
    )
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a backend."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.BACKENDS, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Backend", key=uuid)
        return _render_backend(row, call.scope)


def _render_backend(row: drivers.VisibleBackend, scope: Scope) -> dict[str, Any]:
    """Return the JSON of a backend as a caller with this scope may see it."""
    return {
        "uuid": row.uuid,
        "host": scope.host(row.host),
        "driver": row.driver,
        "name": scope.said(row.name, [row.host]),
        "state": row.state,
        "services": row.services or [],
        "capabilities": scope.placed(row.capabilities) or {},
        "creates": row.creates,
        "discovered_at": since(row.discovered_ms),
    }


class HardwareQuery(types.Listing):
    """Filters of the list; ``type`` compares with the free capability word.

    ``remote`` is true for hardware with units that are not local to the host; ``capability`` names
    a member of ``acc_capability``.
    """

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(references.DRIVER_NAME)
    type = wsme.wsattr(types.NAME)
    setup_required = wsme.wsattr(types.FLAG)
    remote = types.Field(types.FLAG, since=microversion.OPERATOR_VIEWS)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


HARDWARE_VIEW = answers.Answer(
    "HardwareView",
    "A piece of hardware that a driver reports.",
    uuid=answers.Shown(types.UUID_TYPE),
    hostname=answers.Shown(answers.STRING),
    driver=answers.Shown(answers.STRING),
    key=answers.Shown(answers.TEXT_OR_NULL),
    acc_specs=answers.Shown(types.ANYTHING),
    acc_status=answers.Shown(types.ANYTHING),
    offered=answers.Shown(types.ANYTHING),
)


class Hardware(Controller):
    """``/v2/hardware``."""

    collection = "hardware"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:hardware:get_all",
        query=HardwareQuery,
        since=microversion.OPERATORS,
        answer=answers.listing("hardware", HARDWARE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of hardware."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            rows = drivers.page(
                tx, drivers.HARDWARE, parsing.page(query), call.scope, filters=query
            )
        return {self.collection: [_render_hardware(row, call.scope) for row in rows]}

    @expose(
        "cyborg:hardware:get_one",
        types.UUID_TYPE,
        since=microversion.OPERATORS,
        answer=HARDWARE_VIEW,
    )
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a piece of hardware; if it becomes a device, the device has the same uuid."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.HARDWARE, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Hardware", key=uuid)
        return _render_hardware(row, call.scope)


def _render_hardware(row: drivers.VisibleHardware, scope: Scope) -> dict[str, Any]:
    """Return the JSON of a piece of hardware as a caller with this scope may see it."""
    return {
        "uuid": row.uuid,
        "hostname": scope.host(row.host),
        "driver": row.driver,
        "key": scope.placed(row.hardware_key),
        "acc_specs": scope.placed(row.acc_specs),
        "acc_status": scope.placed(row.acc_status),
        "offered": row.offered,
    }
