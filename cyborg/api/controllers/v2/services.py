# SPDX-License-Identifier: Apache-2.0
"""Services: Cyborg's processes, and the services that run on attached backends."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID, uuid5

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, references, rendering, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import instant, since
from cyborg.db import drivers, services
from cyborg.db.listing import Page
from cyborg.db.services import ListedProcess
from cyborg.db.transaction import Transaction
from cyborg.model import health_view
from cyborg.model.operation import Operation
from cyborg.model.process import API, CONDUCTOR
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.rpc.verbs import DiscoverServices, RemoveService, SetServiceStatus

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
    driver = wsme.wsattr(references.DRIVER_NAME)
    backend = wsme.wsattr(types.NAME)


class DiscoverBody(types.Declared):
    """The hosts (default: all) and the driver (default: all) whose hardware to discover."""

    hosts = wsme.wsattr(types.HOSTS)
    driver = wsme.wsattr(references.INSTALLED_DRIVER)
    setup = types.Field(types.FLAG, since=microversion.OPERATOR_VIEWS)


class ServicePatch(types.Declared):
    """The members of a process that may change: whether its host is in service, and the reason."""

    status = wsme.wsattr(types.Word(ENABLED, DISABLED), mandatory=True)
    disabled_reason = wsme.wsattr(types.NAME)


PROCESS_VIEW = answers.Answer(
    "ProcessView",
    "A process of Cyborg; ``listening`` is null where it does not apply or is not known.",
    uuid=answers.Shown(types.UUID_TYPE),
    kind=answers.Shown(types.Word(PROCESS)),
    host=answers.Shown(answers.STRING),
    binary=answers.Shown(answers.STRING),
    state=answers.Shown(types.Word("up", "down")),
    status=answers.Shown(types.Word(ENABLED, DISABLED)),
    disabled_reason=answers.Shown(answers.TEXT_OR_NULL),
    version=answers.Shown(answers.TEXT_OR_NULL),
    endpoint=answers.Shown(answers.TEXT_OR_NULL),
    last_seen_at=answers.Shown(answers.TIME),
    listening=answers.Shown(answers.Nullable(types.FLAG), since=microversion.OPERATOR_VIEWS),
    bus_error=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATOR_VIEWS),
    bus_error_since=answers.Shown(answers.TIME_OR_NULL, since=microversion.OPERATOR_VIEWS),
    publish_error=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATOR_VIEWS),
    publish_error_since=answers.Shown(answers.TIME_OR_NULL, since=microversion.OPERATOR_VIEWS),
    cause=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATOR_VIEWS),
    remedy=answers.Shown(answers.TEXT_OR_NULL, since=microversion.OPERATOR_VIEWS),
)


BACKEND_SERVICE_VIEW = answers.Answer(
    "BackendServiceView",
    "A service that runs on an attached backend.",
    uuid=answers.Shown(types.UUID_TYPE),
    kind=answers.Shown(types.Word(BACKEND)),
    host=answers.Shown(answers.STRING),
    driver=answers.Shown(answers.STRING),
    backend=answers.Shown(answers.STRING),
    name=answers.Shown(answers.STRING),
    state=answers.Shown(answers.STRING),
    last_discovered_at=answers.Shown(answers.TIME_OR_NULL),
)


_ANSWER = answers.Either((PROCESS_VIEW, BACKEND_SERVICE_VIEW))


class Services(Controller):
    """``/v2/services``."""

    collection = "services"
    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "discover": {"POST": "discover"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "forget"},
    }

    @expose(
        "cyborg:service:get_all",
        query=ServiceQuery,
        since=microversion.OPERATORS,
        answer=answers.listing("services", _ANSWER),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of services of both kinds, processes first."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            documents = _on_backends(tx, call.scope, query)
            # A process has no driver and no backend.
            if query.get("kind") != BACKEND and not {"driver", "backend"} & set(query):
                rows = services.processes(tx, call.scope, host=query.get("host"))
                documents = self._documents(tx, call, rows) + documents
        return {self.collection: rendering.cut(documents, parsing.page(query), SORT_KEYS)}

    @expose("cyborg:service:get_one", types.UUID_TYPE, since=microversion.OPERATORS, answer=_ANSWER)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a service of either kind."""
        return self._show(call, uuid)

    @expose(
        "cyborg:service:update",
        types.UUID_TYPE,
        body=types.Object(ServicePatch, closed=True),
        since=microversion.OPERATORS,
        answer=PROCESS_VIEW,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Disable or enable the host of an agent."""
        call.check_everywhere()
        disabled, reason = body["status"] == DISABLED, body.get("disabled_reason")
        if reason is not None and not disabled:
            raise exception.Invalid(
                field="disabled_reason", reason=f"it goes with status {DISABLED} only"
            )
        self.conductor.write(SetServiceStatus(*call.origin, uuid, disabled=disabled, reason=reason))
        return self._show(call, uuid)

    @expose(
        "cyborg:service:delete",
        types.UUID_TYPE,
        query=types.ForceQuery,
        since=microversion.OPERATORS,
        long=True,
    )
    def forget(self, call: Call, uuid: str, query: Mapping[str, Any]) -> Operation:
        """Remove a process that is down and, for an agent, its host with all its devices."""
        call.check_everywhere()
        return self.conductor.write(RemoveService(*call.origin, uuid, call.forced(query)))

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self.reader.reader() as tx:
            rows = services.processes(tx, call.scope, uuid=uuid)
            documents = self._documents(tx, call, rows) or _on_backends(tx, call.scope, {})
        for document in documents:
            if document["uuid"] == uuid:
                return document
        raise exception.NotFound(noun="Service", key=uuid)

    @expose(
        "cyborg:service:discover",
        query=types.WaitQuery,
        body=types.Object(DiscoverBody, closed=True),
        since=microversion.OPERATORS,
        long=True,
    )
    def discover(self, call: Call, query: Mapping[str, Any], body: Mapping[str, Any]) -> Operation:
        """Start a discovery of the hardware of hosts now."""
        call.check_everywhere()
        setup = body.get("setup", False)
        if setup and "driver" not in body:
            raise exception.Invalid(field="setup", reason="it needs a driver")
        return self.conductor.write(
            DiscoverServices(
                *call.origin,
                hosts=body.get("hosts"),
                driver=body.get("driver"),
                wait=query.get("wait", False),
                setup=setup or None,
            )
        )

    def _documents(
        self, tx: Transaction, call: Call, rows: Sequence[ListedProcess]
    ) -> list[dict[str, Any]]:
        """Return the JSON of processes; from 2.5 on with the members of the health view."""
        documents: list[dict[str, Any]] = [
            {
                "uuid": row.uuid,
                "kind": PROCESS,
                "host": call.scope.host(row.host),
                "binary": row.binary,
                "state": "up" if row.silent_ms <= self.settings.down_after[row.binary] else "down",
                "status": DISABLED if row.disabled else ENABLED,
                "disabled_reason": call.scope.said(row.disabled_reason, [row.host]),
                "version": row.version,
                "endpoint": call.scope.placed(row.endpoint),
                "last_seen_at": instant(row.last_seen_ms),
            }
            for row in rows
        ]
        if call.minor < microversion.OPERATOR_VIEWS or not rows:
            return documents
        # The health view needs all conductors to judge a process without heartbeats.
        others = services.processes(tx, EVERYWHERE, binary=CONDUCTOR)
        cloud = health_view.Cloud(
            [services.health(row) for row in others], self.settings.down_after
        )
        for document, row in zip(documents, rows, strict=True):
            process = services.health(row)
            component = cloud.process(process)
            # Only conductors and agents receive requests from the bus; without heartbeats it is
            # unknown.
            answers_bus = process.binary != API and cloud.is_fresh(process)
            listens = process.bus_error is None and process.clock_error is None
            document |= {
                "listening": listens if answers_bus else None,
                "bus_error": call.scope.placed(process.bus_error),
                "bus_error_since": since(process.bus_error_ms),
                "publish_error": call.scope.placed(process.publish_error),
                "publish_error_since": since(process.publish_error_ms),
                "cause": call.scope.placed(component.cause or None),
                "remedy": call.scope.placed(component.remedy or None),
            }
        return documents


def _on_backends(tx: Transaction, scope: Scope, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON of the services on backends that match the filters."""
    if query.get("kind") == PROCESS:
        return []
    equal = {name: query[name] for name in ("host", "driver") if name in query}
    if "backend" in query:
        equal["name"] = query["backend"]
    rows = drivers.page(tx, drivers.BACKENDS, Page(), scope, filters=equal)
    # The uuid of the backend and the name give the uuid of each service.
    return [
        {
            "uuid": str(uuid5(UUID(row.uuid), service["name"])),
            "kind": BACKEND,
            "host": scope.host(row.host),
            "driver": row.driver,
            "backend": scope.said(row.name, [row.host]),
            "name": service["name"],
            "state": service["state"],
            "last_discovered_at": since(row.discovered_ms),
        }
        for row in rows
        for service in row.services or ()
    ]
