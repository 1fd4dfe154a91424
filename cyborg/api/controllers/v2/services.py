# SPDX-License-Identifier: Apache-2.0
"""Services: Cyborg's processes, and the services that run on attached backends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import UUID, uuid5

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.drains import DRAIN, Drain, Subject, servers
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.viewer import Viewer
from cyborg.db import drivers, services
from cyborg.db.listing import Page
from cyborg.db.services import ListedProcess
from cyborg.db.transaction import Transaction
from cyborg.model import readiness
from cyborg.model.operation import Operation
from cyborg.model.process import AGENT, API, CONDUCTOR, DRAINED, HOST_STATES, HostStatus
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.rpc.verbs import DiscoverServices, RemoveService, SetServiceStatus

PROCESS: Final = "process"
BACKEND: Final = "backend"
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
    driver = wsme.wsattr(types.DRIVER)
    setup = wsme.wsattr(types.FLAG)


class ServicePatch(types.Declared):
    """The members of a process that may change: whether its host is in service, and the reason."""

    status = wsme.wsattr(types.Word(*HostStatus), mandatory=True)
    disabled_reason = wsme.wsattr(types.NAME)


@dataclass(frozen=True)
class Process:
    """A process with what the health view says about it.

    ``listens`` is None where it does not apply or is not known.
    """

    row: ListedProcess
    is_up: bool
    listens: bool | None
    health: readiness.Process
    component: readiness.Component

    @property
    def uuid(self) -> str:
        """Return the uuid of the process."""
        return self.row.uuid


def _status(row: ListedProcess) -> str:
    """Return whether the host of a process is in service, in the words of the API."""
    return DRAINED if row.drained else row.host_status


PROCESS_VIEW = Answer[Process](
    "ProcessView",
    "A process of Cyborg; ``listening`` is null where it does not apply or is not known.",
    Source(row=lambda process: process.row, hosts=lambda process: [process.row.host]),
    uuid=Member(types.UUID_TYPE),
    kind=Member(types.Word(PROCESS), lambda _process: PROCESS),
    host=Member(answers.HOST),
    binary=Member(answers.STRING),
    state=Member(types.Word("up", "down"), lambda process: "up" if process.is_up else "down"),
    status=Member(types.Word(*HOST_STATES), lambda process: _status(process.row)),
    disabled_reason=Member(answers.SAID_OR_NULL),
    version=Member(answers.TEXT_OR_NULL),
    endpoint=Member(answers.PLACED_TEXT),
    last_seen_at=Member(answers.TIME, lambda process: process.row.last_seen_ms),
    listening=Member(answers.Nullable(types.FLAG), lambda process: process.listens),
    bus_error=Member(answers.PLACED_TEXT, lambda process: process.health.bus_error),
    bus_error_since=Member(answers.TIME_OR_NULL, lambda process: process.health.bus_error_ms),
    publish_error=Member(answers.PLACED_TEXT, lambda process: process.health.publish_error),
    publish_error_since=Member(
        answers.TIME_OR_NULL, lambda process: process.health.publish_error_ms
    ),
    cause=Member(answers.PLACED_TEXT, lambda process: process.component.cause or None),
    remedy=Member(answers.PLACED_TEXT, lambda process: process.component.remedy or None),
)


@dataclass(frozen=True)
class BackendService:
    """A service that runs on a backend."""

    row: drivers.VisibleBackend
    service: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        """Return the uuid, which follows from that of the backend and the name of the service."""
        return str(uuid5(UUID(self.row.uuid), self.service["name"]))


BACKEND_SERVICE_VIEW = Answer[BackendService](
    "BackendServiceView",
    "A service that runs on an attached backend.",
    Source(row=lambda entry: entry.row, hosts=lambda entry: [entry.row.host]),
    uuid=Member(types.UUID_TYPE, lambda entry: entry.uuid),
    kind=Member(types.Word(BACKEND), lambda _entry: BACKEND),
    host=Member(answers.HOST),
    driver=Member(answers.STRING),
    backend=Member(answers.SAID, lambda entry: entry.row.name),
    name=Member(answers.STRING, lambda entry: entry.service["name"]),
    state=Member(answers.STRING, lambda entry: entry.service["state"]),
    last_discovered_at=Member(answers.TIME_OR_NULL, lambda entry: entry.row.discovered_ms),
)


Service = Process | BackendService
SERVICE_VIEW = answers.Either({Process: PROCESS_VIEW, BackendService: BACKEND_SERVICE_VIEW})


class Services(Controller):
    """``/v2/services``."""

    collection = "services"
    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "discover": {"POST": "discover"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "forget"},
        "*/drain": {"GET": "drain"},
    }

    @expose(
        "cyborg:service:get_all",
        query=ServiceQuery,
        since=microversion.EXTENDED,
        answer=answers.listing("services", SERVICE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[Service]:
        """Return a page of services of both kinds, processes first."""
        call.check_places(query, "host")
        with self.reader.reader() as tx:
            rows: list[Service] = [*_on_backends(tx, call.scope, query)]
            # A process has no driver and no backend.
            if query.get("kind") != BACKEND and not {"driver", "backend"} & set(query):
                processes = services.processes(tx, call.scope, host=query.get("host"))
                rows = [*self._processes(tx, processes), *rows]
        return _cut(rows, parsing.page(query), call)

    @expose(
        "cyborg:service:get_one", types.UUID_TYPE, since=microversion.EXTENDED, answer=SERVICE_VIEW
    )
    def show(self, call: Call, uuid: str) -> Service:
        """Return a service of either kind."""
        return self._show(call, uuid)

    @expose(
        "cyborg:service:update",
        types.UUID_TYPE,
        body=types.Object(ServicePatch, closed=True),
        since=microversion.EXTENDED,
        answer=PROCESS_VIEW,
    )
    def update(self, call: Call, uuid: str, body: Mapping[str, Any]) -> Service:
        """Disable, drain or enable the host of an agent."""
        call.check_everywhere()
        status, reason = HostStatus(body["status"]), body.get("disabled_reason")
        if reason is not None and status is HostStatus.ENABLED:
            raise exception.Invalid(
                field="disabled_reason",
                reason=f"it goes with status {HostStatus.DISABLED} or {HostStatus.DRAINING} only",
            )
        self.conductor.write(SetServiceStatus(*call.origin, uuid, status=status, reason=reason))
        return self._show(call, uuid)

    @expose(
        "cyborg:service:update",
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        answer=answers.Envelope(DRAIN, "drain"),
        errors={"409": "The process is no agent."},
    )
    def drain(self, call: Call, uuid: str) -> Drain:
        """Return the servers that a drain of the host of an agent waits for, or would wait for."""
        call.check_everywhere()
        with self.reader.reader() as tx:
            rows = services.processes(tx, call.scope, uuid=uuid)
            if not rows:
                raise exception.NotFound(noun="Process", key=uuid)
            (row,) = rows
            if row.binary != AGENT:
                raise exception.Conflict(
                    reason=f"Only the host of {AGENT} can be drained; {row.binary} on {row.host} "
                    "has no units."
                )
            held, notes = servers(tx, call.scope, Subject.of_host(tx, row.host))
        return Drain(row.host, None, _status(row), row.disabled_reason, held, notes)

    @expose(
        "cyborg:service:delete",
        types.UUID_TYPE,
        query=types.ForceQuery,
        since=microversion.EXTENDED,
        long=True,
    )
    def forget(self, call: Call, uuid: str, query: Mapping[str, Any]) -> Operation:
        """Remove a process that is down and, for an agent, its host with all its devices."""
        call.check_everywhere()
        return self.conductor.write(RemoveService(*call.origin, uuid, call.forced(query)))

    def _show(self, call: Call, uuid: str) -> Service:
        with self.reader.reader() as tx:
            rows = services.processes(tx, call.scope, uuid=uuid)
            reached: Sequence[Service] = self._processes(tx, rows) or _on_backends(
                tx, call.scope, {}
            )
        for service in reached:
            if service.uuid == uuid:
                return service
        raise exception.NotFound(noun="Service", key=uuid)

    @expose(
        "cyborg:service:discover",
        query=types.WaitQuery,
        body=types.Object(DiscoverBody, closed=True),
        since=microversion.EXTENDED,
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

    def _processes(self, tx: Transaction, rows: Sequence[ListedProcess]) -> list[Process]:
        if not rows:
            return []
        # The health view needs all conductors to judge a process without heartbeats.
        others = services.processes(tx, EVERYWHERE, binary=CONDUCTOR)
        down_after = self.settings.down_after
        cloud = readiness.Cloud([services.readiness_of(row) for row in others], down_after)
        processes = []
        for row in rows:
            process = services.readiness_of(row)
            # Only conductors and agents receive requests from the bus; without heartbeats it is
            # unknown.
            answers_bus = process.binary != API and cloud.is_fresh(process)
            listens = process.bus_error is None and process.clock_error is None
            processes.append(
                Process(
                    row,
                    is_up=row.silent_ms <= down_after[row.binary],
                    listens=listens if answers_bus else None,
                    health=process,
                    component=cloud.process(process),
                )
            )
        return processes


def _on_backends(tx: Transaction, scope: Scope, query: Mapping[str, Any]) -> list[BackendService]:
    """Return the services on backends that match the filters."""
    if query.get("kind") == PROCESS:
        return []
    equal = {name: query[name] for name in ("host", "driver") if name in query}
    if "backend" in query:
        equal["name"] = query["backend"]
    rows = drivers.page(tx, drivers.BACKENDS, Page(), scope, filters=equal)
    return [BackendService(row, service) for row in rows for service in row.services or ()]


def _cut(rows: Sequence[Service], page: Page, viewer: Viewer) -> list[Service]:
    """Return one page of services.

    Without a sort key they keep their order. Those without a value come last in ascending order
    and first in descending order. Raises Invalid for ``sort_key``, ``sort_dir`` or ``marker``.
    """
    key = page.sort_key
    if key is not None and key not in SORT_KEYS:
        names = ", ".join(sorted(SORT_KEYS))
        raise exception.Invalid(field="sort_key", reason=f"{key!r} is none of {names}")
    if page.sort_dir not in (None, "asc", "desc"):
        raise exception.Invalid(field="sort_dir", reason="it is asc or desc")
    ordered = list(rows)
    if key is not None:

        def place(row: Service) -> tuple[bool, str]:
            value = SERVICE_VIEW.render(row, viewer).get(key)
            return value is None, str(value)

        ordered.sort(key=place)
    if page.sort_dir == "desc":
        ordered.reverse()
    begin = 0
    if page.marker is not None:
        places = [index for index, row in enumerate(ordered) if row.uuid == page.marker]
        if not places:
            raise exception.Invalid(field="marker", reason=f"there is no {page.marker}")
        begin = places[0] + 1
    return ordered[begin:] if page.limit is None else ordered[begin : begin + page.limit]
