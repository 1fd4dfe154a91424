# SPDX-License-Identifier: Apache-2.0
"""Drivers of hosts, the backends that they attach, and the hardware that they report.

Drivers are installed, changed and uninstalled here; backends and hardware are only read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import drivers
from cyborg.model.operation import Operation
from cyborg.model.report import DriverState
from cyborg.rpc.verbs import InstallDriver, UninstallDriver, UpdateDriver

_OPTION = types.Text(16_000, lines=True)


class InstallBody(types.Declared):
    """The driver to load, the hosts (default: all hosts that are up) and the options."""

    driver = wsme.wsattr(types.DRIVER, mandatory=True)
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
    name = wsme.wsattr(types.NAME)
    state = wsme.wsattr(types.Word(*DriverState))


DEVICE_COUNTS = Answer[drivers.VisibleDriver](
    "DeviceCounts",
    "Counts of the devices of a driver on a host.",
    found=Member(types.INTEGER, lambda row: row.present),
    offered=Member(types.INTEGER),
    in_use=Member(types.INTEGER),
)


DRIVER_VIEW = Answer[drivers.VisibleDriver](
    "DriverView",
    "A driver on a host.",
    Source(hosts=lambda row: [row.host]),
    uuid=Member(types.UUID_TYPE),
    host=Member(answers.HOST),
    name=Member(answers.STRING),
    state=Member(types.Word(*DriverState)),
    version=Member(answers.TEXT_OR_NULL),
    type=Member(answers.TEXT_OR_NULL, lambda row: row.device_type),
    endpoint=Member(answers.PLACED_TEXT),
    enabled=Member(types.FLAG),
    options=Member(answers.PLACED_OBJECT),
    devices=Member(DEVICE_COUNTS, lambda row: row),
    error=Member(answers.SAID_OR_NULL),
    discovered_at=Member(answers.TIME_OR_NULL, lambda row: row.discovered_ms),
    options_accepted=Member(types.Items(types.ANYTHING), lambda row: row.accepts or []),
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
        since=microversion.EXTENDED,
        answer=answers.listing("drivers", DRIVER_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[drivers.VisibleDriver]:
        """Return a page of drivers, with one row for each host that has the driver."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            return drivers.page(tx, drivers.DRIVERS, parsing.page(query), call.scope, filters=query)

    @expose(
        "cyborg:driver:get_one",
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        answer=DRIVER_VIEW,
    )
    def show(self, call: Call, uuid: str) -> drivers.VisibleDriver:
        """Return a driver of a host."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.DRIVERS, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Driver", key=uuid)
        return row

    @expose(
        "cyborg:driver:install",
        query=types.WaitQuery,
        body=types.Object(InstallBody, closed=True),
        since=microversion.EXTENDED,
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
        types.DRIVER,
        query=types.WaitQuery,
        body=types.Object(UpdateBody, closed=True),
        since=microversion.EXTENDED,
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
        types.DRIVER,
        query=UninstallQuery,
        since=microversion.EXTENDED,
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


class BackendQuery(types.Listing):
    """Filters of the list; ``capability`` names a member of the backend's capabilities."""

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    name = wsme.wsattr(types.NAME)
    capability = wsme.wsattr(types.MEMBER_NAME)


BACKEND_VIEW = Answer[drivers.VisibleBackend](
    "BackendView",
    "A backend: a piece of software of a host through which a driver has its devices.",
    Source(hosts=lambda row: [row.host]),
    uuid=Member(types.UUID_TYPE),
    host=Member(answers.HOST),
    driver=Member(answers.STRING),
    name=Member(answers.SAID),
    state=Member(answers.STRING),
    services=Member(types.Items(answers.OBJECT), lambda row: row.services or []),
    capabilities=Member(answers.PLACED_OBJECT),
    creates=Member(answers.TEXT_OR_NULL),
    discovered_at=Member(answers.TIME_OR_NULL, lambda row: row.discovered_ms),
)


class Backends(Controller):
    """``/v2/backends``."""

    collection = "backends"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:backend:get_all",
        query=BackendQuery,
        since=microversion.EXTENDED,
        answer=answers.listing("backends", BACKEND_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[drivers.VisibleBackend]:
        """Return a page of backends."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            return drivers.page(
                tx, drivers.BACKENDS, parsing.page(query), call.scope, filters=query
            )

    @expose(
        "cyborg:backend:get_one",
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        answer=BACKEND_VIEW,
    )
    def show(self, call: Call, uuid: str) -> drivers.VisibleBackend:
        """Return a backend."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.BACKENDS, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Backend", key=uuid)
        return row


class HardwareQuery(types.Listing):
    """Filters of the list; ``type`` compares with the free capability word.

    ``remote`` is true for hardware with units that are not local to the host; ``capability`` names
    a member of ``acc_capability``.
    """

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    type = wsme.wsattr(types.NAME)
    setup_required = wsme.wsattr(types.FLAG)
    remote = wsme.wsattr(types.FLAG)
    capability = wsme.wsattr(types.MEMBER_NAME)


_PLACED: Final = answers.Placed(types.ANYTHING)
HARDWARE_VIEW = Answer[drivers.VisibleHardware](
    "HardwareView",
    "A piece of hardware that a driver reports.",
    uuid=Member(types.UUID_TYPE),
    hostname=Member(answers.HOST, lambda row: row.host),
    driver=Member(answers.STRING),
    key=Member(answers.PLACED_TEXT, lambda row: row.hardware_key),
    acc_specs=Member(_PLACED),
    acc_status=Member(_PLACED),
    offered=Member(types.ANYTHING),
)


class Hardware(Controller):
    """``/v2/hardware``."""

    collection = "hardware"
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:hardware:get_all",
        query=HardwareQuery,
        since=microversion.EXTENDED,
        answer=answers.listing("hardware", HARDWARE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[drivers.VisibleHardware]:
        """Return a page of hardware."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            return drivers.page(
                tx, drivers.HARDWARE, parsing.page(query), call.scope, filters=query
            )

    @expose(
        "cyborg:hardware:get_one",
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        answer=HARDWARE_VIEW,
    )
    def show(self, call: Call, uuid: str) -> drivers.VisibleHardware:
        """Return a piece of hardware; if it becomes a device, the device has the same uuid."""
        with self.reader.reader() as tx:
            row = drivers.show(tx, drivers.HARDWARE, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Hardware", key=uuid)
        return row
