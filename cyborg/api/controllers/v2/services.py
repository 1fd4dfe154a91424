# SPDX-License-Identifier: Apache-2.0
"""Services: Cyborg's processes, and the services that run on attached backends."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID, uuid5

import sqlalchemy as sa
import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, rendering, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import instant, since
from cyborg.api.routing import Noun, Routes
from cyborg.db import host_drivers, services
from cyborg.db.base import Record
from cyborg.db.engine import Reader
from cyborg.db.listing import Page
from cyborg.model import health_view
from cyborg.model.names import API, CONDUCTOR
from cyborg.model.operation import Operation
from cyborg.policies import services as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "services"
PROCESS: Final = "process"
BACKEND: Final = "backend"
ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
SORT_KEYS: Final = frozenset(
    {"uuid", "kind", "host", "binary", "driver", "backend", "name", "state"}
)


class ServiceQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    kind = wsme.wsattr(types.Word(PROCESS, BACKEND))
    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    backend = wsme.wsattr(types.NAME)


class DiscoverBody(types.Declared):
    """The hosts (default: all) and the driver (default: all) whose hardware to discover."""

    hosts = wsme.wsattr(types.HOSTS)
    driver = wsme.wsattr(types.Text(100, minimum=1))
    setup = types.Field(types.FLAG, since=microversion.OPERATOR_VIEWS)


class ServicePatch(types.Declared):
    """The members of a process that may change: whether its host is in service, and the reason."""

    status = wsme.wsattr(types.Word(ENABLED, DISABLED), mandatory=True)
    disabled_reason = wsme.wsattr(types.NAME)


class Services(Noun):
    """``/v2/services``.

    ``down_after`` has for each binary the milliseconds without a heartbeat after which it is down.
    """

    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "discover": {"POST": "discover"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "forget"},
    }

    def __init__(
        self,
        rules: Rules,
        reader: Reader,
        conductor: ConductorClient,
        *,
        down_after: Mapping[str, int],
    ) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor
        self._down_after = down_after

    @expose(policies.GET_ALL, query=ServiceQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of services of both kinds, processes first."""
        with self._reader.reader() as tx:
            documents = self._processes(tx, query, call.minor) + _on_backends(tx, query)
        return {COLLECTION: rendering.cut(documents, parsing.page(query), SORT_KEYS)}

    @expose(policies.GET_ONE, types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a service of either kind."""
        return self._show(uuid, call.minor)

    @expose(
        policies.UPDATE,
        types.UUID_TYPE,
        body=types.Object(ServicePatch, closed=True),
        since=microversion.OPERATORS,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Disable or enable the host of an agent."""
        disabled, reason = body["status"] == DISABLED, body.get("disabled_reason")
        if reason is not None and not disabled:
            raise exception.Invalid(
                field="disabled_reason", reason=f"it goes with status {DISABLED} only"
            )
        self._conductor.set_service_status(
            call.caller, call.request_key, uuid, disabled=disabled, reason=reason
        )
        return self._show(uuid, call.minor)

    @expose(policies.DELETE, types.UUID_TYPE, since=microversion.OPERATORS, long=True)
    def forget(self, call: Call, uuid: str) -> Operation:
        """Remove a process that is down and, for an agent, its host with all its devices."""
        return self._conductor.remove_service(call.caller, call.request_key, uuid)

    def _show(self, uuid: str, minor: int) -> dict[str, Any]:
        with self._reader.reader() as tx:
            rows = services.processes(tx, self._reader.now, uuid=uuid)
            documents = self._documents(tx, rows, minor) or _on_backends(tx, {})
        for document in documents:
            if document["uuid"] == uuid:
                return document
        raise exception.NotFound(noun="Service", key=uuid)

    @expose(
        policies.DISCOVER,
        query=types.WaitQuery,
        body=types.Object(DiscoverBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def discover(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Start a discovery of the hardware of hosts now."""
        setup = body.get("setup", False)
        if setup and "driver" not in body:
            raise exception.Invalid(field="setup", reason="it needs a driver")
        return self._conductor.discover_services(
            call.caller,
            call.request_key,
            hosts=body.get("hosts"),
            driver=body.get("driver"),
            wait=query.get("wait", False),
            setup=setup,
        )

    def _processes(
        self, tx: sa.Connection, query: Mapping[str, Any], minor: int
    ) -> list[dict[str, Any]]:
        """Return the processes that match the filters; a process has no driver and no backend."""
        if query.get("kind") == BACKEND or "driver" in query or "backend" in query:
            return []
        rows = services.processes(tx, self._reader.now, host=query.get("host"))
        return self._documents(tx, rows, minor)

    def _documents(
        self, tx: sa.Connection, rows: Sequence[Record], minor: int
    ) -> list[dict[str, Any]]:
        """Return the JSON of processes; from 2.5 on with the members of the health view."""
        documents = [self._process(row) for row in rows]
        if minor < microversion.OPERATOR_VIEWS or not rows:
            return documents
        # The health view needs all conductors to judge a process without heartbeats.
        others = services.processes(tx, self._reader.now, binary=CONDUCTOR)
        cloud = health_view.Cloud([services.health(row) for row in others], self._down_after)
        return [
            document | _health_members(cloud, services.health(row))
            for document, row in zip(documents, rows, strict=True)
        ]

    def _process(self, row: Record) -> dict[str, Any]:
        """Return the JSON of a process."""
        up = row.silent_ms <= self._down_after[row.binary]
        return {
            "uuid": row.uuid,
            "kind": PROCESS,
            "host": row.host,
            "binary": row.binary,
            "state": "up" if up else "down",
            "status": DISABLED if row.disabled else ENABLED,
            "disabled_reason": row.disabled_reason,
            "version": row.version,
            "endpoint": row.endpoint,
            "last_seen_at": instant(row.last_seen_ms),
        }


def _health_members(cloud: health_view.Cloud, process: health_view.Process) -> dict[str, Any]:
    """Return the members that microversion 2.5 adds to a process."""
    component = cloud.process(process)
    # Only conductors and agents receive requests from the bus; without heartbeats it is unknown.
    answers_bus = process.binary != API and cloud.is_fresh(process)
    return {
        "listening": process.bus_error is None if answers_bus else None,
        "bus_error": process.bus_error,
        "bus_error_since": since(process.bus_error_ms),
        "cause": component.cause or None,
        "remedy": component.remedy or None,
    }


def _on_backends(tx: sa.Connection, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    if query.get("kind") == PROCESS:
        return []
    equal = {name: query[name] for name in ("host", "driver") if name in query}
    if "backend" in query:
        equal["name"] = query["backend"]
    rows = host_drivers.page(tx, host_drivers.BACKENDS, Page(), equal)
    return [document for row in rows for document in _of_backend(row)]


def _of_backend(row: host_drivers.Row) -> Iterator[dict[str, Any]]:
    """Yield the JSON of a backend's services; its uuid and the name give the uuid of each."""
    for service in row.services or ():
        yield {
            "uuid": str(uuid5(UUID(row.uuid), service["name"])),
            "kind": BACKEND,
            "host": row.host,
            "driver": row.driver,
            "backend": row.name,
            "name": service["name"],
            "state": service["state"],
            "last_discovered_at": since(row.discovered_ms),
        }
